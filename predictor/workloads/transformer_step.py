"""Expand a transformer's run into step tasks, every distinct part once."""

from __future__ import annotations

from predictor.workloads.attention import attention_core
from predictor.workloads.edges import edge_block, message_tasks
from predictor.workloads.layer import (
    backward_pass,
    forward_pass,
    gradient_accumulation,
    layer_operators,
    sized,
    weight_gradients,
)
from predictor.workloads.pipeline import pipeline
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.sharding import sharded
from predictor.workloads.stage_end import stage_end
from predictor.workloads.step_tasks import BlockTasks, ChunkTasks, HostWork, StageTasks, StepTasks
from predictor.workloads.tasks import FORWARD, NO_TASKS, Part, PassTasks, collective_task, share_of
from predictor.workloads.transformer import LayerKind, Transformer
from predictor.workloads.transformer_memory import layer_memory, stage_states

# Views, module calls, autograd functions and random-state bookkeeping of one layer's pass, as launches' worth of host
# time. Counts and their sources: docs/adr/0005-host.md.
LAYER_OVERHEAD = 10.0
# Without a graph to record (the forward pass of a recomputed layer) an operation costs the host a little less.
WITHOUT_GRAPH = 0.85


def layer_launches(layer_pass: PassTasks, records_graph: bool = True) -> float:
    """Return a layer pass's launches' worth of host time, hidden traffic included."""
    launches = LAYER_OVERHEAD
    for task in layer_pass.tasks:
        launches += task.launches
    for overlap in layer_pass.overlaps:
        for task in overlap.traffic:
            launches += task.launches
    return launches if records_graph else launches * WITHOUT_GRAPH


def _until_last_saved(model: Transformer, kind: LayerKind, forward: PassTasks) -> PassTasks:
    """Return a layer's forward pass without what follows the last activation that its backward pass needs.

    That is the input of the FFN's second product: the product, the sum of its outputs over tensor-parallel ranks, its
    bias and the sum with the residual are left out. With dropout or a norm behind the product that is the last, and
    only the sum with the residual is left out. Experts are computed again whole.

    Source: PyTorch torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    if kind.has_experts:
        return forward
    left_out, halved = {"residual_add": 1.0}, set()
    if not (model.hidden_dropout or model.post_norms):
        left_out["ffn_down"] = 1.0
        halved = {"all_reduce", "reduce_scatter", "bias_additions"}
    tasks = []
    for task in forward.tasks:
        times = task.times * (0.5 if task.name in halved else 1.0) - left_out.pop(task.name, 0.0)
        if times > 0.0:
            tasks.append(task._replace(times=times, launches=task.launches * times / task.times))
    return PassTasks(tasks, forward.overlaps)


def _recomputation(run: TrainingRun, kind: LayerKind, forward: PassTasks) -> PassTasks:
    """Return what of a layer's forward pass runs again before its backward pass."""
    if run.recompute is Recompute.NONE:
        return NO_TASKS
    call = sized(run, kind)
    if run.recompute is Recompute.SELECTIVE:
        names, kernel = layer_operators(run.model, kind), run.attention_kernel or ""
        return attention_core(run.model, names, call, FORWARD, run.layout, kernel)
    if run.recompute_stops_early:
        forward = _until_last_saved(run.model, kind, forward)
    if not run.partition_activations or run.sequence_parallel:
        return forward
    shard = call.tokens * call.hidden_size * call.element_bytes // call.tensor_parallel_size
    gather = collective_task("all_gather", shard, run.layout.tensor_group(), Part.TENSOR_PARALLEL)
    return PassTasks(forward.tasks + gather, forward.overlaps)


def layer_block(run: TrainingRun, kind: LayerKind) -> BlockTasks:
    """Return one layer of a kind."""
    forward, (tasks, overlaps) = forward_pass(run, kind), backward_pass(run, kind)
    recompute = _recomputation(run, kind, forward)
    accumulation = [gradient_accumulation(run, kind)]
    backward = PassTasks(tasks + share_of(accumulation, 1.0 - 1.0 / run.num_micro_batches), overlaps)
    forward, backward = sharded(run, run.layer_parameters(kind), forward, backward)
    host = HostWork(
        layer_launches(forward, records_graph=run.recompute is not Recompute.FULL),
        layer_launches(recompute),
        layer_launches(backward),
        run.synchronize_each_layer,
    )
    return BlockTasks(
        forward,
        recompute,
        backward,
        weight_gradients(run, backward),
        host,
        layer_memory(run, kind),
        accumulation,
    )


def transformer_step(run: TrainingRun) -> StepTasks:
    """Return all that one step of a transformer's run consists of."""
    parts = pipeline(run)
    last = run.layout.pipeline_parallel_size - 1
    layers = {kind: layer_block(run, kind) for kind in parts.kinds}
    edges: dict[tuple[bool, bool], BlockTasks] = {}
    chunks = []
    for kinds, is_first, is_last in parts.chunks:
        edge = edges.get((is_first, is_last))
        if edge is None:
            edge = edges[is_first, is_last] = edge_block(run, is_first, is_last)
        chunks.append(ChunkTasks(((edge, 1), *[(layers[kind], count) for kind, count in kinds])))
    distinct = []
    for stage in parts.distinct:
        parameters = run.rank_parameters(stage.earliest)
        distinct.append(
            StageTasks(
                num_layers=run.layers_per_stage[stage.earliest],
                parameters=parameters.total,
                chunks=tuple([chunks[number] for number in stage.chunk_index]),
                num_messages=2 * (2 * len(stage.chunk_index) - stage.is_first - stage.is_last) if last else 0,
                end=stage_end(run, stage.earliest, parameters),
                states=stage_states(run, [kind for kind, _ in stage.layers], parameters),
            )
        )
    return StepTasks(
        stages=tuple([distinct[number] for number in parts.index]),
        message=message_tasks(run),
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        blocking_transfers=run.blocking_transfers,
        overlap_gradient_reduction=run.overlap_gradient_reduction,
        overlap_parameter_gather=run.overlap_parameter_gather,
    )
