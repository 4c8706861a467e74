"""Time candidate layouts as plain numbers; every model chunk is timed once and shared.

The numbers are those of ``predict`` without its intervals; a test holds them to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.core.costs.interference import NO_SLOWDOWN, Slowdown
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.host import launch_us, waiting_us
from predictor.core.step.overlap import added_us
from predictor.core.step.stages import ChunkTime, time_block
from predictor.core.step.task_times import contention_slowdown, time_update
from predictor.core.timeline.bound import lower_bound
from predictor.core.timeline.replay import replay
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.step_end import end_of_step
from predictor.core.workload.accumulation import sums_in_products
from predictor.core.workload.edges import edge_block, message_tasks
from predictor.core.workload.host_stack import slowdown
from predictor.core.workload.measured_kernels import on_system
from predictor.core.workload.pipeline import Chunk
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.sharding import overlaps_gather
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.step_tasks import BlockTasks
from predictor.core.workload.tasks import Task
from predictor.core.workload.transformer import LayerKind
from predictor.core.workload.transformer_step import LAUNCHES_AHEAD, generator_launches, layer_block
from predictor.layout_search.candidate import Plan
from predictor.layout_search.space import Space
from predictor.layout_search.stage_times import End, LayerWork, Timing, Work
from predictor.layout_search.stages import ROUNDING, Key, Pipelines, alike_layers, parted, shared_key

# A schedule that splits backward passes gives both parts, and so the whole.
SPLITTING = next(name for name, schedule in SCHEDULES.items() if schedule.splits_backward)
WHOLE = next(name for name, schedule in SCHEDULES.items() if not schedule.splits_backward)


def _work(chunk: ChunkTime) -> Work:
    weight = chunk.weight.cost.us
    return Work(chunk.forward.cost.us, chunk.recompute.cost.us + chunk.backward.cost.us + weight, weight)


def _with_lead(block: BlockTasks, lead: float) -> BlockTasks:
    """Return a block whose host keeps such a share of its lead from pass to pass; none where it waits in any case."""
    host = block.host
    if host is None or host.takes_turns or host.counted:
        return block
    return replace(block, host=host._replace(lead=lead))


class Timer:
    """Times the candidates of one search.

    Results are lists over the distinct stages of a pipeline, computed once for all candidates that share them.
    """

    def __init__(
        self, space: Space, system: PublishedSystem, pipelines: Pipelines, faster: Timer | None = None
    ) -> None:
        """Prepare for a space on a system; floors are those of a timer that is faster, if only by its slowest GPU."""
        self._space = space = replace(space, base=on_system(space.base, system))
        self.system = system
        self._faster = faster
        self._pipelines = pipelines
        base = space.base
        names = [name for name in space.schedules if space.rules is None or name in space.rules.schedules]
        splits = any(SCHEDULES[name].splits_backward for name in names)
        self._layered = (WHOLE, SPLITTING) if splits else (WHOLE,)
        # A framework decides per layout what overlaps.
        self._overlaps = base.overlap_gradient_reduction or base.overlap_parameter_gather or space.rules is not None
        self._hides_beside_recomputation = self._overlaps or base.fp32_parameters
        _, self._restored = generator_launches(replace(base, recompute=Recompute.FULL))
        self._layers: dict[Key, LayerWork] = {}
        self._exact: dict[Key, Work] = {}
        self._edges: dict[Key, Work] = {}
        self._floors: dict[Key, float] = {}
        self._works: dict[Key, list[list[Work]]] = {}
        self._ends: dict[Key, list[End]] = {}
        self._messages: dict[Key, float] = {}

    def timing(self, plan: Plan) -> Timing:
        """Return the durations of a candidate."""
        index = self._pipelines.of(plan).index
        works = self._stage_works(plan)
        splits = SCHEDULES[plan.schedule].splits_backward
        forward = [[work.forward for work in chunks] for chunks in works]
        backward = [[work.backward - work.weight if splits else work.backward for work in chunks] for chunks in works]
        weight = [[work.weight for work in chunks] for chunks in works] if splits else []
        reductions, closings = [], []
        for end, chunks in zip(self._stage_ends(plan), works, strict=True):
            reduction, closing = self._exposed(end, chunks)
            reductions.append(reduction)
            closings.append(closing)
        return Timing(
            [forward[i] for i in index],
            [backward[i] for i in index],
            [weight[i] for i in index] if splits else [],
            self._message(plan),
            [reductions[i] for i in index],
            max(closings),
        )

    def shared_floor_key(self, plan: Plan) -> Key:
        """Return the choices that a candidate's shared floor depends on, the micro-batch aside."""
        key = plan.degrees, plan.sequence_parallel, plan.recomputes_all, plan.chunks
        return key if self._shares_floor(plan) else (*key, plan.sharing, self._layered_as(plan), self._blocks(plan))

    def shared_floor_us(self, plan: Plan) -> float:
        """Return a time that the steps of all candidates with the same key and micro-batch are no shorter than.

        Sharded weights and gradients add traffic and copies. A split backward pass hides no more than a whole one, but
        where the device waits for the host it may be shorter: launches of weight gradients are behind it.
        """
        if not self._shares_floor(plan):
            return self.floor_us(plan)
        unsharded = plan._replace(zero_stage=min(plan.zero_stage, 1))
        return min([self._floor_us(unsharded, layered_as, drains=False) for layered_as in self._layered])

    def _shares_floor(self, plan: Plan) -> bool:
        """Return whether sharding and split backward passes only add to a candidate's layers.

        It does not where traffic hides beside other micro-batches, nor where weights that are not sharded are cast in
        every pass, or have gradients that are summed inside products.
        """
        base = self._space.base
        if base.overlap_expert_parallel or base.partition_activations:
            return False
        if plan.zero_stage < 2:
            return True
        unsharded = self._pipelines.run(plan._replace(zero_stage=1))
        return not (unsharded.fp32_parameters or base.gemm_recipe is not None or sums_in_products(unsharded))

    def floor_us(self, plan: Plan) -> float:
        """Return the time of a stage's chunks and of filling and draining the pipeline before it.

        It is fast to compute, and no step is shorter. What selective recomputation adds is left out: it differs for
        every number of micro-batches.
        """
        splits = SCHEDULES[plan.schedule].splits_backward
        return self._floor_us(plan, self._layered_as(plan), drains=not splits)

    def _floor_us(self, plan: Plan, layered_as: str, drains: bool) -> float:
        if self._faster is not None:
            return self._faster._floor_us(plan, layered_as, drains)
        if (
            plan.recompute in (Recompute.SELECTIVE, Recompute.PER_OP)
            or plan.recompute_layers is not None
            or plan.offload_modules
        ):
            plan = plan._replace(recompute=Recompute.NONE, modules=(), recompute_layers=None, offload_modules=())
        shared, count, degrees = shared_key(plan), plan.num_micro_batches, plan.degrees
        blocks = self._blocks(plan)
        key = (shared, count, plan.recompute, degrees.pipeline, plan.chunks, layered_as, drains, blocks)
        known = self._floors.get(key)
        if known is None:
            pipeline = self._pipelines.of(plan)
            least = {kind: self._least_us(plan, shared, kind, layered_as) for kind in pipeline.kinds}
            both, forward = [], []
            for chunk in pipeline.chunks:
                edge = self._edge(plan, shared, chunk.is_first, chunk.is_last, layered_as)
                forward.append(edge.forward + sum([least[kind].forward * layers for kind, layers in chunk.layers]))
                backward = edge.backward + sum([least[kind].backward * layers for kind, layers in chunk.layers])
                both.append(forward[-1] + backward)
            stages = [sum([both[i] for i in stage.chunk_index]) for stage in pipeline.distinct]
            # A stage's first forward pass follows those of the first chunks before it, its last backward pass precedes
            # theirs.
            through = both if drains else forward
            latest = before = 0.0
            for i in pipeline.index:
                latest = max(latest, before + count * stages[i])
                before += through[pipeline.distinct[i].chunk_index[0]]
            known = self._floors[key] = latest * (1.0 - ROUNDING)
        return known

    def _least_us(self, plan: Plan, shared: Key, kind: LayerKind, layered_as: str) -> Work:
        """Return a work that no pass of a layer is shorter than.

        It is no bound where work hides traffic (that of weights, or of experts beside another micro-batch), nor where
        checkpoints are gathered.
        """
        base = self._space.base
        if plan.zero_stage >= 2 or base.overlap_expert_parallel or base.partition_activations:
            return self._layer(plan, shared, kind)
        single = self._layer_in_single(plan, shared, kind, layered_as)
        forward, backward, weight = single.work
        if single.adds_up:
            backward += single.accumulation * (1.0 - 1.0 / plan.num_micro_batches)
            backward += single.again if plan.recompute is Recompute.FULL else 0.0
        return Work(forward, backward, weight)

    def bound_us(self, plan: Plan) -> float:
        """Return a time that the candidate's step cannot be shorter than."""
        times = self.timing(plan)
        return lower_bound(
            plan.schedule,
            plan.num_micro_batches,
            *times[:4],
            self._blocks(plan),
            times.ends,
            times.closing,
        )

    def step_us(self, plan: Plan) -> float:
        """Return the time of the candidate's step."""
        times = self.timing(plan)
        known = replay(
            SCHEDULES[plan.schedule],
            plan.num_micro_batches,
            *times[:4],
            self._blocks(plan),
        )
        return end_of_step(known.finished, times.ends, times.closing).step

    def _blocks(self, plan: Plan) -> bool:
        return self._space.base.blocking_transfers and SCHEDULES[plan.schedule].may_block

    def _stage_works(self, plan: Plan) -> list[list[Work]]:
        """Return the work of every distinct stage's chunks."""
        shared = shared_key(plan)
        key = (
            shared,
            plan.num_micro_batches,
            plan.recompute,
            plan.modules,
            plan.recompute_layers,
            plan.offload_modules,
            plan.degrees.pipeline,
            plan.chunks,
            self._layered_as(plan),
            self._blocks(plan),
        )
        known = self._works.get(key)
        if known is None:
            stages = self._pipelines.of(plan)
            of_kinds = [{k: self._layer(alike, shared, k) for k in stages.kinds} for alike in alike_layers(plan)]
            works = [self._chunk(plan, shared, chunk, *of_kinds) for chunk in stages.chunks]
            known = self._works[key] = [[works[i] for i in stage.chunk_index] for stage in stages.distinct]
        return known

    def _chunk(
        self, plan: Plan, shared: Key, chunk: Chunk, again: dict[LayerKind, Work], whole: dict[LayerKind, Work]
    ) -> Work:
        """Return the work of a chunk: its edge and its layers, computed again or not."""
        forward, backward, weight = self._edge(plan, shared, chunk.is_first, chunk.is_last, self._layered_as(plan))
        for kind, count, is_again in parted(plan, chunk.layers):
            layer = (again if is_again else whole)[kind]
            forward += layer.forward * count
            backward += layer.backward * count
            weight += layer.weight * count
        if plan.zero_stage >= 2 and chunk.layers and self._overlaps:
            kind = chunk.layers[0][0]
            first, other = self._layer_exactly(plan, shared, kind, is_first=True), again[kind]
            forward += first.forward - other.forward
            backward += first.backward - other.backward
            weight += first.weight - other.weight
        return Work(forward, backward, weight)

    def _layer(self, plan: Plan, shared: Key, kind: LayerKind) -> Work:
        """Return the work of a layer.

        Without overlap, the work of a single micro-batch gives that of every number of micro-batches m and of full
        recomputation: weight gradients are added to earlier ones in 1 − 1/m of the micro-batches, and a layer is
        recomputed by its forward pass, or by as much of it as the backward pass needs. The traffic of ZeRO-2 and 3
        hides behind that work, so it is timed per candidate, for recomputation too where it hides beside it.
        """
        if plan.recompute in (Recompute.SELECTIVE, Recompute.PER_OP) or plan.offload_modules:
            return self._layer_exactly(plan, shared, kind)
        is_sharded = plan.zero_stage >= 2
        if is_sharded and (plan.recompute is Recompute.NONE or self._hides_beside_recomputation):
            return self._layer_exactly(plan, shared, kind)
        unsharded = plan._replace(zero_stage=min(plan.zero_stage, 1))
        single = self._layer_in_single(unsharded, shared_key(unsharded), kind, self._layered_as(plan))
        if not single.adds_up:
            return self._layer_exactly(plan, shared, kind)
        recompute = single.again if plan.recompute is Recompute.FULL else 0.0
        if is_sharded:
            forward, backward, weight = self._layer_exactly(plan._replace(recompute=Recompute.NONE), shared, kind)
            return Work(forward, recompute + backward, weight)
        forward, backward, weight = single.work
        added = single.accumulation * (1.0 - 1.0 / plan.num_micro_batches)
        return Work(forward, recompute + backward + added, weight + added)

    def _layer_in_single(self, plan: Plan, shared: Key, kind: LayerKind, layered_as: str) -> LayerWork:
        """Return a layer's work in a single micro-batch without recomputation."""
        key = (shared, kind, layered_as)
        known = self._layers.get(key)
        if known is None:
            run = replace(self._run(plan, layered_as), num_micro_batches=1, recompute=Recompute.NONE)
            block = _with_lead(layer_block(run, kind), 0.0)
            layer = time_block(self.system, block)
            again = layer.forward
            if run.recompute_stops_early:
                again = time_block(self.system, layer_block(replace(run, recompute=Recompute.FULL), kind)).recompute
            waits = any(each.host.us > 0.0 for each in (*layer.passes, again)) or self._waits_again(run, block, layer)
            if waits and run.framework in LAUNCHES_AHEAD:  # a pipeline's host keeps all its lead, or none
                layer = time_block(self.system, _with_lead(block, 1.0))
            adds_up = not (waits or run.partition_activations or run.overlap_expert_parallel)
            known = self._layers[key] = LayerWork(_work(layer), again.cost.us, self._us(block.accumulation), adds_up)
        return known

    def _waits_again(self, run: TrainingRun, block: BlockTasks, layer: ChunkTime) -> bool:
        """Return whether the device would wait for the host in a second forward pass, which launches a little more."""
        if block.host is None:
            return False
        launches = block.host.forward + self._restored * slowdown(run)
        us = launch_us(self.system.hardware, launches, backward=False)
        return waiting_us(us, layer.forward.cost.us, block.host.takes_turns) > 0.0

    def _layer_exactly(self, plan: Plan, shared: Key, kind: LayerKind, is_first: bool = False) -> Work:
        """Return a layer's work with the candidate's own micro-batches, recomputation and sharding."""
        layered_as = self._layered_as(plan)
        pipeline = plan.degrees.pipeline > 1, self._blocks(plan)
        retained = plan.recompute, plan.modules, plan.offload_modules
        key = (shared, plan.num_micro_batches, retained, kind, layered_as, is_first, pipeline)
        known = self._exact.get(key)
        if known is None:
            block = layer_block(self._run(plan, layered_as), kind, is_first)
            known = self._exact[key] = _work(time_block(self.system, block))
        return known

    def _layered_as(self, plan: Plan) -> str:
        """Return a schedule whose layers take as long as the candidate's.

        Splitting the backward pass changes its sum where traffic hides behind the gradients of the weights and where
        the device waits for the host.
        """
        return SPLITTING if SCHEDULES[plan.schedule].splits_backward else WHOLE

    def _us(self, tasks: Sequence[Task]) -> float:
        """Return the time of tasks in sequence."""
        cost = self.system.cost
        return sum([cost(task.operator, task.direction, task.shape).us * task.times for task in tasks])

    def _slowdown(self, overlaps: bool, traffic: Sequence[Task]) -> Slowdown:
        return contention_slowdown(self.system, traffic) if overlaps else NO_SLOWDOWN

    def _run(self, plan: Plan, schedule: str) -> TrainingRun:
        run = self._pipelines.run(plan)
        return run if run.schedule == schedule else replace(run, schedule=schedule)

    def _edge(self, plan: Plan, shared: Key, is_first: bool, is_last: bool, layered_as: str) -> Work:
        key = (shared, is_first, is_last, layered_as)
        known = self._edges.get(key)
        if known is None:
            run = self._run(plan, layered_as)
            known = self._edges[key] = _work(time_block(self.system, edge_block(run, is_first, is_last)))
        return known

    def _message(self, plan: Plan) -> float:
        key = plan.degrees, plan.sequence_parallel, plan.micro_batch_size
        known = self._messages.get(key)
        if known is None:
            known = self._messages[key] = self._us(message_tasks(self._pipelines.run(plan)))
        return known

    def _exposed(self, end: End, chunks: list[Work]) -> tuple[float, float]:
        """Return the exposed reduction of a stage, and its optimizer step with the exposed gathering."""
        reduction, gather, buckets = end.reduction, end.gather, end.buckets
        forward = backward = 0.0
        for work in chunks:
            forward += work.forward
            backward += work.backward
        if reduction and end.overlaps_reduction:
            reduction = added_us(reduction, backward, buckets, end.beside_reduction)
        if gather and end.overlaps_gather:
            gather = added_us(gather, forward, buckets, end.beside_gather)
        return reduction + end.tied, end.optimizer + gather

    def _stage_ends(self, plan: Plan) -> list[End]:
        """Return the end of the step of every distinct stage."""
        key = plan.sharing, self._pipelines.held(plan)
        known = self._ends.get(key)
        if known is None:
            run = self._pipelines.run(plan)
            ends = [
                stage_end(run, stage.earliest, run.parameters_of(stage.layers, stage.is_first, stage.is_last))
                for stage in self._pipelines.of(plan).distinct
            ]
            known = self._ends[key] = [
                End(
                    self._us(end.reduction),
                    self._us(end.tied),
                    time_update(self.system, end).cost.us,
                    self._us(end.gather),
                    end.buckets,
                    run.overlap_gradient_reduction,
                    overlaps_gather(run),
                    self._slowdown(run.overlap_gradient_reduction, end.reduction),
                    self._slowdown(overlaps_gather(run), end.gather),
                )
                for end in ends
            ]
        return known
