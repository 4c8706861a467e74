"""Expand a transformer's run into step tasks, every distinct part once."""

from __future__ import annotations

from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.expand import (
    Passes,
    edge_passes,
    layer_passes,
    message_tasks,
    step_end,
    tied_embedding_reduction,
)
from predictor.workloads.layer import weight_gradients
from predictor.workloads.pipeline import Stage, pipeline
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.step_tasks import BlockTasks, ChunkTasks, EndTasks, HostWork, StageTasks, StepTasks
from predictor.workloads.tasks import PassTasks, Task
from predictor.workloads.transformer import LayerKind

# Views, module calls, autograd functions and random-state bookkeeping of one layer's pass, as launches' worth of host
# time. Counts and their sources: docs/adr/0005-host.md.
LAYER_OVERHEAD = 10.0
# Without a graph to record (the forward pass of a recomputed layer) an operation costs the host a little less.
WITHOUT_GRAPH = 0.85


def layer_launches(one: PassTasks, records_graph: bool = True) -> float:
    """Return a layer pass's launches' worth of host time, hidden traffic included."""
    launches = LAYER_OVERHEAD
    for task in one.tasks:
        launches += task.launches
    for overlap in one.overlaps:
        for task in overlap.traffic:
            launches += task.launches
    return launches if records_graph else launches * WITHOUT_GRAPH


def _block(run: TrainingRun, passes: Passes, host: HostWork | None) -> BlockTasks:
    splits = SCHEDULES[run.schedule].splits_backward
    weight = weight_gradients(passes.backward.tasks) if splits else []
    return BlockTasks(passes.forward, passes.recompute, passes.backward, weight, host)


def layer_block(run: TrainingRun, kind: LayerKind) -> BlockTasks:
    """Return one layer of a kind."""
    passes = layer_passes(run, kind)
    host = HostWork(
        layer_launches(passes.forward, records_graph=run.recompute is not Recompute.FULL),
        layer_launches(passes.recompute),
        layer_launches(passes.backward),
        run.synchronize_each_layer,
    )
    return _block(run, passes, host)


def edge_block(run: TrainingRun, stage: int, chunk: int) -> BlockTasks:
    """Return what a chunk of a stage runs beside its layers: embedding, output and loss, gathers of what arrives."""
    return _block(run, edge_passes(run, stage, chunk), None)


def step_message(run: TrainingRun) -> list[Task]:
    """Return one transfer between neighbouring stages."""
    return message_tasks(run)


def stage_end(run: TrainingRun, stage: Stage, parameters: int) -> EndTasks:
    """Return what a stage of so many parameters on a rank runs after its last micro-batch."""
    end = step_end(run, stage.earliest)
    return EndTasks(
        reduction=end.reduction,
        tied=tied_embedding_reduction(run) if stage.is_first or stage.is_last else [],
        optimizer=end.optimizer,
        gather=end.gather,
        buckets=-(-parameters // run.gradient_bucket_elements),
    )


def transformer_step(run: TrainingRun) -> StepTasks:
    """Return all that one step of a transformer's run consists of."""
    found = pipeline(run)
    last = run.layout.pipeline_parallel_size - 1
    layers = {kind: layer_block(run, kind) for kind in found.kinds}
    edges: dict[tuple[bool, bool], BlockTasks] = {}
    chunks: dict[int, ChunkTasks] = {}
    distinct = []
    for stage in found.distinct:
        for index, number in enumerate(stage.chunk_index):
            if number in chunks:
                continue
            chunk = found.chunks[number]
            place = chunk.is_first, chunk.is_last
            if place not in edges:
                edges[place] = edge_block(run, stage.earliest, index)
            blocks = [(edges[place], 1), *((layers[kind], count) for kind, count in chunk.layers)]
            chunks[number] = ChunkTasks(tuple(blocks))
        parameters = run.stage_parameters(stage.earliest)
        distinct.append(
            StageTasks(
                num_layers=run.layers_per_stage[stage.earliest],
                parameters=parameters,
                chunks=tuple([chunks[number] for number in stage.chunk_index]),
                num_messages=2 * (2 * len(stage.chunk_index) - stage.is_first - stage.is_last) if last else 0,
                end=stage_end(run, stage, parameters),
            )
        )
    return StepTasks(
        stages=tuple([distinct[number] for number in found.index]),
        message=step_message(run),
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        blocking_transfers=run.blocking_transfers,
        overlap_gradient_reduction=run.overlap_gradient_reduction,
        overlap_parameter_gather=run.overlap_parameter_gather,
    )
