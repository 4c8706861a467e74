"""Programs that shard a model of their own with torch's FSDP and run it in plain PyTorch: what they all do."""

from __future__ import annotations

from typing import Any

from predictor.core.schema.presets import preset
from predictor.core.workload.frameworks import FSDP2, TORCH_ATTENTION

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
# CPUOffload: weights, gradients and states lie on the host, whose Adam has the one thread that launchers leave a rank.
# Source: torch/distributed/fsdp/api.py, CPUOffload; torch/distributed/run.py (OMP_NUM_THREADS).
ON_HOST = {"offload_parameters": True, "offload_optimizer": 1.0, "host_threads": 1}


def fsdp_section(precision: str, pure: bool, reshards: bool = True) -> dict[str, Any]:
    """Return the keys of ``parallelism`` of weights sharded over all replicas.

    Args:
        precision: in which weights are gathered.
        pure: weights, gradients and states are in it as well; otherwise in fp32.
        reshards: gathered weights are freed behind the forward pass.
    """
    keys = FSDP2.section("parallelism") | {"fp32_gradients": not pure and precision != "fp32"}
    keys |= {"fp32_parameters": True} if not pure and precision != "fp32" else {}
    return keys | ({} if reshards else {"reshard_after_forward": False})


def eager(precision: str, pure: bool, compiled: bool) -> dict[str, Any]:
    """Return the keys of ``training`` of a program in plain PyTorch."""
    keys: dict[str, Any] = {"framework": FRAMEWORK, "precision": precision, "attention_kernel": str(TORCH_ATTENTION)}
    keys |= {"compiled": True} if compiled else {}
    return keys | ({"optimizer_state_bytes": STATES_16} if pure and precision != "fp32" else {})


def sizes_of(name: str) -> dict[str, Any]:
    """Return the sizes of a preset without its sequence length, which is that of another training."""
    return {key: value for key, value in preset(name).items() if key != "sequence_length"}
