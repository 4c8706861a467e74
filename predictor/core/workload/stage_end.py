"""End of a step on one stage: gradient reduction, optimizer step, parameter gather."""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.catalogue import catalogue
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.host_stack import slowdown, step_work
from predictor.core.workload.low_precision import gather_bytes, step_weight_casts
from predictor.core.workload.muon import muon_update
from predictor.core.workload.offload import update, updates_beside_weights
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Optimizer
from predictor.core.workload.sharding import (
    Groups,
    gather_tasks,
    gradient_copies,
    groups_of,
    reduction_tasks,
    scatter_tasks,
    shares_once,
    weight_copies,
)
from predictor.core.workload.step_tasks import EndTasks
from predictor.core.workload.tasks import FORWARD, Part, Task, collective_task, parameter_stream_task, scaled

# Per parameter around Adam in mixed precision, sharded: overflow check (widen, isnan, isinf and their reduction: 36),
# norm (widen to fp64 and reduce: 18), flatten and widen the gradient (10), unscale and clip (8), narrow the new
# weights (6). Source: DeepSpeed runtime/zero/stage_1_and_2.py, step(), _has_inf_or_nan, get_grad_norm_direct.
SHARDED_MIXED_PRECISION_BYTES = 36 + 18 + 10 + 8 + 6
# The same, replicated: widen the gradient (6), unscale and check in one kernel (8), norm (4), clip (8), narrow (6).
# Source: Megatron-LM optimizer/optimizer.py, Float16OptimizerWithFloat16Params.step.
REPLICATED_MIXED_PRECISION_BYTES = 6 + 8 + 4 + 8 + 6
# Of fp32 weights and gradients only the norm (4) and the clipping (8) remain.
CLIPPING_BYTES = 4 + 8


class SharedOnce(NamedTuple):
    """What a stage gathers and scatters once per step.

    Attributes:
        copies: kernels around both.
        units: gathered and scattered at once each.
    """

    gathers: list[Task]
    scatters: list[Task]
    copies: list[Task]
    units: int


def shared_once(run: TrainingRun, stage: int, parameters: RankParameters) -> SharedOnce:
    """Return ZeRO-3's traffic of a stage where weights stay gathered over a pipeline's micro-batches, gradients whole.

    The first micro-batch's forward pass waits for each unit's weights, layer by layer and the root, and the last one's
    backward pass scatters gradients likewise. The part that these passes do not hide lengthens the step, however many
    micro-batches lie between them. Source: torch distributed/pipelining/stage.py, backward_maybe_with_nosync.
    """
    units = [(run.layer_parameters(kind), count) for kind, count in run.stage_kinds(stage).items()]
    layers = sum(held.dense * count for held, count in units)
    frozen = parameters.frozen_dense - sum(held.frozen_dense * count for held, count in units)
    if parameters.dense > layers or frozen:
        units.append((RankParameters(parameters.dense - layers, 0, frozen), 1))
    gathers: list[Task] = []
    scatters: list[Task] = []
    copies: list[Task] = []
    for held, count in units:
        gathers += scaled(gather_tasks(run, held), count)
        scatters += scaled(scatter_tasks(run, held), count)
        copies += scaled(weight_copies(run, held) + gradient_copies(run, held), count)
    return SharedOnce(gathers, scatters, copies, sum(count for _, count in units))


def _around_optimizer(run: TrainingRun, parameters: int) -> Task:
    """Return the passes over gradients and weights beside the optimizer's own."""
    if run.element_bytes == FP32_BYTES or run.fp32_parameters:
        return parameter_stream_task("gradient_clipping", parameters * CLIPPING_BYTES, run.call(), Part.OPTIMIZER)
    per_parameter = SHARDED_MIXED_PRECISION_BYTES if run.zero_stage >= 1 else REPLICATED_MIXED_PRECISION_BYTES
    return parameter_stream_task("mixed_precision", parameters * per_parameter, run.call(), Part.OPTIMIZER)


def _tied_reduction(run: TrainingRun, stage: int) -> list[Task]:
    """Return the sum of the first and the last stage's gradients of a shared embedding."""
    last = run.last_stage
    is_shared = run.model.tied_embeddings or run.model.num_mtp_layers
    trains = run.lora is None or run.lora.train_embeddings
    if not (is_shared and trains) or not last or stage not in (0, last):
        return []
    size_bytes = run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.gradient_bytes
    return collective_task("all_reduce", size_bytes, run.layout.first_and_last_stage(), Part.DATA_PARALLEL)


def _tensors(run: TrainingRun, stage: int) -> int:
    """Return the parameter tensors of a stage's layers: a matrix or a norm's weights each, with its bias two."""
    if run.lora is not None:
        return 0  # adapters are few beside what they adapt
    each = 2 if run.model.biases.of_ffn else 1
    return each * sum([count * run.model.weighted_rows(kind) for kind, count in run.stage_kinds(stage).items()])


def _share(run: TrainingRun, group: Groups) -> int:
    """Return how many of a group's parameters a rank updates."""
    return group.parameters if run.zero_stage == 0 else -(-group.parameters // group.sharing.ranks)


def stage_end(run: TrainingRun, stage: int, parameters: RankParameters) -> EndTasks:
    """Return what a stage of so many parameters runs after its last micro-batch."""
    reduction: list[Task] = []
    gather: list[Task] = []
    owned = 0
    for group in groups_of(run, parameters):
        share = _share(run, group)
        owned += share
        if run.zero_stage < 2:
            reduction += reduction_tasks(run, group)
        if run.zero_stage in (1, 2):
            gather += collective_task("all_gather", share * gather_bytes(run), group.sharing, Part.DATA_PARALLEL)
    on_gpu, on_host, returned = update(run, owned)
    around = [] if updates_beside_weights(run) else [_around_optimizer(run, owned)]
    optimizer = [*around, *step_weight_casts(run, stage), *returned]
    launched = 0.0
    if run.optimizer is Optimizer.MUON:
        own = sum([_share(run, group) for group in groups_of(run, parameters.matrices)])
        tasks, launched = muon_update(run, stage, own)
        optimizer, on_gpu = tasks + optimizer, on_gpu - own
    if on_gpu or on_host is None:
        step = catalogue()["optimizer_step"]
        optimizer.insert(0, Task("optimizer_step", step, FORWARD, (on_gpu, 1), 1.0, Part.OPTIMIZER, 1))
    buckets = -(-parameters.total // run.gradient_bucket_elements)
    if shares_once(run):
        gather, reduction, copies, buckets = shared_once(run, stage, parameters)
        optimizer += copies
    launches, exposed = (0.0, 0.0) if run.full_cuda_graphs else step_work(run, _tensors(run, stage))
    launches += 0.0 if run.full_cuda_graphs else launched * slowdown(run)
    return EndTasks(reduction, _tied_reduction(run, stage), optimizer, gather, buckets, on_host, launches, exposed)
