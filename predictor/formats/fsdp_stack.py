"""Programs that shard a model of their own with torch's FSDP and run it in plain PyTorch: what they all do."""

from __future__ import annotations

from typing import Any

from predictor.core.schema.presets import preset

FRAMEWORK = "pytorch"  # nothing is taken for granted: every key is said
# Bytes of optimizer states per parameter whose weights are in 16 bits, without fp32 weights beside them.
STATES_16 = 4
# Of torch's ShardingStrategy, in its order: ZeRO stage, and whether gathered weights are freed behind the forward pass.
SHARDING = {
    "FULL_SHARD": (3, True),
    "SHARD_GRAD_OP": (3, False),
    "NO_SHARD": (0, True),
    "HYBRID_SHARD": (3, True),
    "_HYBRID_SHARD_ZERO2": (3, False),
}


def sizes_of(name: str) -> dict[str, Any]:
    """Return the sizes of a preset without its sequence length, which is that of another training."""
    return {key: value for key, value in preset(name).items() if key != "sequence_length"}
