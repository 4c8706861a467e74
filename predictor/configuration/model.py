"""Convert the model section of a configuration; check that its values agree with each other."""

from __future__ import annotations

from predictor.base.errors import ConfigError, nearest
from predictor.base.sizes import must_divide
from predictor.configuration.sections import ExpertsSection, ModelSection
from predictor.costs.catalogue import catalogue
from predictor.costs.work import STEP_PRECISIONS
from predictor.workloads.layer_shapes import LAYER_SHAPES
from predictor.workloads.transformer import Attention, MixtureOfExperts, Transformer

# Operators of the first and the last stage outside their layers.
EDGE_OPERATORS = ("embedding", "lm_head", "cross_entropy", "torch_cross_entropy")


def operators_of_a_layer() -> list[str]:
    """Return the operators that a layer can have."""
    return [
        name
        for name, operator in catalogue().items()
        if name in LAYER_SHAPES and name not in EDGE_OPERATORS and set(STEP_PRECISIONS) & set(operator.precisions)
    ]


def _check_operators(names: tuple[str, ...] | None) -> None:
    if names is None:
        return
    usable = operators_of_a_layer()
    if not names:
        raise ConfigError(
            "model.layer_operators is []; list the operators of a layer, or leave it out for the usual ones. "
            f"Known: {', '.join(usable)}"
        )
    for name in names:
        if name not in usable:
            raise ConfigError(
                f"model.layer_operators names {name!r}, not an operator of a layer.{nearest(name, usable)} "
                f"Known: {', '.join(usable)}"
            )


def _check_positions(model: ModelSection) -> None:
    """Check rotary or learned positions."""
    head_dim = model.head_dim or model.hidden_size // model.num_attention_heads
    if 0.0 < model.rotary_fraction < 2.0 / head_dim:
        raise ConfigError(
            f"model.rotary_fraction is {model.rotary_fraction:g}; of a head's {head_dim} elements at least 2 rotate, "
            "or none (0: learned positions)"
        )
    rows = model.num_position_embeddings
    if not model.rotary_fraction and rows is not None and rows < model.sequence_length:
        raise ConfigError(
            f"model.num_position_embeddings is {rows}; a sequence_length of {model.sequence_length} needs as many"
        )


def _check_listed(model: ModelSection) -> None:
    """Check that a list of a layer's operators agrees with the switches of the model."""
    if model.layer_operators is None:
        return
    if model.sliding_window is not None:
        raise ConfigError("model.layer_operators cannot say which layers have a sliding_window; leave one of them out")
    if model.activation.gated and "gelu" in model.layer_operators:
        raise ConfigError(f"model.layer_operators names gelu; activation is {model.activation}, so it must be swiglu")


def _check_model(model: ModelSection) -> None:
    """Check sizes of the model against each other."""
    if model.head_dim is None:
        must_divide("num_attention_heads", model.num_attention_heads, "hidden_size", model.hidden_size)
    _check_positions(model)
    _check_listed(model)
    if model.num_key_value_heads is not None:
        must_divide("num_key_value_heads", model.num_key_value_heads, "num_attention_heads", model.num_attention_heads)
    if model.sliding_window is None and model.sliding_window_layers is not None:
        raise ConfigError("model.sliding_window_layers needs model.sliding_window, the tokens that a query sees")
    if model.sliding_window is not None and not (model.causal and model.attention is Attention.FLASH):
        raise ConfigError("model.sliding_window needs causal: true and attention: flash")
    if (model.sliding_window_layers or 0) > model.num_layers:
        raise ConfigError(
            f"model.sliding_window_layers is {model.sliding_window_layers}; the model has {model.num_layers} layers"
        )
    if model.moe is not None:
        _check_experts(model.moe, model)


def _check_experts(moe: ExpertsSection, model: ModelSection) -> None:
    if moe.experts_per_token > moe.num_experts:
        raise ConfigError(
            f"model.moe.experts_per_token is {moe.experts_per_token}; there are {moe.num_experts} experts (num_experts)"
        )
    if moe.num_dense_layers >= model.num_layers:
        raise ConfigError(
            f"model.moe.num_dense_layers is {moe.num_dense_layers}; of {model.num_layers} layers one must have experts"
        )
    if moe.capacity_factor is not None and moe.load_imbalance != 1.0:
        raise ConfigError(
            "model.moe has capacity_factor and load_imbalance; a capacity evens the load, so leave one out"
        )
    if model.layer_operators is not None:
        raise ConfigError("model.layer_operators cannot describe a layer with experts; leave it out, or leave out moe")
    if moe.shared_expert_gate and not moe.shared_expert_ffn_hidden_size:
        raise ConfigError("model.moe.shared_expert_gate needs shared_expert_ffn_hidden_size")


def transformer(model: ModelSection) -> Transformer:
    """Return the model that its section describes.

    Raises:
        ConfigError: sizes contradict each other.
    """
    _check_model(model)
    _check_operators(model.layer_operators)
    given = model.model_dump(
        exclude={
            "ffn_hidden_size",
            "head_dim",
            "moe",
            "num_key_value_heads",
            "num_position_embeddings",
            "sliding_window",
        }
    )
    return Transformer(
        ffn_hidden_size=model.ffn_hidden_size or 4 * model.hidden_size,
        num_key_value_heads=model.num_key_value_heads or 0,
        head_width=model.head_dim or 0,
        sliding_window=model.sliding_window or 0,
        num_position_embeddings=model.num_position_embeddings or 0,
        experts=None if model.moe is None else MixtureOfExperts(**model.moe.model_dump()),
        **given,
    )
