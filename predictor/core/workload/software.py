"""The software that trains, where its own code does what no other key says."""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """Software whose steps were published, or whose configurations are read; ``pytorch``: a program of one's own."""

    DEEPSPEED = "deepspeed"
    FMS_FSDP = "fms-fsdp"
    GPT_NEOX = "gpt-neox"
    INTERNEVO = "internevo"
    LLM_FOUNDRY = "llm-foundry"
    MEGATRON_BRIDGE = "megatron-bridge"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"
    MEGATRON_LM = "megatron-lm"
    NEMO = "nemo"
    PYTORCH = "pytorch"
    TORCHTITAN = "torchtitan"


# fms-fsdp and Composer, llm-foundry's trainer, wrap models in torch's FullyShardedDataParallel (FSDP1).
ON_FSDP1 = frozenset({Framework.FMS_FSDP, Framework.LLM_FOUNDRY})
# They train with DeepSpeed's engine.
ON_DEEPSPEED = frozenset({Framework.DEEPSPEED, Framework.GPT_NEOX, Framework.MEGATRON_DEEPSPEED})
