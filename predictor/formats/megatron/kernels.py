"""Kernels and positions that arguments of Megatron-LM ask for.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

from typing import Any

from predictor.formats.megatron.options import Options


def positions(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the keys of how tokens know where they stand."""
    kind = options.text("position-embedding-type", "learned_absolute")
    longest = options.optional_whole("max-position-embeddings")
    share = options.real("rotary-percent", 1.0)
    if kind in ("rope", "rotary") or options.switch("use-rotary-position-embeddings"):
        return {"rotary_fraction": share}
    if kind in ("none", "alibi"):
        return {"positions": kind, "rotary_fraction": 0.0}
    if kind == "yarn":
        return {"rotary_fraction": share}  # rope with other angles
    if kind != "learned_absolute":
        raise options.error("position-embedding-type", "expected learned_absolute, rope, yarn, alibi or none")
    return {"rotary_fraction": 0.0} | ({} if longest is None else {"num_position_embeddings": longest})


def kernels(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the keys that name kernels; Transformer Engine is the default from core release 0.6 on."""
    if not any(options.has(key) for key in ("transformer-impl", "use-flash-attn", "attention-backend")):
        notes.append("--transformer-impl is not in the file: predicted with transformer_engine and flash attention")
    is_local = options.text("transformer-impl", "transformer_engine", ("local", "transformer_engine")) == "local"
    backend = options.text("attention-backend", "auto", ("auto", "flash", "fused", "unfused", "local"))
    fuses_softmax = not options.switch("no-masked-softmax-fusion")
    if options.switch("use-flash-attn") or not (is_local or backend in ("unfused", "local")):
        attention = "flash"
    else:
        attention = "fused_softmax" if fuses_softmax else "unfused"
    is_rms = options.text("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "RMSNorm"
    norm = ("rms_norm" if is_local else "fused_rms_norm") if is_rms else "layer_norm"
    return {
        "attention": attention,
        "normalization": norm,
        "fused_side_kernels": _fuses_side_kernels(options, notes),
        **_loss(options),
        **_rope_kernel(options, is_local),
    }


def _loss(options: Options) -> dict[str, str]:
    """Return the key of a fused loss: Megatron-LM's own compiled pieces (its default), or Transformer Engine's."""
    implementation = options.text("cross-entropy-fusion-impl", "native", ("native", "te"))
    if not options.switch("cross-entropy-loss-fusion"):
        return {}
    return {"loss": "fused_native" if implementation == "native" else "fused"}


def _rope_kernel(options: Options, is_local: bool) -> dict[str, bool]:
    is_off = options.switch("no-rope-fusion") or options.switch("rotary-interleaved")
    return {} if is_off or is_local or not positions(options, [])["rotary_fraction"] else {"fused_rope": True}


def _fuses_side_kernels(options: Options, notes: list[str]) -> bool:
    dropout = not options.switch("no-bias-dropout-fusion")
    name = "no-bias-swiglu-fusion" if options.switch("swiglu") else "no-bias-gelu-fusion"
    activation = not options.switch(name)
    options.used |= {"no-bias-swiglu-fusion", "no-bias-gelu-fusion"}
    if dropout != activation:
        notes.append(f"--{name} and --no-bias-dropout-fusion differ: side kernels are predicted unfused")
    return dropout and activation
