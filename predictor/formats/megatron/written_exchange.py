"""The arguments of Megatron-LM on how tokens reach their experts, and on parts of a layer in CUDA graphs.

Source of names and rules: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_moe_args, validate_args).
"""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import RunConfig
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.run_choices import GraphModule, Recompute
from predictor.core.workload.switches import Biases
from predictor.formats.megatron.releases import Release

DISPATCHERS = {ExpertDispatcher.ALL_TO_ALL: "alltoall", ExpertDispatcher.ALL_GATHER: "allgather"}


BACKENDS_SINCE = "0.16"  # of the flexible dispatcher; before, a switch names the only one
MODULES_SINCE = "0.18"  # CUDA graphs of a whole iteration are an implementation, and modules have a name of their own


def experts_arguments(config: RunConfig, series: Release) -> list[str]:
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
    is_older = dispatcher is ExpertDispatcher.DEEPEP and not series.has(BACKENDS_SINCE)
    backend = "--moe-enable-deepep" if is_older else f"--moe-flex-dispatcher-backend {dispatcher}"
    # The only precision in which these dispatchers take probabilities.
    return [*words, "--moe-token-dispatcher-type flex", backend, "--moe-router-dtype fp32"]


def graph_arguments(config: RunConfig, series: Release) -> list[str]:
    """Return the arguments of CUDA graphs.

    Raises:
        ConfigError: Megatron-LM refuses these modules together, or graphs beside full recomputation.
    """
    training, graphs = config.training, config.training.cuda_graphs
    if graphs is False:
        return []
    if training.recompute is Recompute.FULL:
        raise ConfigError("training.cuda_graphs is given and recompute is full; Megatron-LM has graphs without it only")
    if isinstance(graphs, bool):
        # A graph of an iteration cannot stop for a check, which validate_args asks to switch off.
        unchecked = "--no-check-for-nan-in-loss-and-grad"
        if series.has(MODULES_SINCE):
            return ["--cuda-graph-impl full_iteration", unchecked]
        # Core 0.17 asks for it beside experts of several ranks; it is about inference.
        pads = config.parallelism.expert_parallel_size > 1 and series.has("0.17")
        padded = ["--moe-pad-experts-for-cuda-graph-inference"] if pads else []
        return ["--cuda-graph-impl local", "--cuda-graph-scope full_iteration", unchecked, *padded]
    if GraphModule.MOE_PREPROCESS in graphs and GraphModule.MOE_ROUTER not in graphs:
        raise ConfigError("training.cuda_graphs has moe_preprocess; Megatron-LM has it beside moe_router only")
    if GraphModule.MOE in graphs and GraphModule.MOE_ROUTER in graphs:
        raise ConfigError("training.cuda_graphs has moe and moe_router; in Megatron-LM the first holds the second")
    name = "--cuda-graph-modules" if series.has(MODULES_SINCE) else "--cuda-graph-scope"
    return ["--cuda-graph-impl transformer_engine", f"{name} {' '.join(graphs)}", "--te-rng-tracker"]
