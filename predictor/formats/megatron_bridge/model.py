"""The model of a Megatron-Bridge recipe: the sizes that it gives itself, or a preset with the recipe's kernels."""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.hub_models import shape_of
from predictor.formats.megatron.kernels import kernels
from predictor.formats.megatron.layers import rotary_layers
from predictor.formats.megatron.options import Options

# Sizes that a recipe may change of its model, by their arguments.
SIZES = {
    "num-layers": "num_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size",
    "num-attention-heads": "num_attention_heads",
    "num-query-groups": "num_key_value_heads",
    "kv-channels": "head_dim",
}


def sized(options: Options) -> Options:
    """Return arguments whose activation and heads are said as Megatron-LM's command line does.

    Raises:
        ConfigError: the activation is not known.
    """
    values = dict(options.values)
    function, gated = str(values.pop("activation-func", "gelu")), values.pop("gated-linear-unit", False) is True
    name = "gelu" if "gelu" in function else function.rpartition(".")[2]
    spelled = {("silu", True): "swiglu", ("gelu", True): "quick-geglu", ("squared_relu", False): "squared-relu"}
    if (name, gated) in spelled:
        values[spelled[name, gated]] = True
    elif (name, gated) != ("gelu", False):
        raise ConfigError(f"{options.where}: model.activation_func is {name}; expected gelu, silu or squared_relu")
    if values.get("num-query-groups") is not None:
        values["group-query-attention"] = True
    if "seq-length" in values:  # rows of the table of positions, GPTModelProvider.provide
        values.setdefault("max-position-embeddings", values["seq-length"])
    options.values = values
    return options


def named_section(options: Options, model: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the section ``model`` of a model that is known by its name, as options change it; empty: not known."""
    shape = shape_of(model)
    if options.text("cp-comm-type", "p2p") != "p2p":
        notes.append(f"{options.named('cp-comm-type')}: context parallelism is predicted as a ring (p2p)")
    found = kernels(options, notes)
    norm = found.pop("normalization")
    found.pop("fused_rope", None)
    if shape.get("normalization", "rms_norm") == "rms_norm":
        found["normalization"] = norm if norm != "layer_norm" else "fused_rms_norm"
    if shape.get("rotary_fraction") and not options.switch("no-rope-fusion"):
        found["fused_rope"] = True
    length = options.optional_whole("seq-length")
    options.text("position-embedding-type", "rope", ("rope", "yarn", "none"))
    if options.switch("untie-embeddings-and-output-weights"):
        found["tied_embeddings"] = False
    sizes = {ours: options.whole(key) for key, ours in SIZES.items() if options.has(key)}
    if "latent_attention" in shape:
        sizes.pop("head_dim", None)  # its heads have sizes of their own; Megatron-core then leaves kv_channels unused
    if shape and not options.has("num-layers"):
        options.values = {**options.values, "num-layers": shape["num_layers"]}
        options.used.add("num-layers")
    return {
        **model,
        **({} if length is None else {"sequence_length": length}),
        **found,
        **sizes,
        **(rotary_layers(options, options.whole("num-layers")) if shape else {}),
        **_experts(options, model),
        **_prediction_layers(options),
    }


def _experts(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Return what a recipe changes of its model's experts."""
    capacity, latent = options.real("moe-expert-capacity-factor", 0.0), options.optional_whole("moe-latent-size")
    found: dict[str, Any] = {"capacity_factor": capacity} if capacity > 0 else {}
    found |= {} if latent is None else {"latent_size": latent}
    return {"moe": model.get("moe", {}) | found} if found else {}


def _prediction_layers(options: Options) -> dict[str, int]:
    count = options.optional_whole("mtp-num-layers", least=0)
    return {} if count is None else {"num_mtp_layers": count}
