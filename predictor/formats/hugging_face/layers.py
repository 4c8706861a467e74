"""Which token mixer and which FFN stand in which layer of a config.json."""

from __future__ import annotations

from typing import Any, TypeVar

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import LARGEST
from predictor.formats.hugging_face.config import Config
from predictor.formats.hugging_face.families import FIRST_LAYERS_KEYS, Windows

Kind = TypeVar("Kind")
FULL, SLIDING = "full_attention", "sliding_attention"
ATTENTION = {
    "full_attention": FULL,
    "attention": FULL,
    "indexed_attention": FULL,  # the indexer's sizes are those of latent_attention
    "deepseek_sparse_attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": "chunked_attention",
}
LINEAR = ("linear_attention", "mamba", "recurrent", "conv")
# Layers of one block each (Nemotron-H): its mixer and its FFN. Letters are those of hybrid_override_pattern.
BLOCKS = {"mlp": ("none", "dense"), "moe": ("none", "experts")}
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# Keys that say where layers of a kind stand; a list of all layers overrules them.
PLACES = frozenset(
    [
        "sliding_window_pattern",
        "first_k_dense_replace",
        "max_window_layers",
        "global_attn_every_n_layers",
        "no_rope_layer_interval",
        "full_attention_interval",
        "decoder_sparse_step",
        "mlp_only_layers",
        "prefix_dense_sliding_window_pattern",
        "attention_types",
        "sliding_window",
        "use_sliding_window",
        "num_dense_layers",
        "full_attn_idxs",
        "mamba_expand",
        "expand",
        "conv_L_cache",
        "conv_bias",
    ]
)
SPARSE = {"dense": "dense", "sparse": "experts", "moe": "experts"}


def layers(config: Config) -> dict[str, Any]:
    """Return the keys of the section model that say which layers stand where, and the window.

    Raises:
        ConfigError: a layer is of a kind that is not modelled, or a list does not fit the number of layers.
    """
    count = num_layers(config)
    period = config.family.period
    config.fields.used |= PLACES & config.family.defaults.keys()
    if period is not None and period.key is not None:
        config.fields.used.add(period.key)
    if config.family.windows is not Windows.NONE:
        config.fields.used.add("max_window_layers")
    if config.family.linear == "blocks":
        mixers, ffns = _blocks(config, count)
    else:
        mixers, ffns = _mixers(config, count), _ffns(config, count)
    found: dict[str, Any] = {}
    if SLIDING in mixers:
        window = config.optional("sliding_window", least=0)
        if window:
            found["sliding_window"] = window
        else:
            mixers = [FULL if mixer == SLIDING else mixer for mixer in mixers]
    if "chunked_attention" in mixers:
        found["attention_chunk"] = config.whole("attention_chunk_size")
    if set(mixers) - {FULL} and set(mixers) != {SLIDING}:
        found["layer_types"] = shortest(mixers)
    found |= _rotary(config, mixers)
    experts_from = next((i for i, ffn in enumerate(ffns) if ffn == "experts"), count)
    if set(ffns[experts_from:]) <= {"experts"} and set(ffns[:experts_from]) <= {"dense"}:
        return found | ({"num_dense_layers": experts_from} if 0 < experts_from < count else {}) | _all(ffns)
    return found | {"ffn_types": shortest(ffns)}


def _rotary(config: Config, mixers: list[str]) -> dict[str, Any]:
    """Return the layers whose attention is rotated, where not all are.

    Raises:
        ConfigError: no_rope_layers is no list of a number per layer.
    """
    rule = config.family.unrotated
    if rule is None:
        return {}
    config.fields.used |= {"no_rope_layers", "no_rope_layer_interval"}
    rotates = [mixer != FULL for mixer in mixers]
    if rule == "listed":
        listed, period = config.value("no_rope_layers"), config.whole("no_rope_layer_interval")
        if listed and not (isinstance(listed, list) and len(listed) == len(mixers)):
            raise config.error(
                "no_rope_layers", f"expected a number for each of {len(mixers)} layers, 0 without rotary"
            )
        rotates = [bool(flag) for flag in listed or [(layer + 1) % period for layer in range(len(mixers))]]
    if all(rotates) or not any(rotates):
        return {}
    return {"rotary_layers": shortest(rotates)}


def _all(ffns: list[str]) -> dict[str, Any]:
    return {"has_experts": "experts" in ffns} if "none" not in ffns else {}


def num_layers(config: Config) -> int:
    """Return the number of layers; a list of blocks says it where there is one.

    Raises:
        ConfigError: it is missing, or so large that a list of them would fill the memory.
    """
    pattern = config.value("hybrid_override_pattern")
    if isinstance(pattern, str):
        return len(pattern)
    if config.family.linear == "blocks":
        if (types := config.listed("layer_types")) is None:
            raise ConfigError(f"{config.fields.where}: hybrid_override_pattern is missing; it says what every layer is")
        return len(types)
    count, most = config.whole("num_hidden_layers"), LARGEST["num_layers"]
    if count > most:
        raise config.error("num_hidden_layers", f"expected at most {most:,}")
    return count


def shortest(pattern: list[Kind]) -> list[Kind]:
    """Return the shortest beginning that repeats to the whole list.

    >>> shortest(["a", "b", "a", "b", "a"])
    ['a', 'b']
    """
    for length in range(1, len(pattern)):
        if all(name == pattern[i % length] for i, name in enumerate(pattern)):
            return pattern[:length]
    return pattern


def _named(config: Config, key: str, count: int) -> list[str] | None:
    """Return a list of names, one per layer."""
    value = config.value(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise config.error(key, f"expected a list of {count} names of layers")
    if len(value) != count:
        raise ConfigError(f"{config.fields.where}: {config.name(key)} names {len(value)} layers; the model has {count}")
    return value


def _blocks(config: Config, count: int) -> tuple[list[str], list[str]]:
    pattern = config.value("hybrid_override_pattern")
    if isinstance(pattern, str):
        if set(pattern) - LETTERS.keys():
            raise config.error("hybrid_override_pattern", f"its letters are {' '.join(LETTERS)}")
        names: list[str] = [LETTERS[letter] for letter in pattern]
    else:
        listed = _named(config, "layer_types", count)
        if listed is None:
            raise ConfigError(f"{config.fields.where}: {config.name('layer_types')} is missing; it is required")
        names = listed
    pairs = []
    for name in names:
        if name not in BLOCKS and name not in ATTENTION and name not in LINEAR:
            raise config.error("layer_types", f"{name} is not modelled")
        pairs.append(BLOCKS.get(name, (ATTENTION.get(name, "mamba2"), "none")))
    return [mixer for mixer, _ in pairs], [ffn for _, ffn in pairs]


def _mixers(config: Config, count: int) -> list[str]:
    named = _named(config, "layer_types", count)
    if named is None:
        named = _unlisted(config, count)
    known = {**ATTENTION, **(dict.fromkeys(LINEAR, config.family.linear) if config.family.linear else {})}
    for name in named:
        if name not in known:
            only = "sliding_attention and full_attention" if config.family.linear is None else ", ".join(known)
            raise config.error("layer_types", f"{name} is not modelled, only {only}")
    return [str(known[name]) for name in named]


def _unlisted(config: Config, count: int) -> list[str]:
    """Return the kinds of layers where no list names them, as the class of the family does."""
    family = config.family
    if family.listed and not config.is_given("linear_attn_config"):
        raise ConfigError(f"{config.fields.where}: layer_types is missing; it says what every layer is")
    if family.period is not None:
        return _periodic(config, count)
    if family.linear is not None:
        return _linear(config, count)
    if family.windows is Windows.NONE:
        return [FULL] * count
    if family.windows in (Windows.UPPER, Windows.SWITCHED, Windows.UNCLEAR):
        if config.family.knows("use_sliding_window") and not config.switch("use_sliding_window"):
            return [FULL] * count
        if family.windows is Windows.UNCLEAR:
            raise config.error(
                "use_sliding_window", "releases of transformers differ in which layers have it; add layer_types"
            )
    first = config.whole("max_window_layers", 0) if family.windows is Windows.UPPER else 0
    return [SLIDING if i >= first else FULL for i in range(count)]


def _periodic(config: Config, count: int) -> list[str]:
    period = config.family.period
    assert period is not None
    every = period.every
    if period.key is not None and config.value(period.key) is not None:
        every = config.whole(period.key)
    if period.other == SLIDING and config.value("sliding_window") is None:
        return [FULL] * count
    found = [FULL if i % every == period.offset % every else period.other for i in range(count)]
    if period.first_is_full:
        found[0] = FULL
    if period.last_is_full:
        found[-1] = FULL
    return found


def _linear(config: Config, count: int) -> list[str]:
    """Return the kinds of layers of families that say the layers with attention by number or by period."""
    if (blocks := config.listed("block_types")) is not None:
        window = {"attention": SLIDING} if config.name("sliding_window") in config.family.defaults else {}
        return [str(window.get(blocks[i % len(blocks)], blocks[i % len(blocks)])) for i in range(count)]
    if (types := config.listed("attn_type_list")) is not None:
        if len(types) != count or set(types) - {0, 1}:
            raise config.error("attn_type_list", f"expected {count} numbers, 0 of a linear layer, 1 of full attention")
        return [FULL if each else "linear_attention" for each in types]
    given = config.fields.section("linear_attn_config")
    if full := given.get("full_attn_layers"):  # counted from 1
        if not isinstance(full, list):
            raise given.error("full_attn_layers", "expected a list of layers")
        return [FULL if i + 1 in full else "linear_attention" for i in range(count)]
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if config.name(key) in config.family.defaults or config.is_given(key):
            full = config.listed(key)
            if full is None:
                full = list(range(count)) if key == "full_attn_idxs" else []
            return [FULL if i in full else "linear_attention" for i in range(count)]
    if "attn_layer_period" in config.family.defaults:
        period, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", 0)
        return [FULL if i % period == offset else "linear_attention" for i in range(count)]
    return ["linear_attention"] * count


def _ffns(config: Config, count: int) -> list[str]:
    """Return the kinds of FFNs."""
    if "ffn_types" in config.family.fixed:
        return list(config.family.fixed["ffn_types"]) * count
    if not config.family.has_experts or not config.optional("num_experts", 0):
        return ["dense"] * count
    named = _named(config, "mlp_layer_types", count)
    if named is not None:
        if unknown := sorted(set(named) - SPARSE.keys()):
            raise config.error("mlp_layer_types", f"{unknown[0]} is not modelled, only {', '.join(SPARSE)}")
        config.fields.used |= {*FIRST_LAYERS_KEYS}  # which it overrules
        return [SPARSE[name] for name in named]
    sparse = _sparse_layers(config, count)
    return ["experts" if i in sparse else "dense" for i in range(count)]


def _sparse_layers(config: Config, count: int) -> set[int]:
    """Return the layers with experts where no list names every layer's FFN."""
    rule, all_layers = config.family.experts, range(count)
    if rule == "first":
        return _after_the_first(config, count)
    if rule == "steps":
        listed, step = config.listed("mlp_only_layers"), config.whole("decoder_sparse_step")
        listed = list(range(config.family.first_dense)) if listed is None else listed
        return {i for i in all_layers if i not in listed and (i + 1) % step == 0}
    if rule == "interleaved":
        step, layers_given = config.whole("interleave_moe_layer_step"), config.listed("moe_layers")
        return set(layers_given) if layers_given is not None else set(range(step - 1, count, step))
    if rule == "periodic":
        period, offset = config.whole("expert_layer_period"), config.whole("expert_layer_offset", 0)
        return {i for i in all_layers if i % period == offset} if config.whole("num_experts") > 1 else set()
    if rule == "range":
        first, last = config.whole("moe_layer_start_index", 0), config.whole("moe_layer_end_index", -1)
        step = config.whole("moe_layer_interval")
        last = count - 1 if last == -1 else last
        return {i for i in all_layers if (i + 1) % step == 0 and first <= i <= last}
    if rule == "listed":
        raise ConfigError(f"{config.fields.where}: mlp_layer_types is missing; it says which layers have experts")
    return set(all_layers)


def _after_the_first(config: Config, count: int) -> set[int]:
    key, family = "first_k_dense_replace", config.family
    first = family.first_dense if config.value(key) is None else config.whole(key, 0)
    if first != family.first_dense and config.name(key) not in {*family.defaults, *family.reads}:
        raise config.error(key, f"{config.model_type} does not read it; add mlp_layer_types, which it reads")
    if not config.is_given("moe_layer_freq"):
        return set(range(first, count))
    listed = config.value("moe_layer_freq")
    if isinstance(listed, list):
        sparse = {i for i, switch in enumerate(listed[:count]) if switch and i >= first}
    else:
        step = config.whole("moe_layer_freq")
        sparse = {i for i in range(first, count) if i % step == 0}
    if "moe_layer_freq" not in {*family.defaults, *family.reads} and sparse != set(range(first, count)):
        raise config.error(
            "moe_layer_freq", "releases of transformers differ in whether it counts; add mlp_layer_types"
        )
    return sparse
