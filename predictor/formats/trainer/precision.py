"""Precision and optimizer of a Trainer.

Source: huggingface/transformers, src/transformers/training_args.py (bf16, fp16, tf32, optim), trainer_optimizer.py;
bitsandbytes, bitsandbytes/functional.py (create_dynamic_map, blocks of 256).
"""

from __future__ import annotations

from typing import Any

from predictor.formats.trainer.arguments import Arguments

HALF, BRAIN, FULL = "fp16", "bf16", "fp32"
NAMES = {"bfloat16": BRAIN, "bf16": BRAIN, "float16": HALF, "fp16": HALF, "half": HALF, "float32": FULL, "fp32": FULL}
OF_FILE = "auto"  # the precision that the model's file is in
DTYPES = ("torch_dtype", "dtype")
# AdamW whose moments are in the weights' own precision; with weights in 16 bits no fp32 copy of them exists.
ADAMS = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf", "adamw", "adam", "adamw_anyprecision")
# Bytes of state per parameter of optimizers that hold both moments in fewer bits. Their scales of a block of 256 are
# 4 bytes for each moment.
STATE_BYTES = {
    "adamw_bnb_8bit": 2 + 8 / 256,
    "adamw_8bit": 2 + 8 / 256,
    "adamw_torch_8bit": 2 + 8 / 256,
    "ao_adamw_8bit": 2 + 8 / 256,
    "ao_adamw_fp8": 2 + 8 / 256,
    "paged_adamw_8bit": 2 + 8 / 256,
    "adamw_torch_4bit": 1 + 8 / 128,  # torchao: blocks of 128
    "ao_adamw_4bit": 1 + 8 / 128,
}
MUON = "muon"
PAGED = ("paged_adamw_32bit", "paged_adamw")
MOMENTS_16_BITS, MOMENTS_32_BITS = 4, 8


def precision_of(arguments: Arguments, mixed: object) -> tuple[dict[str, Any], bool]:
    """Return the keys of ``training`` on precision, and whether weights are in fp32 beside computing in 16 bits.

    Args:
        arguments: of the run.
        mixed: what accelerate's launcher says of mixed precision, where the arguments say nothing.
    """
    if any(arguments.is_open(key) for key in ("bf16", "fp16")):
        arguments.unsaid["training.precision"] = f"{arguments.where}: bf16 and fp16 come from outside"
        arguments.pass_over(("bf16", "fp16"))
        return {}, False
    is_brain, is_half = arguments.switch("bf16"), arguments.switch("fp16")
    if not any(arguments.has(key) for key in ("bf16", "fp16")) and mixed is None:
        arguments.taken["bf16"] = is_brain
    if str(arguments.value("fp16")) == OF_FILE or (is_brain and is_half and arguments.value("bf16") == OF_FILE):
        is_half = False
    if is_brain and is_half:
        arguments.broken("fp16", "bf16 is true as well; set one of them to false")
    weights = _weights(arguments)
    if not any(arguments.has(key) for key in ("bf16", "fp16")) and mixed in (BRAIN, HALF):
        is_brain, is_half = mixed == BRAIN, mixed == HALF
    if is_brain or is_half:  # gradients are scaled in fp32 alone, so weights beside fp16 are in it
        return {"precision": BRAIN if is_brain else HALF}, weights == FULL or (is_half and weights is None)
    if weights in (BRAIN, HALF):  # the model itself computes in 16 bits, without torch.autocast
        return {"precision": weights}, False
    return {"precision": FULL, **({"tf32": True} if arguments.switch("tf32") else {})}, False


def _weights(arguments: Arguments) -> str | None:
    """Return the precision that weights are loaded in; None where the model's file decides, or nothing is said."""
    for key in DTYPES:
        written = arguments.value(key)
        if written is None:
            continue
        name = str(written).removeprefix("torch.")
        if name == OF_FILE:
            return None
        if name not in NAMES:
            arguments.broken(key, f"expected {OF_FILE}, {', '.join(NAMES)}")
        return NAMES.get(name)
    return None


def optimizer_of(arguments: Arguments, adapts: bool, weights_in_fp32: bool, sharded: bool) -> dict[str, Any]:
    """Return the key of ``training`` on the optimizer's states.

    Args:
        arguments: of the run.
        adapts: adapters train alone, whose optimizer is small.
        weights_in_fp32: weights are in fp32 beside computing in 16 bits.
        sharded: FSDP or DeepSpeed keeps the optimizer's own weights in fp32.
    """
    written = arguments.value("optim", "adamw_torch")
    name = str(written).rpartition(".")[2].lower()
    if name in STATE_BYTES:
        arguments.note(f"optim {name}: its states are counted in fewer bits; its time is AdamW's")
        if name.startswith("paged"):
            arguments.note(f"optim {name}: its states are predicted to stay on the GPU")
        if adapts:
            return {}
        return {"optimizer_state_bytes": STATE_BYTES[name] + (4.0 if weights_in_fp32 or sharded else 0.0)}
    if name in PAGED:
        arguments.note(f"optim {name}: its states are predicted to stay on the GPU")
        return {}
    if name == MUON and not adapts:  # of weights in 16 bits its momentum is too
        return {"optimizer": MUON} | ({} if sharded or weights_in_fp32 else {"optimizer_state_bytes": 2.0})
    if name not in ADAMS:
        if adapts:
            arguments.note(f"optim {name}: the optimizer of the adapters is predicted as AdamW")
            return {}
        arguments.broken(
            "optim", f"modelled are AdamW, in 32, 8 and 4 bits, and Muon; write adamw_torch or muon, not {name}"
        )
        return {}
    if adapts or sharded or weights_in_fp32:
        return {}
    return {"optimizer_state_bytes": float(MOMENTS_16_BITS)}
