"""Read a config.json of Hugging Face transformers: a model's shape, without a sequence length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.hugging_face import encoder as hugging_face_encoder
from predictor.formats.hugging_face import vision as hugging_face_vision
from predictor.formats.hugging_face.config import Config, may_be_a_size
from predictor.formats.hugging_face.experts import experts
from predictor.formats.hugging_face.families import families, family
from predictor.formats.hugging_face.layers import layers, num_layers
from predictor.formats.hugging_face.mixers import mixers
from predictor.formats.hugging_face.special import SPECIAL
from predictor.formats.hugging_face.switches import switches
from predictor.formats.known_keys import known_keys
from predictor.formats.source import load_json

KEYS = "hugging_face"
# Keys without which a file describes no model; a class default for any of them is noted.
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Formats that models are released in; training keeps 16 bits, or a recipe of its own. What adapters are trained upon
# (gptq, awq, bitsandbytes) is none of them.
RELEASE_FORMATS = ("fp8", "mxfp4", "modelopt", "compressed-tensors")
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")


def read(path: Path, part: str = "") -> Read:
    """Read a model's shape. The file does not say the sequence length of a training.

    Args:
        path: of the file.
        part: key of the configuration that is meant, such as ``text_config``; empty: the whole file.

    Raises:
        ConfigError: the family is unknown, or something that changes the cost is not modelled.
    """
    return translate(part_of(load_json(path), part, path.name), f"{path.name}{part and '#'}{part}")


def part_of(content: dict[str, Any], part: str, where: str) -> dict[str, Any]:
    """Return a configuration inside another; embeddings are tied as the outer one says, if it does.

    Raises:
        ConfigError: there is none under that key.
    """
    if not part:
        return content
    inner = content.get(part)
    if not isinstance(inner, dict):
        held = ", ".join(key for key, value in content.items() if isinstance(value, dict)) or "none"
        raise ConfigError(f"{where} has no configuration {part}; it has {held}")
    outer = {key: content[key] for key in ("tie_word_embeddings",) if key in content}
    return outer | inner


def translate(content: dict[str, Any], where: str) -> Read:
    """Translate the content of a config.json: a language model, or one with a vision tower before it.

    Args:
        content: keys and values.
        where: what messages call it.

    Raises:
        ConfigError: the family is unknown, or something that changes the cost is not modelled.
    """
    if str(content.get("model_type")) not in hugging_face_vision.COMPOSITES:
        return _language_model(content, where)
    hugging_face_vision.check_head(content, where)
    read = _language_model(hugging_face_vision.language_model(content, where), where)
    model = read.content["model"]
    vision, notes, unsaid = hugging_face_vision.vision(content, where, model["hidden_size"])
    return Read({"model": model | {"vision": vision}}, (*read.notes, *notes), unsaid=read.unsaid | unsaid)


def _language_model(content: dict[str, Any], where: str) -> Read:
    fields = Fields(content, where)
    model_type = _model_type(fields)
    described = family(model_type)
    for section in described.sections:
        inside = fields.get(section)
        content = content | ({key: item for key, item in inside.items() if key not in content} if inside else {})
        content = {key: item for key, item in content.items() if key != section}
    own = {key: value for key, value in content.items() if key not in described.aliases}
    renamed = {described.aliases[key]: value for key, value in content.items() if key in described.aliases}
    config = Config(Fields(renamed | own, where), model_type, described)
    _refuse(config)
    model = _model(config)
    if absent := [
        config.name(key) for key in SIZES if config.name(key) in described.defaults and not config.is_given(key)
    ]:
        config.notes.append(f"not in the file, so as in transformers' class: {', '.join(absent)}")
    _note_the_rest(config)
    unsaid = {"model.sequence_length": f"{where} says no sequence length"}
    return Read({"model": model}, tuple(config.notes), unsaid=unsaid)


def _model_type(fields: Fields) -> str:
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(f"{fields.where}: model_type is missing; known: {', '.join(families())}")
    if reason := known_keys(KEYS).unsupported.get(model_type):
        raise fields.error("model_type", reason)
    known = families()
    if model_type not in known and fields.values.get("is_encoder_decoder"):
        raise fields.error("model_type", "only decoders and encoders are predicted")
    if model_type not in known and isinstance(fields.values.get("text_config"), dict):
        raise fields.error("model_type", f"it is not known; {known_keys(KEYS).refused['text_config']}")
    if model_type not in known:
        raise fields.error("model_type", f"it is not known.{nearest(model_type, known)} Known: {', '.join(known)}")
    return model_type


def _refuse(config: Config) -> None:
    """Raise for what changes the cost in a way that is not modelled."""
    fields = config.fields
    known = known_keys(KEYS)
    foreign = {key: why for key, why in known.refused_elsewhere.items() if key not in config.family.defaults}
    read = {*config.family.needs, *config.family.reads, *_release_format(config)}
    if config.family.experts == "first":
        read.add("first_k_dense_replace")
    for key, reason in {**known.refused, **foreign}.items():
        if fields.values.get(key) and key not in read:
            raise fields.error(key, reason)
    for key, allowed in config.family.needs.items():
        if (value := config.value(key)) not in allowed:
            shown = ", ".join(json.dumps(known) for known in allowed)
            raise config.error(key, f"of {config.model_type} only {shown} is modelled, not {json.dumps(value)[:40]}")
    names = fields.get("architectures")
    heads = hugging_face_encoder.HEADS if config.family.encoder else LANGUAGE_MODELS
    if isinstance(names, list) and names and not any(str(name).endswith(heads) for name in names):
        what = "encoders with their pre-training heads" if config.family.encoder else "language models (…ForCausalLM)"
        raise fields.error("architectures", f"only {what} are predicted; remove it to predict one")


def _release_format(config: Config) -> tuple[str, ...]:
    """Return the key of quantised weights where they are the format of a release."""
    key = "quantization_config"
    given = config.fields.values.get(key)
    method = given.get("quant_method") if isinstance(given, dict) else None
    if method not in RELEASE_FORMATS:
        return ()
    config.fields.used.add(key)
    config.notes.append(f"{key}: {method} is the format of the release; predicted is training.precision")
    return (key,)


def _model(config: Config) -> dict[str, Any]:
    """Return the section ``model``."""
    placed = layers(config)
    has_experts = placed.pop("has_experts", "experts" in placed.get("ffn_types", ()))
    dense_layers = placed.pop("num_dense_layers", 0)
    kinds = set(placed.get("layer_types", ["full_attention"]))
    model = {**_sizes(config), **config.family.fixed, **switches(config), **placed}
    model |= mixers(config, kinds)
    if config.family.special is not None:
        model |= SPECIAL[config.family.special](config)
    if "latent_attention" in model:
        model.pop("head_dim", None)
        model.pop("num_key_value_heads", None)
    if has_experts:
        model["moe"] = experts(config) | ({"num_dense_layers": dense_layers} if dense_layers else {})
    if config.family.encoder:
        model |= hugging_face_encoder.encoder(config)
    if model.get("ffn_types") == ["none"]:
        model.pop("ffn_hidden_size")
    return model | _other(config, model)


def _sizes(config: Config) -> dict[str, Any]:
    hidden, heads = config.whole("hidden_size"), config.optional("num_attention_heads") or 1
    ffn = config.optional("intermediate_size")
    if config.value("ffn_multiple") is not None:
        ffn = hidden * config.whole("ffn_multiple")
    sizes: dict[str, Any] = {
        "num_layers": num_layers(config),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": ffn or 4 * hidden,
        "vocab_size": config.whole("vocab_size"),
    }
    if config.family.fixed.get("rotary_fraction") == 0.0 and "positions" not in config.family.fixed:  # learned
        sizes["num_position_embeddings"] = config.whole("max_position_embeddings") + config.family.position_rows
    key_value = config.optional("num_key_value_heads")
    if key_value not in (None, heads):
        sizes["num_key_value_heads"] = key_value
    head_dim = config.optional("head_dim")
    derived = config.fields.values.get(config.name("head_dim")) == hidden / heads
    if head_dim is None and (derived or config.value("kv_lora_rank")):
        config.fields.used.add(config.name("head_dim"))  # no key of the class, which derives it from others
    if head_dim is not None and head_dim * heads != hidden:
        sizes["head_dim"] = head_dim
    if head_dim is None and hidden % heads and not config.value("kv_lora_rank"):
        if not config.family.floors_head_dim:
            raise config.error("num_attention_heads", f"it must divide hidden_size, {hidden}")
        sizes["head_dim"] = hidden // heads
    return sizes


def _other(config: Config, model: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of small vectors that no other key describes."""
    layers_of = {"model": 1, "layer": model["num_layers"]}
    mixer_pattern = model.get("layer_types", ["full_attention"])
    ffn_dense = model.get("moe", {}).get("num_dense_layers", 0)
    layers_of["attention_layer"] = sum(
        str(mixer_pattern[i % len(mixer_pattern)]).endswith("attention") for i in range(model["num_layers"])
    )
    layers_of["experts_layer"] = model["num_layers"] - ffn_dense if "moe" in model else 0
    total = 0
    for vector in config.family.other:
        size = layers_of[vector.per]
        for factor in vector.of:
            size *= factor if isinstance(factor, int) else int(model.get(factor) or config.whole(factor))
        total += size
    config.notes += config.family.notes
    total += model.get("other_parameters", 0)
    return {"other_parameters": total} if total else {}


def _note_the_rest(config: Config) -> None:
    known, fields = known_keys(KEYS), config.fields
    ignored = config.family.ignores
    rest = [
        key for key in fields.unused() if fields.values[key] and not known.is_irrelevant(key) and key not in ignored
    ]
    config.notes += [known.noted[key] for key in rest if key in known.noted]
    unknown = [key for key in rest if key not in known.noted]
    for key in unknown:
        if may_be_a_size(key, fields.values[key]):
            raise fields.error(
                key, f"it is unknown for {config.model_type} and may be a size; remove it to predict the model without"
            )
    if unknown:
        config.notes.append(f"not used, as unknown for {config.model_type}: {', '.join(unknown)}")
