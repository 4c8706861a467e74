"""Kinds of layers that arguments of Megatron-LM describe: latent attention, hybrids, windows in some layers, MTP.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_mla_args),
megatron/core/ssm/mamba_hybrid_layer_allocation.py and megatron/core/transformer/utils.py (is_layer_window_attention).
"""

from __future__ import annotations

from typing import Any

from predictor.formats.megatron.experts import layer_pattern
from predictor.formats.megatron.options import Options

# Token mixer and FFN by the letter of a hybrid pattern.
LETTERS = {
    "M": ("mamba2", "none"),
    "*": ("full_attention", "none"),
    "-": ("none", "dense"),
    "E": ("none", "experts"),
}
EXPANSION = 2  # of Mamba-2's inner width over the hidden size
CHUNK = 128  # of its scan, megatron/core/ssm/mamba_mixer.py


def layers(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of ``model`` on its kinds of layers.

    Args:
        options: the arguments.
        model: what has been read so far; latent attention takes its place in head sizes and norms.
    """
    found = _latent_attention(options) | _hybrid(options, model) | _windows(options, model)
    found |= rotary_layers(options, model["num_layers"])
    count = options.optional_whole("mtp-num-layers", least=0) or _prediction_depths(options)
    return found | ({"num_mtp_layers": count} if count else {}) | _sinks(options)


def of_model(pattern: object) -> str:
    """Return the part of a hybrid pattern that is the model's own; prediction modules follow behind slashes."""
    return str(pattern).strip("'\"").partition("/")[0]


def pattern_length(options: Options) -> int | None:
    """Return the layers that --hybrid-layer-pattern names, which then says their number; None without it."""
    written = options.get("hybrid-layer-pattern")
    if written is None:
        return 1 if "hybrid-layer-pattern" in options.values else None  # only a run knows it, which is recorded
    return len(of_model(written).replace("|", "")) or None


def _prediction_depths(options: Options) -> int:
    """Return the prediction modules that follow a hybrid pattern, each behind a slash.

    Source: megatron/training/arguments.py, which infers --mtp-num-layers from them.
    """
    written = str(options.get("hybrid-layer-pattern") or "").strip("'\"")
    return len([module for module in written.split("/")[1:] if module])


def prediction_modules(options: Options) -> list[str]:
    """Return a note where a hybrid pattern has layers of prediction modules."""
    modules = str(options.get("hybrid-layer-pattern") or "").strip("'\"").partition("/")[2]
    if not modules:
        return []
    name = options.named("hybrid-layer-pattern")
    return [f"{name}: prediction modules ({modules}) are predicted as the model's last layer"]


def _latent_attention(options: Options) -> dict[str, Any]:
    sizes = {
        "kv_lora_rank": options.whole("kv-lora-rank", 32),
        "qk_nope_head_dim": options.whole("qk-head-dim", 128),
        "qk_rope_head_dim": options.whole("qk-pos-emb-head-dim", 64),
        "v_head_dim": options.whole("v-head-dim", 128),
    }
    queries = options.optional_whole("q-lora-rank")
    if not options.switch("multi-latent-attention"):
        return {}
    return {"latent_attention": ({} if queries is None else {"q_lora_rank": queries}) | sizes}


def _hybrid(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of Mamba-2 layers among others.

    Raises:
        ConfigError: the pattern has a letter that is not known, or does not name every layer.
    """
    is_hybrid = options.switch("is-hybrid-model")
    head_dim = options.whole("mamba-head-dim", 64)
    heads = options.optional_whole("mamba-num-heads") or max(1, EXPANSION * model["hidden_size"] // head_dim)
    sizes = {
        "num_heads": heads,
        "head_dim": head_dim,
        "state_size": options.whole("mamba-state-dim", 128),
        "num_groups": options.whole("mamba-num-groups", 8),
        "chunk_size": options.whole("mamba-chunk-size", CHUNK),
    }
    key = "hybrid-layer-pattern" if options.has("hybrid-layer-pattern") else "hybrid-override-pattern"
    written = options.get(key)
    shares = options.real("hybrid-attention-ratio", 0.0), options.real("hybrid-mlp-ratio", 0.0)
    if written is None and any(shares):
        written = allocated(model["num_layers"], *shares)
    if written is None and is_hybrid:
        raise options.error("is-hybrid-model", "its layers are not named; write --hybrid-override-pattern")
    if written is None:
        return {}
    pattern = of_model(written).replace("|", "")
    if not set(pattern) <= LETTERS.keys() or len(pattern) != model["num_layers"]:
        raise options.error(key, f"expected {model['num_layers']} letters of {' '.join(LETTERS)}, one a layer")
    mixers, ffns = zip(*(LETTERS[letter] for letter in pattern), strict=True)
    return {"layer_types": list(mixers), "ffn_types": list(ffns)} | ({"mamba2": sizes} if "M" in pattern else {})


def allocated(num_layers: int, attention: float, ffn: float) -> str:
    """Return the hybrid pattern of shares of attention and FFN layers: both spread evenly between those of Mamba-2.

    Args:
        num_layers: of the model.
        attention: share of attention layers, which leave as many Mamba-2 layers in front of the first as between two.
        ffn: share of FFN layers, which take the place of Mamba-2 layers, the last ones of every run of them.

    Source: megatron/core/ssm/mamba_hybrid_layer_allocation.py.
    """
    letters = _spread(["M"] * num_layers, round(num_layers * attention), "*", gaps_outside=1)
    return "".join(_spread(letters, round(num_layers * ffn), "-", gaps_outside=0))


def _spread(letters: list[str], count: int, letter: str, gaps_outside: int) -> list[str]:
    """Return a pattern of which ``count`` Mamba-2 layers are replaced by a letter, as evenly as they divide."""
    if not count:
        return letters
    gap = (letters.count("M") - count) / (count + gaps_outside)
    left, spread = gap, []
    for present in letters:
        if present != "M":
            spread.append(present)
        elif left < 0.5:
            spread.append(letter)
            left += gap
        else:
            spread.append(present)
            left -= 1
    return spread


def _windows(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Return the layers that have the window: a period, of which the last has none, or a list of ones and zeros.

    Raises:
        ConfigError: the list does not name every layer.
    """
    written = options.get("window-attn-skip-freq")
    if written is None or "sliding_window" not in model:
        return {}
    count, text = model["num_layers"], str(written).strip("'\" ")
    if text.isdigit():
        pattern: list[int] | None = [0 if (layer + 1) % int(text) == 0 else 1 for layer in range(count)]
    else:
        pattern = layer_pattern(text, count)
    if pattern is None or len(pattern) != count:
        raise options.error("window-attn-skip-freq", f"expected a period, or a list of {count} zeros and ones")
    return {"layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in pattern]}


def rotary_layers(options: Options, count: int) -> dict[str, Any]:
    """Return the layers whose attention is rotated: a period, of which the last is not, or a list of ones and zeros.

    Raises:
        ConfigError: the list does not name every layer.
    """
    written = options.get("no-rope-freq")
    if written is None:
        return {}
    text = str(written).strip("'\" ")
    if text.isdigit():
        period = int(text)
        return {"rotary_layers": [True] * (period - 1) + [False]} if 1 < period <= count else {}
    pattern = layer_pattern(text, count)
    if pattern is None or len(pattern) != count:
        raise options.error("no-rope-freq", f"expected a period, or a list of {count} zeros and ones")
    return {"rotary_layers": [not skips for skips in pattern]} if any(pattern) else {}


def _sinks(options: Options) -> dict[str, bool]:
    kind = options.text("softmax-type", "vanilla", ("vanilla", "learnable"))
    return {"attention_sinks": True} if kind == "learnable" else {}
