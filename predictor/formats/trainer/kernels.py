"""Kernels that a Trainer's run replaces: attention, Liger's, Unsloth's, torch.compile.

Source: huggingface/transformers, src/transformers/integrations/sdpa_attention.py and liger.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from predictor.core.workload.software import LIGER, LIGER_BY_DEFAULT
from predictor.formats.trainer.arguments import Arguments

# Implementations of exact attention that run as one kernel.
FLASH = (
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention",
    "fa2",
    "fa3",
    "kernels-community/flash-attn",
    "kernels-community/flash-attn2",
    "kernels-community/flash-attn3",
    "kernels-community/vllm-flash-attn3",
)
SDPA, EAGER, XFORMERS = "sdpa", "eager", "xformers"
KERNELS = {"flash_attention_3": "flash_3", "fa3": "flash_3"}
KERNELS |= {f"kernels-community/{name}": "flash_3" for name in ("flash-attn3", "vllm-flash-attn3")}
# Switches of all that Liger replaces by default, and of single parts (axolotl).
WHOLE = ("use_liger_kernel", "use_liger")
ONE_BY_ONE = {
    "liger_rope": ("rope",),
    "liger_rms_norm": ("rms_norm",),
    "liger_glu_activation": ("swiglu", "geglu"),
    "liger_layer_norm": ("layer_norm",),
    "liger_cross_entropy": ("cross_entropy",),
    "liger_fused_linear_cross_entropy": ("fused_linear_cross_entropy",),
}
Derived = dict[str, Callable[[dict[str, Any]], Any]]


def attention_of(arguments: Arguments, training: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of ``model`` on attention, and put its kernel under ``training``."""
    written = arguments.value("attn_implementation")
    if arguments.switch("use_flash_attn") or arguments.switch("use_flash_attention_2"):
        written = written or "flash_attention_2"
    name = str(written or SDPA)
    if name in FLASH:
        if name in KERNELS:
            training["attention_kernel"] = KERNELS[name]
        return {}
    if name == SDPA:
        if not arguments.switch("packing") and training.get("micro_batch_size", 1) > 1:
            arguments.note(
                "attention of sdpa is predicted without padding; set training.attention_kernel to memory_efficient "
                "where a batch is padded"
            )
        return {}
    if name == XFORMERS:
        training["attention_kernel"] = "memory_efficient"
        return {}
    if name == EAGER:
        return {"attention": "unfused"}
    arguments.broken("attn_implementation", "it is not modelled; write flash_attention_2, sdpa or eager")
    return {}


def kernels_of(arguments: Arguments, model: dict[str, Any], training: dict[str, Any]) -> Derived:
    """Take in torch.compile, and a loss that is fused with the output projection; return what Liger's kernels replace.

    What they replace depends on the model, and gives way to what a configuration says itself.
    """
    if arguments.switch("torch_compile"):
        training["compiled"] = True
    parts = _parts(arguments)
    losses = [LIGER[part]["loss"] for part in parts if "loss" in LIGER[part]]
    if arguments.switch("cut_cross_entropy"):
        arguments.note("cut_cross_entropy: predicted as Liger's loss, which is fused with the output projection too")
        losses.append(LIGER["fused_linear_cross_entropy"]["loss"])
    if losses and "loss" in model:
        model["loss"] = losses[-1]
    keys = {key: value for part in parts for key, value in LIGER[part].items() if key != "loss"}
    return {f"model.{key}": _where_it_is(key, value) for key, value in keys.items()}


def _parts(arguments: Arguments) -> list[str]:
    """Return the parts of a model that Liger replaces, by its own names."""
    parts = dict.fromkeys(LIGER, False)
    if any(arguments.switch(key) for key in WHOLE):
        parts |= dict.fromkeys(LIGER_BY_DEFAULT, True)
        chosen = arguments.section("liger_kernel_config")
        parts |= {key: value for key, value in chosen.items() if key in parts and isinstance(value, bool)}
    for key, names in ONE_BY_ONE.items():
        if arguments.switch(key):
            parts |= dict.fromkeys(names, True)
    return [part for part, is_replaced in parts.items() if is_replaced]


def _where_it_is(key: str, value: object) -> Callable[[dict[str, Any]], Any]:
    """Return the function that finds whether a model has what a kernel of Liger replaces."""

    def find(content: dict[str, Any]) -> Any:
        model = content.get("model", {})
        rotates = model.get("rotary_fraction", 1.0) and model.get("positions", "rotary") == "rotary"
        is_there = {"fused_rope": rotates, "fused_side_kernels": model.get("activation") in ("swiglu", "geglu")}
        return value if is_there.get(key, True) else None

    return find
