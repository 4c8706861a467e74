"""Kernels that a Trainer's run replaces: attention, Liger's, Unsloth's, torch.compile.

Source: huggingface/transformers, src/transformers/integrations/sdpa_attention.py and liger.py.
"""

from __future__ import annotations

from typing import Any

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
FUSED_LOSSES = ("use_liger_kernel", "use_liger", "liger_fused_linear_cross_entropy", "cut_cross_entropy")


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


def kernels_of(arguments: Arguments, model: dict[str, Any], training: dict[str, Any]) -> None:
    """Take in torch.compile, and note kernels that a prediction leaves out."""
    if arguments.switch("torch_compile"):
        training["compiled"] = True
    fused_loss(arguments, model)


def fused_loss(arguments: Arguments, model: dict[str, Any]) -> None:
    """Note a loss that is fused with the output projection: the one place where it is taken or left out."""
    named = [arguments.own(key) for key in FUSED_LOSSES if arguments.has(key) and arguments.switch(key)]
    for key in FUSED_LOSSES:
        arguments.value(key)
    if named:
        arguments.note(
            f"{', '.join(named)}: predicted without, with torch's cross entropy ({model.get('loss')}), which takes "
            "more time and the memory of the logits"
        )
