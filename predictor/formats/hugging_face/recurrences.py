"""Recurrent layers of a config.json: their linear layers, other parameters, and what their kernels move per token.

``streamed`` counts the elements that each element-wise kernel reads and writes forward, in the order of the class's
forward pass. Source: transformers, modeling files of the families that the functions name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from predictor.formats.hugging_face.config import Config

TIMED = "the recurrence of its layers is timed by the bytes that it moves"


def recurrence(config: Config) -> dict[str, Any]:
    """Return the section ``recurrence`` of a family that has such layers.

    Raises:
        ConfigError: a size is missing, or a variant is not modelled.
    """
    config.notes.append(TIMED)
    return RECURRENCES[str(config.family.recurrence)](config)


def _section(projections: list[list[int]], vectors: int, streamed: int) -> dict[str, Any]:
    return {"projections": projections, "vectors": vectors, "streamed": streamed}


def _mamba(config: Config) -> dict[str, Any]:
    """Return Mamba's: convolution, steps, selective scan with gate. Jamba norms steps, B and C."""
    for key in ("mamba_proj_bias", "use_bias"):
        if config.switch(key):
            raise config.error(key, "biases of a Mamba layer's projections are not modelled")
    hidden, states, kernel = config.whole("hidden_size"), config.whole("mamba_d_state"), config.whole("mamba_d_conv")
    inner = config.optional("mamba_inner") or config.whole("mamba_expand") * hidden
    rank = ceil(hidden / 16) if config.value("mamba_dt_rank") == "auto" else config.whole("mamba_dt_rank")
    vectors = inner * (states + 2 + kernel + config.switch("mamba_conv_bias"))
    vectors += rank + 2 * states if config.model_type == "jamba" else 0
    projections = [[hidden, 2 * inner], [inner, rank + 2 * states], [rank, inner], [inner, hidden]]
    return _section(projections, vectors, 2 * inner + 4 * inner + 2 * states)


def _short_convolution(config: Config) -> dict[str, Any]:
    """Return LFM2's: gate, convolution, gate."""
    if config.switch("conv_bias"):
        raise config.error("conv_bias", "biases of its convolutions are not modelled")
    hidden = config.whole("hidden_size")
    return _section([[hidden, 3 * hidden], [hidden, hidden]], hidden * config.whole("conv_L_cache"), 8 * hidden)


def _rg_lru(config: Config) -> dict[str, Any]:
    """Return RecurrentGemma's: GELU, convolution, gates in blocks of heads, recurrence, product."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    width = config.optional("lru_width") or hidden
    block = width // heads
    projections = [[hidden, width], [hidden, width], [block, width], [block, width], [width, hidden]]
    vectors = 2 * width + hidden + width * (config.whole("conv1d_width") + 1) + 3 * width
    return _section(projections, vectors, (2 + 2 + 5 + 3) * width)


def _rwkv(config: Config) -> dict[str, Any]:
    """Return RWKV-4's: shifted mixes, the recurrence in fp32, a gate; and the gate of its FFN."""
    hidden = config.whole("hidden_size")
    width = config.optional("attention_hidden_size") or hidden
    projections = [[hidden, width], [hidden, width], [hidden, width], [hidden, hidden], [width, hidden]]
    vectors = 2 * width + 3 * hidden + 2 * hidden
    return _section(projections, vectors, 9 * hidden + 2 * 4 * width + 3 * width + 9 * hidden)


def _mlstm(config: Config) -> dict[str, Any]:
    """Return xLSTM's matrix memory: chunks of keys and values, norm, gate."""
    if config.switch("use_bias"):
        raise config.error("use_bias", "biases of its projections are not modelled")
    hidden, heads = config.whole("hidden_size"), config.whole("num_heads")
    keys, values = int(hidden * config.real("qk_dim_factor")), int(hidden * config.real("v_dim_factor"))
    projections = [[hidden, keys], [hidden, keys], [hidden, values], [hidden, values], [hidden, heads], [hidden, heads]]
    return _section([*projections, [values, hidden]], 2 * heads + values, 2 * keys + (2 + 2 + 3) * values)


RECURRENCES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "mamba": _mamba,
    "mlstm": _mlstm,
    "rg_lru": _rg_lru,
    "rwkv": _rwkv,
    "short_convolution": _short_convolution,
}
