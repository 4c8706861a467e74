"""Expand a transformer's run into step tasks, every distinct part once."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.transforms.graphs import graph_launches, overhead_share
from predictor.core.transforms.recomputation import of_layer, recomputed_layers
from predictor.core.workload.accumulation import accumulation_tasks
from predictor.core.workload.edges import edge_block, message_tasks
from predictor.core.workload.host_stack import experts_work, layer_work, slowdown
from predictor.core.workload.layer import layer_of
from predictor.core.workload.low_precision import cast_weights
from predictor.core.workload.offload import offloaded_share, with_host_gradients, with_offloading
from predictor.core.workload.pipeline import pipeline
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.sharding import first_differs, overlaps_gather, sharded
from predictor.core.workload.software import Framework
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.step_tasks import BlockTasks, ChunkTasks, HostWork, StageTasks, StepTasks
from predictor.core.workload.tasks import NO_TASKS, Passes, PassTasks, Task, share_of
from predictor.core.workload.transformer import Attention, LayerKind
from predictor.core.workload.transformer_memory import layer_memory, stage_states

# Reading or setting a generator's state: a call that copies a few bytes to or from a tensor of the host; no kernel.
GENERATOR_STATE = 0.5
# Kernels that a stream queues before the host waits to launch another. Source: a user's measurement of 1,000,
# https://forums.developer.nvidia.com/t/cuda-stream-are-blocked-when-luanch-lots-of-kernels-1000/68937
QUEUED_KERNELS = 1000
LAUNCHES_AHEAD = frozenset({Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, Framework.NEMO, Framework.TORCHTITAN})
# Without a graph to record (the forward pass of a recomputed layer) an operation costs the host a little less.
WITHOUT_GRAPH = 0.85


def layer_launches(
    run: TrainingRun,
    kind: LayerKind,
    layer_pass: PassTasks,
    records_graph: bool = True,
    backward: bool = False,
    share: float = 1.0,
) -> float:
    """Return a layer pass's launches' worth of host time, hidden traffic and the software's own work included.

    Args:
        run: its software.
        kind: of the layer.
        layer_pass: tasks of the pass.
        records_graph: for a backward pass.
        backward: it is one.
        share: of the layer's modules that run in it.
    """
    own = layer_work(run)[backward] * overhead_share(run.graph_modules)
    own += graph_launches(run.graph_modules, kind.has_experts)
    own += experts_work(run)[backward] if kind.has_experts else 0.0
    launches = share * own + sum([task.launches for task in layer_pass.calls()])
    return (launches if records_graph else launches * WITHOUT_GRAPH) * slowdown(run)


def _host_work(run: TrainingRun, kind: LayerKind, passes: Passes, counted: list[Task]) -> HostWork | None:
    """Return the host's share of a layer's passes; None where graphs launch everything.

    A recomputed layer runs its software's own work forward twice, the second time in its backward pass; of modules that
    are recomputed alone their share runs again, by the kernels that they launch.
    """
    if run.full_cuda_graphs:
        return None
    share = 1.0
    if run.recompute is not Recompute.FULL:
        kernels, again = (sum([task.launches for task in each.calls()]) for each in (passes.forward, passes.recompute))
        share = min(1.0, again / kernels) if kernels else 0.0
    saved, restored = (each * slowdown(run) for each in generator_launches(run))
    records = run.recompute is not Recompute.FULL
    return HostWork(
        layer_launches(run, kind, passes.forward, records_graph=records) + saved,
        layer_launches(run, kind, passes.recompute, share=share) + restored,
        layer_launches(run, kind, passes.backward, backward=True),
        run.synchronize_each_layer or run.blocking_launches,
        tuple(counted),
        sum([task.launches for task in counted]) * slowdown(run),
        0.0 if counted else _lead(run, passes.backward),
    )


def _lead(run: TrainingRun, backward: PassTasks) -> float:
    """Return how much of its lead over the device the host keeps from pass to pass: what the queue of launches holds.

    Megatron-LM and torchtitan read nothing back from the device between micro-batches, and wait for messages on the
    device's streams. Blocking messages (batch_p2p_sync) end with torch.cuda.synchronize(). Source: Megatron-LM
    megatron/core/pipeline_parallel/schedules.py and p2p_communication.py; torchtitan torchtitan/train.py.
    """
    pipeline = run.layout.pipeline_parallel_size
    waits = run.synchronize_each_layer or run.blocking_launches or (pipeline > 1 and run.blocking_transfers)
    if waits or run.framework not in LAUNCHES_AHEAD:
        return 0.0
    kernels = sum([task.launches for task in backward.calls()])
    layers = run.model.num_layers if pipeline == 1 else 1  # a stage's chunks are short
    return min(1.0, QUEUED_KERNELS / max(1, layers * kernels))


def generator_launches(run: TrainingRun) -> tuple[float, float]:
    """Return the launches' worth of saving and restoring random states in a layer's forward and its second forward.

    A checkpoint saves the states of the host's and of the device's generator, and its second forward saves, sets and
    restores both. Dropout of attention's split heads draws from a generator of its own, which is swapped in and out.

    Source: PyTorch torch/utils/checkpoint.py (preserve_rng_state); Megatron-LM mpu/random.py, CheckpointFunction and
    CudaRNGStatesTracker.fork.
    """
    draws = 4 if run.model.attention_dropout and run.model.attention is not Attention.FLASH else 0
    if run.recompute is not Recompute.FULL:
        return GENERATOR_STATE * draws, 0.0
    return GENERATOR_STATE * (2 + draws), GENERATOR_STATE * (6 + draws)


def _reference_pass(run: TrainingRun, kind: LayerKind, is_first: bool) -> PassTasks:
    """Return a reference's forward pass through a layer, with the gathers of its weights."""
    passes = Passes(layer_of(run, kind).passes.forward, NO_TASKS, NO_TASKS)
    return sharded(run, run.layer_parameters(kind), passes, is_first).forward


def layer_block(run: TrainingRun, kind: LayerKind, is_first: bool = False, offloaded: float = 0.0) -> BlockTasks:
    """Return one layer of a kind.

    Args:
        run: the run.
        kind: of the layer.
        is_first: of its chunk: there is nothing beside which its weights could be gathered.
        offloaded: share of its activations that travel to host memory.
    """
    forward, recompute, (tasks, overlaps), weight, counted = layer_of(run, kind).passes
    accumulation = accumulation_tasks(run, kind)
    added = share_of(accumulation, 1.0 - 1.0 / run.num_micro_batches)
    passes = Passes(forward, recompute, PassTasks(tasks + added, overlaps))
    forward, recompute, backward = sharded(run, run.layer_parameters(kind), passes, is_first)
    backward = with_host_gradients(run, run.layer_parameters(kind), backward)
    passes = Passes(forward, recompute, backward)
    passes, memory = with_offloading(run, kind, passes, layer_memory(run, kind), offloaded)
    host = _host_work(run, kind, passes, counted)
    if run.reference_run is not None:
        reference = _reference_pass(run.reference_run, kind, is_first)
        if host is not None:
            launched = layer_launches(run.reference_run, kind, reference, records_graph=False)
            host = host._replace(forward=host.forward + run.reference_passes * launched)
        passes = passes._replace(forward=passes.forward + reference.repeated(run.reference_passes))
    splits = SCHEDULES[run.schedule].splits_backward
    return BlockTasks(
        *passes,
        weight + added if splits else [],
        host,
        memory,
        accumulation,
    )


class _Layers:
    """The distinct layers of a run: of every kind one that is recomputed and one that is not, where it has both."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._first_differs = first_differs(run)
        self._blocks: dict[tuple[LayerKind, bool, bool, float], BlockTasks] = {}

    def _block(self, kind: LayerKind, is_recomputed: bool, offloaded: float, is_first: bool = False) -> BlockTasks:
        key = kind, is_recomputed, is_first, offloaded
        if key not in self._blocks:
            self._blocks[key] = layer_block(of_layer(self._run, is_recomputed), kind, is_first, offloaded)
        return self._blocks[key]

    def of_chunk(self, kinds: Iterable[tuple[LayerKind, int]]) -> list[tuple[BlockTasks, int]]:
        """Return the layers of a chunk, each with how often it stands there; its first ones are recomputed."""
        kinds = list(kinds)
        layers = sum(count for _, count in kinds)
        left, moved = recomputed_layers(self._run, layers), offloaded_share(self._run, layers)
        blocks = []
        if self._first_differs and kinds:
            (kind, count), *others = kinds
            blocks = [(self._block(kind, left > 0, moved, is_first=True), 1)]
            kinds, left = [(kind, count - 1), *others], max(0, left - 1)
        for kind, count in kinds:
            again = min(left, count)
            left -= again
            blocks += [(self._block(kind, True, moved), again)] if again else []
            blocks += [(self._block(kind, False, moved), count - again)] if count > again else []
        return blocks


def transformer_step(run: TrainingRun) -> StepTasks:
    """Return all that one step of a transformer's run consists of."""
    parts = pipeline(run)
    last = run.layout.pipeline_parallel_size - 1
    layers = _Layers(run)
    edges: dict[tuple[bool, bool], BlockTasks] = {}
    chunks = []
    for kinds, is_first, is_last in parts.chunks:
        edge = edges.get((is_first, is_last))
        if edge is None:
            edge = edges[is_first, is_last] = edge_block(run, is_first, is_last)
        chunks.append(ChunkTasks(((edge, 1), *layers.of_chunk(kinds))))
    distinct = []
    for stage in parts.distinct:
        parameters = run.parameters_of(stage.layers, stage.is_first, stage.is_last)
        distinct.append(
            StageTasks(
                num_layers=run.layers_per_stage[stage.earliest],
                parameters=parameters.held.total,
                chunks=tuple([chunks[number] for number in stage.chunk_index]),
                num_messages=stage.num_messages if last else 0,
                end=stage_end(run, stage.earliest, parameters),
                states=stage_states(
                    run, [kind for kind, _ in stage.layers], parameters, cast_weights(run, stage.layers)
                ),
            )
        )
    return StepTasks(
        stages=tuple([distinct[number] for number in parts.index]),
        message=message_tasks(run),
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        blocking_transfers=run.blocking_transfers,
        overlap_gradient_reduction=run.overlap_gradient_reduction,
        overlap_parameter_gather=overlaps_gather(run),
    )
