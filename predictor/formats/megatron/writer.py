"""Write a configuration as a shell script that starts Megatron-LM's pretrain_gpt.py.

Names, and what a release accepts: releases.py, to which every script is held before it is returned. What no prediction
depends on and no configuration says (data, tokenizer, learning rate, iterations) are variables of the environment
without which the script stops.
"""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.plan.to_run import micro_batches
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.layout import RANK_ORDER
from predictor.core.workload.run_choices import GemmRecipe, Recompute
from predictor.formats.megatron.releases import Release, check, release
from predictor.formats.megatron.written_exchange import experts_arguments, graph_arguments
from predictor.formats.megatron.written_layers import hybrid_program, is_hybrid
from predictor.formats.megatron.written_model import model_arguments
from predictor.formats.megatron.written_stages import stage_arguments

RECIPES = {
    GemmRecipe.FP8_DELAYED: ("--fp8-format hybrid", "--fp8-recipe delayed"),
    GemmRecipe.FP8_TENSORWISE: ("--fp8-format hybrid", "--fp8-recipe tensorwise"),
    GemmRecipe.FP8_BLOCKWISE: ("--fp8-format e4m3", "--fp8-recipe blockwise"),
    GemmRecipe.MXFP8: ("--fp8-format e4m3", "--fp8-recipe mxfp8"),
    GemmRecipe.NVFP4: ("--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
TP_PP_DP = ("tp", "cp", "pp", "dp")
SCRIPT = """\
#!/bin/bash
# {title}
# Start it once per node, with MASTER_ADDR and the node's number; a Slurm job has SLURM_NODEID.
set -eu
LAUNCHER=(torchrun --nproc-per-node {per_node} --nnodes {nodes} --node-rank "${{SLURM_NODEID:-0}}"
    --master-addr "${{MASTER_ADDR:-127.0.0.1}}" --master-port "${{MASTER_PORT:-29500}}")
MODEL_ARGS=(
{model}
)
PARALLEL_ARGS=(
{parallel}
)
TRAINING_ARGS=(
{training}
)
# Yours to set: no prediction depends on them.
DATA_ARGS=(
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model "${{TOKENIZER_MODEL:?the name or folder of a tokenizer}}"
    --data-path "${{DATA_PATH:?the prefix of the indexed data set}}"
    --lr "${{LEARNING_RATE:?the learning rate}}"
    --train-iters "${{TRAIN_ITERS:?the number of steps}}"
)
# One hardware queue keeps launches of traffic and of products in order.
export CUDA_DEVICE_MAX_CONNECTIONS=1{environment}
exec "${{LAUNCHER[@]}}" {program} "${{MODEL_ARGS[@]}}" "${{PARALLEL_ARGS[@]}}" "${{TRAINING_ARGS[@]}}" \\
    "${{DATA_ARGS[@]}}"
"""
# Source: megatron/training/arguments.py, validate_args.
OF_OFFLOADING = """
# Transformer Engine 2.10 and later would offload weights too.
export NVTE_CPU_OFFLOAD_V1=1"""


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the script.

    Args:
        config: a checked configuration.
        num_gpus: of the run.
        gpus_per_node: that it uses of a node.
        version: of Megatron-LM's core, such as 0.19.

    Raises:
        ConfigError: Megatron-LM has no arguments for a part of it, or refuses some of them together.
    """
    series = release(version)
    per_node = min(num_gpus, gpus_per_node)
    model, parallel, training = arguments_of(config, series)
    check([*model, *parallel, *training], series)
    return SCRIPT.format(
        title=f"Megatron-LM, core {series.newest}, on {counted(num_gpus, 'GPU')} of {config.system}, as searched.",
        per_node=per_node,
        nodes=num_gpus // per_node,
        program=hybrid_program(series) if is_hybrid(config.model) else "pretrain_gpt.py",
        model=_lines(model),
        parallel=_lines(parallel),
        training=_lines(training),
        environment=OF_OFFLOADING if config.training.offload_modules else "",
    )


def arguments_of(config: RunConfig, series: Release) -> tuple[list[str], list[str], list[str]]:
    """Return the arguments of the model, of the layout and of the training.

    Raises:
        ConfigError: Megatron-LM has none for a part of it.
    """
    parallel = config.parallelism
    samples = config.training.micro_batch_size * micro_batches(config) * parallel.data_parallel_size
    training = [*_training(config.training, samples, parallel), *graph_arguments(config, series)]
    return (
        model_arguments(config.model, series),
        _parallel(parallel, config.model, series),
        [*training, *experts_arguments(config, series)],
    )


def _lines(arguments: list[str]) -> str:
    return "\n".join(f"    {argument}" for argument in arguments)


def _parallel(parallel: ParallelismSection, model: ModelSection, series: Release) -> list[str]:
    """Return the arguments of the layout and of the distributed optimizer."""
    sizes = {
        "tensor-model-parallel-size": parallel.tensor_parallel_size,
        "pipeline-model-parallel-size": parallel.pipeline_parallel_size,
        "context-parallel-size": parallel.context_parallel_size,
    }
    if parallel.zero_stage > 1:
        raise ConfigError(
            f"parallelism.zero_stage is {parallel.zero_stage}; Megatron-LM's distributed optimizer is stage 1, and its "
            "FSDP is not written"
        )
    switches = {
        "--sequence-parallel": parallel.sequence_parallel and parallel.tensor_parallel_size > 1,
        "--use-distributed-optimizer": parallel.zero_stage == 1,
        "--overlap-grad-reduce": parallel.overlap_gradient_reduction,
        "--overlap-param-gather": parallel.overlap_parameter_gather,
        "--tp-comm-overlap": parallel.overlap_tensor_parallel and parallel.tensor_parallel_size > 1,
        "--fp8-param-gather": parallel.gather_precision == "fp8",
        "--use-tp-pp-dp-mapping": parallel.rank_order == TP_PP_DP != RANK_ORDER,
        "--overlap-moe-expert-parallel-comm": parallel.overlap_expert_parallel,
    }
    words = [f"--{name} {size}" for name, size in sizes.items()]
    if parallel.expert_parallel_size > 1:
        words.append(f"--expert-model-parallel-size {parallel.expert_parallel_size}")
    if parallel.expert_tensor_parallel_size not in (None, parallel.tensor_parallel_size):
        words.append(f"--expert-tensor-parallel-size {parallel.expert_tensor_parallel_size}")
    words += stage_arguments(parallel, model, series)
    words += [name for name, is_on in switches.items() if is_on]
    if parallel.zero_group_size is not None:
        ranks = parallel.data_parallel_size * parallel.context_parallel_size
        words.append(f"--num-distributed-optimizer-instances {ranks // parallel.zero_group_size}")
    if parallel.overlap_gradient_reduction:
        words.append(f"--ddp-bucket-size {parallel.gradient_bucket_elements}")
    return words


def _training(training: TrainingSection, samples: int, parallel: ParallelismSection) -> list[str]:
    """Return the arguments of batch, precision, recomputation and offloading."""
    fp32_gradients = parallel.fp32_gradients
    words = [f"--micro-batch-size {training.micro_batch_size}", f"--global-batch-size {samples}"]
    words += [f"--{training.precision}"] if training.precision != "fp32" else []
    words += _low_precision(training)
    words += _recomputation(training)
    switches = {
        "--distribute-saved-activations": training.partition_activations,
        "--no-gradient-accumulation-fusion": not training.fused_gradient_accumulation,
        "--grad-reduce-in-bf16": training.precision == "bf16" and not fp32_gradients,
        "--accumulate-allreduce-grads-in-fp32": training.precision != "bf16" and fp32_gradients,
    }
    words += [name for name, is_on in switches.items() if is_on]
    if training.gemm_recipe is GemmRecipe.MXFP8 and parallel.gather_precision == "fp8":
        words.append("--reuse-grad-buf-for-mxfp8-param-ag")  # without which weights are gathered in 16 bits
    return [*words, *_offloading(training, parallel.zero_stage > 0)]


def _offloading(training: TrainingSection, is_shared: bool) -> list[str]:
    """Return the arguments of activations and of an optimizer on the host, which is the precision-aware one."""
    modules = training.offload_modules
    words = ["--fine-grained-activation-offloading", f"--offload-modules {' '.join(modules)}"] if modules else []
    if training.offload_activation_layers:
        words.append(f"--cpu-offloading-num-layers {training.offload_activation_layers}")
    if not training.offload_optimizer:
        return words
    if not is_shared:
        raise ConfigError(
            "training.offload_optimizer is given and parallelism.zero_stage is 0; Megatron-LM offloads by way of its "
            "distributed optimizer, so set zero_stage: 1"
        )
    beside = ["--overlap-cpu-optimizer-d2h-h2d"] if training.overlap_optimizer_offload else []
    share = f"--optimizer-offload-fraction {training.offload_optimizer:g}"
    return [*words, "--optimizer-cpu-offload", share, "--use-precision-aware-optimizer", *beside]


def _low_precision(training: TrainingSection) -> list[str]:
    recipe = training.gemm_recipe
    if recipe is None:
        return []
    if recipe not in RECIPES:
        raise ConfigError(f"training.gemm_recipe is {recipe}; Megatron-LM has {', '.join(RECIPES)}")
    if training.fp8_attention:
        raise ConfigError(
            "training.fp8_attention is true; Megatron-LM's script has no argument for it (Megatron-Bridge has)"
        )
    start, end = training.layers_in_16_bits_at_start, training.layers_in_16_bits_at_end
    words = [*RECIPES[recipe]]
    if not start and not end:
        return words
    return [
        *words,
        "--first-last-layers-bf16",
        f"--num-layers-at-start-in-bf16 {start}",
        f"--num-layers-at-end-in-bf16 {end}",
    ]


def _recomputation(training: TrainingSection) -> list[str]:
    if training.recompute is Recompute.FULL:
        count = training.recompute_num_layers
        method = "uniform" if count is None else "block"
        layers = training.recompute_group_layers if count is None else count
        return [f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {layers}"]
    if training.recompute is Recompute.SELECTIVE:
        modules = " ".join(training.recompute_modules)
        return ["--recompute-granularity selective", *([f"--recompute-modules {modules}"] if modules else [])]
    if training.recompute is Recompute.PER_OP:
        raise ConfigError("training.recompute is per_op; Megatron-LM has none, selective and full")
    return []
