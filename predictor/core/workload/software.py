"""Frameworks, and their own code's effects that no other key describes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from predictor.core.base.errors import nearest


class Framework(StrEnum):
    """Software whose steps were published, or whose configurations are read; ``pytorch``: a program of one's own."""

    DEEPSPEED = "deepspeed"
    FMS_FSDP = "fms-fsdp"
    GPT_NEOX = "gpt-neox"
    INTERNEVO = "internevo"
    LIGHTNING = "lightning"
    LITGPT = "litgpt"
    LLM_FOUNDRY = "llm-foundry"
    MEGATRON_BRIDGE = "megatron-bridge"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"
    MEGATRON_LM = "megatron-lm"
    NEMO = "nemo"
    PYTORCH = "pytorch"
    TORCHTITAN = "torchtitan"
    TRANSFORMERS = "transformers"


# Other names of users for the software that runs: tools on top of it, and its parts.
ALIASES = {
    "megatron": Framework.MEGATRON_LM,  # as search's --framework spells it
    "composer": Framework.LLM_FOUNDRY,
    "pytorch-lightning": Framework.LIGHTNING,
    **dict.fromkeys(("accelerate", "axolotl", "huggingface", "llama-factory", "peft", "trl"), Framework.TRANSFORMERS),
}


def framework_named(value: object) -> Framework | None:
    """Return the software of a name; pydantic's message would not say which is meant.

    Raises:
        ValueError: it is not known.
    """
    if value is None:
        return None
    if value in list(Framework):
        return Framework(str(value))
    if isinstance(value, str) and value in ALIASES:
        return ALIASES[value]
    raise ValueError(
        f"it is not known.{nearest(str(value).lower(), Framework)} Known: {', '.join(Framework)}; or leave it out"
    )


# Their tuned benchmarks are published, so that a run of theirs is one unless it says otherwise.
TUNED = frozenset(
    {
        Framework.FMS_FSDP,
        Framework.GPT_NEOX,
        Framework.INTERNEVO,
        Framework.LLM_FOUNDRY,
        Framework.MEGATRON_BRIDGE,
        Framework.MEGATRON_DEEPSPEED,
        Framework.MEGATRON_LM,
        Framework.NEMO,
        Framework.TORCHTITAN,
    }
)
# They wrap models in torch's FullyShardedDataParallel (FSDP1): Composer is llm-foundry's trainer, accelerate (its
# fsdp_version 1) that of transformers.
ON_FSDP1 = frozenset(
    {Framework.FMS_FSDP, Framework.LIGHTNING, Framework.LITGPT, Framework.LLM_FOUNDRY, Framework.TRANSFORMERS}
)
# They train on Megatron-LM's core, with Transformer Engine's modules by default.
ON_MEGATRON_CORE = frozenset({Framework.MEGATRON_BRIDGE, Framework.MEGATRON_LM, Framework.NEMO})
# They train with DeepSpeed's engine.
ON_DEEPSPEED = frozenset({Framework.DEEPSPEED, Framework.GPT_NEOX, Framework.MEGATRON_DEEPSPEED})
# These do where states are shared out below stage 3, which FSDP does not know, or updated by the CPU.
MAY_TAKE_DEEPSPEED = frozenset({Framework.LIGHTNING, Framework.TRANSFORMERS})
WITH_DEEPSPEED = ON_DEEPSPEED | MAY_TAKE_DEEPSPEED
# Liger Kernel's replacements in a model of the hub, by its own names (``liger_kernel_config`` of Hugging Face's
# TrainingArguments; axolotl writes liger_rope and so on, liger_glu_activation for swiglu and geglu): the keys of
# ``model`` that each sets. rms_norm takes the place of an RMSNorm alone; LayerNorms are one kernel anyway. The models
# it knows have neither dropout nor biases behind an FFN's non-linearity, which fused_side_kernels would fuse too.
# Source: linkedin/Liger-Kernel, src/liger_kernel/transformers/monkey_patch.py, apply_liger_kernel_to_llama;
# axolotl, src/axolotl/integrations/liger/args.py.
LIGER: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rope": {"fused_rope": True},
        "rms_norm": {"normalization": "fused_rms_norm"},
        "swiglu": {"fused_side_kernels": True},
        "geglu": {"fused_side_kernels": True},
        "layer_norm": {},
        "cross_entropy": {"loss": "fused"},
        "fused_linear_cross_entropy": {"loss": "fused_linear"},
    }
)
# Those of ``use_liger_kernel: true`` where the model has such a part.
LIGER_BY_DEFAULT = ("rope", "rms_norm", "swiglu", "geglu", "layer_norm", "fused_linear_cross_entropy")
