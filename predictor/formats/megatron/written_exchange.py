"""The arguments of Megatron-LM on how tokens reach their experts, and on parts of a layer in CUDA graphs.

Source of names and rules: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_moe_args, validate_args).
"""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.run_choices import GraphModule, Recompute
from predictor.core.workload.switches import Biases

DISPATCHERS = {ExpertDispatcher.ALL_TO_ALL: "alltoall", ExpertDispatcher.ALL_GATHER: "allgather"}


def experts_arguments(config: RunConfig) -> list[str]:
    """Return the arguments on how experts run: their dispatcher and the kernels of their products."""
    if config.model.moe is None:
        return []
    split = config.parallelism.expert_tensor_parallel_size or config.parallelism.tensor_parallel_size
    if split > 1 and config.model.biases in (Biases.ALL, Biases.FFN):
        raise ConfigError(
            f"model.biases is {config.model.biases} and experts are split over {split} ranks; Megatron-LM's experts "
            "have biases with expert_tensor_parallel_size: 1 only"
        )
    # A kernel for the products of several experts has no other precision.
    words = ["--moe-grouped-gemm"] if config.training.precision == "bf16" else []
    if config.training.fused_experts:
        words.append("--use-transformer-engine-op-fuser")
    dispatcher = config.parallelism.expert_dispatcher
    if dispatcher in DISPATCHERS:
        return [*words, f"--moe-token-dispatcher-type {DISPATCHERS[dispatcher]}"]
    words += ["--moe-token-dispatcher-type flex", f"--moe-flex-dispatcher-backend {dispatcher}"]
    return [*words, "--moe-router-dtype fp32"]  # the only one in which these dispatchers take probabilities


def graph_arguments(training: TrainingSection) -> list[str]:
    """Return the arguments of CUDA graphs.

    Raises:
        ConfigError: Megatron-LM refuses these modules together, or graphs beside full recomputation.
    """
    graphs = training.cuda_graphs
    if graphs is False:
        return []
    if training.recompute is Recompute.FULL:
        raise ConfigError("training.cuda_graphs is given and recompute is full; Megatron-LM has graphs without it only")
    if isinstance(graphs, bool):
        # A graph of an iteration cannot stop for a check, which validate_args asks to switch off.
        return ["--cuda-graph-impl local", "--cuda-graph-scope full_iteration", "--no-check-for-nan-in-loss-and-grad"]
    if GraphModule.MOE_PREPROCESS in graphs and GraphModule.MOE_ROUTER not in graphs:
        raise ConfigError("training.cuda_graphs has moe_preprocess; Megatron-LM has it beside moe_router only")
    if GraphModule.MOE in graphs and GraphModule.MOE_ROUTER in graphs:
        raise ConfigError("training.cuda_graphs has moe and moe_router; in Megatron-LM the first holds the second")
    return ["--cuda-graph-impl transformer_engine", f"--cuda-graph-scope {' '.join(graphs)}", "--te-rng-tracker"]
