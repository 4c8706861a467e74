"""Convert the model section of a configuration; check that its values agree with each other."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.sizes import must_divide
from predictor.core.checks.layer_checks import check_layers
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.section import values_of
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.model_keys import ModelKeys
from predictor.core.workload.switches import Attention, Positions
from predictor.core.workload.transformer import Transformer


def operators_of_a_layer() -> list[str]:
    """Return the operators that a layer can have."""
    return [
        name
        for name, operator in catalogue().items()
        if operator.layer_shape and not operator.at_ends and set(STEP_PRECISIONS) & set(operator.precisions)
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


def rotated_share(model: ModelSection) -> float:
    """Return the share of every head that is rotated."""
    return 0.0 if model.positions not in (None, Positions.ROTARY) else model.rotary_fraction


def _check_positions(model: ModelSection) -> None:
    """Check rotary, learned or other positions."""
    head_dim = model.head_dim or model.hidden_size // model.num_attention_heads
    is_given = model.positions is not None and "rotary_fraction" in model.model_fields_set
    if is_given and (model.positions is Positions.ROTARY) != (model.rotary_fraction > 0.0):
        raise ConfigError(
            f"model.positions is {model.positions} and model.rotary_fraction is {model.rotary_fraction:g}; they "
            "contradict each other, so leave one out"
        )
    if 0.0 < rotated_share(model) < 2.0 / head_dim:
        raise ConfigError(
            f"model.rotary_fraction is {model.rotary_fraction:g}; of a head's {head_dim} elements at least 2 rotate, "
            "or none (0: learned positions)"
        )
    _check_rotary_layers(model)
    rows, learned = model.num_position_embeddings, model.positions is Positions.LEARNED
    is_learned = learned or (model.positions is None and not model.rotary_fraction)
    if is_learned and rows is not None and rows < model.sequence_length:
        raise ConfigError(
            f"model.num_position_embeddings is {rows}; a sequence_length of {model.sequence_length} needs as many"
        )


def _check_rotary_layers(model: ModelSection) -> None:
    """Check the layers whose attention is rotated."""
    pattern = model.rotary_layers
    if pattern is None:
        return
    if not any(pattern) or not rotated_share(model) or model.latent_attention is not None:
        raise ConfigError(
            f"model.rotary_layers is {[*pattern]}; it needs layers that rotate plain attention, so say positions: none "
            "where none does, or leave it out"
        )
    if len(pattern) > model.num_layers or model.layer_operators is not None:
        raise ConfigError(
            f"model.rotary_layers has {len(pattern)} layers; give one period of them, at most num_layers, "
            f"{model.num_layers}, and no layer_operators"
        )


def _check_listed(model: ModelSection) -> None:
    """Check that a list of a layer's operators agrees with the switches of the model."""
    if model.layer_operators is None:
        return
    if model.sliding_window is not None:
        raise ConfigError("model.layer_operators cannot say which layers have a sliding_window; leave one of them out")
    for key in ("layer_types", "ffn_types", "latent_attention"):
        if getattr(model, key) is not None:
            raise ConfigError(f"model.layer_operators and model.{key} both say what a layer runs; leave one out")
    if model.activation.gated and "gelu" in model.layer_operators:
        raise ConfigError(f"model.layer_operators names gelu; activation is {model.activation}, so it must be swiglu")


def _check_model(model: ModelSection) -> None:
    """Check sizes of the model against each other."""
    if model.head_dim is None and model.latent_attention is None:
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
    check_layers(model)


def _check_experts(moe: MixtureOfExperts, model: ModelSection) -> None:
    if moe.experts_per_token > moe.num_experts:
        raise ConfigError(
            f"model.moe.experts_per_token is {moe.experts_per_token}; there are {moe.num_experts} experts (num_experts)"
        )
    if moe.num_dense_layers >= model.num_layers:
        raise ConfigError(
            f"model.moe.num_dense_layers is {moe.num_dense_layers}; of {model.num_layers} layers one must have experts"
        )
    if moe.capacity_factor is not None and moe.load_imbalance not in (None, 1.0):
        raise ConfigError(
            "model.moe has capacity_factor and load_imbalance; a capacity evens the load, so leave one out"
        )
    if model.layer_operators is not None:
        raise ConfigError("model.layer_operators cannot describe a layer with experts; leave it out, or leave out moe")
    if moe.latent_size >= model.hidden_size:
        raise ConfigError(
            f"model.moe.latent_size is {moe.latent_size}; it is a width below hidden_size, {model.hidden_size}; leave "
            "it out where tokens travel in that"
        )
    if moe.shared_expert_gate and not moe.shared_expert_ffn_hidden_size:
        raise ConfigError("model.moe.shared_expert_gate needs shared_expert_ffn_hidden_size")


def transformer(model: ModelSection) -> Transformer:
    """Return the model that its section describes.

    Raises:
        ConfigError: sizes contradict each other.
    """
    _check_model(model)
    _check_operators(model.layer_operators)
    return Transformer(
        ffn_hidden_size=model.ffn_hidden_size or 4 * model.hidden_size,
        vocab_size=model.vocab_size,
        num_key_value_heads=model.num_key_value_heads or 0,
        head_width=model.head_dim or 0,
        sliding_window=model.sliding_window or 0,
        num_position_embeddings=model.num_position_embeddings or 0,
        experts=model.moe,
        rotary_fraction=rotated_share(model),
        rotary_layers=model.rotary_layers or (),
        layer_types=model.layer_types or (),
        ffn_types=model.ffn_types or (),
        attention_chunk=model.attention_chunk or 0,
        **values_of(model, ModelKeys),
    )
