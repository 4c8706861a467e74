"""Switches of a config.json: activation, positions, biases, dropout, and what a family's own keys turn on."""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.hugging_face.config import Config

GELUS = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu"})
SILUS = frozenset({"silu", "swish"})
SQUARED_RELUS = frozenset({"relu2", "relu_squared"})
# Which linear layers have biases, by the parts of a layer that have them.
BIASES: dict[frozenset[str], bool | str] = {
    frozenset[str](): False,
    frozenset({"qkv"}): "qkv",
    frozenset({"qkv", "output"}): "attention",
    frozenset({"ffn"}): "ffn",
    frozenset({"qkv", "output", "ffn"}): True,
}


def switches(config: Config) -> dict[str, Any]:
    """Return the switches of the section model.

    Raises:
        ConfigError: a value is not modelled.
    """
    fixed = config.family.fixed
    found: dict[str, Any] = {
        "activation": _activation(config),
        "tied_embeddings": config.switch("tie_word_embeddings"),
    }
    if "rotary_fraction" not in fixed and "positions" not in fixed:
        found["rotary_fraction"] = _rotary_fraction(config)
    if "biases" not in fixed:
        found["biases"] = _biases(config)
    for key, keys in config.family.switches.items():
        if config.switch(key):
            found |= keys
    for key, keys in config.family.switches_off.items():
        if not config.switch(key):
            found |= keys
    return found | _dropouts(config)


def _activation(config: Config) -> str:
    # Gemma's files have hidden_activation, older files hidden_act as well.
    key = "hidden_activation" if config.is_given("hidden_activation") else "hidden_act"
    config.fields.used |= {"hidden_activation", config.name("hidden_act")}
    name = config.value(key)
    if name is None:
        name = config.value("hidden_activation") or "silu"
    if not isinstance(name, str):
        raise config.error(key, "expected a word")
    if config.family.gated:
        known = {**dict.fromkeys(GELUS, "geglu"), **dict.fromkeys(SILUS, "swiglu")}
        if name in SQUARED_RELUS:
            config.notes.append(f"{config.name(key)} {name}: its gate is timed as that of SwiGLU")
            return "swiglu"
    else:
        if name == "xielu":
            config.notes.append(f"{config.name(key)} xielu: timed as GELU")
            return "gelu"
        known = dict.fromkeys(GELUS, "gelu") | dict.fromkeys(SQUARED_RELUS, "squared_relu") | {"relu": "relu"}
    if name in known:
        return known[name]
    raise config.error(key, f"expected one of {', '.join(sorted(known))}")


def _rotary_fraction(config: Config) -> float:
    fields = config.fields
    default = float(config.family.defaults.get("rotary_fraction", 1.0))
    if config.is_given("rotary_dim") or config.value("rotary_dim"):
        head = config.optional("head_dim") or config.whole("hidden_size") // config.whole("num_attention_heads")
        default = config.whole("rotary_dim") / head
    parameters = fields.values.get("rope_parameters")
    fields.used.add("rope_parameters")
    if isinstance(parameters, dict):
        # Kinds of layers may have their own; those with full attention are meant.
        inner = parameters.get("full_attention") or parameters
        if isinstance(inner, dict) and "partial_rotary_factor" in inner:
            default = Fields(inner, fields.where, "rope_parameters.").real("partial_rotary_factor", default)
    fraction = fields.real("rotary_pct", fields.real("partial_rotary_factor", default))
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"{fields.where}: rotary_pct is {fraction}; expected a share above 0 and up to 1")
    return fraction


def _biases(config: Config) -> bool | str:
    parts: set[str] = set(config.family.always_biased)
    for key, given in config.family.biases.items():
        if config.switch(key):
            parts |= set(given)
    if "ffn" in parts and config.family.has_experts:
        key = next(key for key, given in config.family.biases.items() if "ffn" in given and config.switch(key))
        raise config.error(key, "biases of experts are not modelled")
    if (found := BIASES.get(frozenset(parts))) is not None:
        return found
    keys = next(key for key in config.family.biases if config.switch(key))
    raise config.error(keys, f"biases of {' and '.join(sorted(parts))} alone are not modelled")


def _dropouts(config: Config) -> dict[str, float]:
    fields = config.fields
    hidden = config.real("hidden_dropout")
    hidden = fields.real("hidden_dropout_prob", hidden)
    attention = fields.real("attention_probs_dropout_prob", config.real("attention_dropout"))
    if fields.real("embd_pdrop", 0.0) and not hidden:
        config.notes.append("embd_pdrop: dropout of the embedding alone is not modelled")
    dropouts = {"attention_dropout": attention, "hidden_dropout": hidden}
    return {key: value for key, value in dropouts.items() if value}
