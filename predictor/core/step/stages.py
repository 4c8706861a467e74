"""Time every pipeline stage: one micro-batch's passes through each model chunk, and the end of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.core.costs.cost import ZERO, Cost, Source, total
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.host import launch_cost, lead, waiting
from predictor.core.step.overlap import overlapped, without_part
from predictor.core.step.task_times import contention_slowdown, time_overlaps, time_update
from predictor.core.step.task_times import time_tasks as time_tasks
from predictor.core.workload.step_tasks import BlockTasks, ChunkTasks, HostWork, StageTasks, StepTasks
from predictor.core.workload.tasks import TRAFFIC, Overlap, Part, PassTasks, Task


class PassTime(NamedTuple):
    """One pass of one micro-batch through one model chunk.

    Attributes:
        cost: the whole pass.
        traffic: exposed collectives within it, by part.
        host: time within it in which the device waits for the host.
        hidden: collectives beside it that computation hides, by part.
    """

    cost: Cost
    traffic: dict[Part, Cost]
    host: Cost
    hidden: dict[Part, Cost]

    def __add__(self, other: PassTime) -> PassTime:  # type: ignore[override]
        """Run two passes in sequence."""
        if not other.cost.us:
            return self
        if not self.cost.us:
            return other
        return PassTime(
            self.cost + other.cost,
            _merged(self.traffic, other.traffic),
            self.host + other.host,
            _merged(self.hidden, other.hidden),
        )

    def __mul__(self, times: float) -> PassTime:  # type: ignore[override]
        """Repeat a pass."""
        if not self.cost.us:
            return self
        return PassTime(
            self.cost * times,
            {part: cost * times for part, cost in self.traffic.items()},
            self.host * times if self.host.high_us else self.host,
            {part: cost * times for part, cost in self.hidden.items()} if self.hidden else self.hidden,
        )


def _merged(costs: dict[Part, Cost], added: dict[Part, Cost]) -> dict[Part, Cost]:
    """Return the sum of costs, part by part."""
    if not added:
        return costs
    merged = dict(costs)
    for part, cost in added.items():
        merged[part] = merged[part] + cost if part in merged else cost
    return merged


NO_PASS = PassTime(ZERO, {}, ZERO, {})


class ChunkTime(NamedTuple):
    """One micro-batch's passes through one model chunk.

    Attributes:
        backward: where the schedule splits the backward pass, without the gradients of the weights.
        weight: the gradients of the weights; zero where the schedule does not split.
    """

    forward: PassTime
    recompute: PassTime
    backward: PassTime
    weight: PassTime

    def __add__(self, other: ChunkTime) -> ChunkTime:  # type: ignore[override]
        """Return two chunks as one."""
        return ChunkTime(
            self.forward + other.forward,
            self.recompute + other.recompute,
            self.backward + other.backward,
            self.weight + other.weight,
        )

    def __mul__(self, times: float) -> ChunkTime:  # type: ignore[override]
        """Return ``times`` equal chunks as one."""
        return ChunkTime(self.forward * times, self.recompute * times, self.backward * times, self.weight * times)

    @property
    def passes(self) -> tuple[PassTime, ...]:
        """Return all passes."""
        return self


NO_CHUNK = ChunkTime(NO_PASS, NO_PASS, NO_PASS, NO_PASS)


class StageTime(NamedTuple):
    """One stage's passes per micro-batch and chunk, and its end of the step.

    Attributes:
        exposed_reduction: what the gradient reduction adds to the step, the tied reduction included.
        slowed: the part of it that is kernels beside the reduction, which take longer.
        tied: reduction of gradients that stages share.
        gather: what the parameter gather adds to the step, slower kernels beside it included.
        hidden_gather: what forward passes hide of it.
        update_parts: of the optimizer, (name, µs) in turn, where the host updates parameters.
    """

    num_layers: int
    parameters: int
    chunks: tuple[ChunkTime, ...]
    reduction: Cost
    exposed_reduction: Cost
    slowed: Cost
    tied: Cost
    optimizer: Cost
    gather: Cost
    hidden_gather: Cost
    update_parts: tuple[tuple[str, float], ...] = ()

    @property
    def whole(self) -> ChunkTime:
        """Return the passes of all chunks together."""
        whole = self.chunks[0]
        for chunk in self.chunks[1:]:
            whole = whole + chunk
        return whole


def time_pass(
    system: PublishedSystem, tasks: Sequence[Task], overlaps: Sequence[Overlap] = (), apart: Sequence[Task] = ()
) -> PassTime:
    """Time one pass: its kernels in sequence, and the exposed traffic beside them.

    Args:
        system: times the tasks.
        tasks: of the pass.
        overlaps: traffic beside them.
        apart: tasks of the pass that run in slots of their own, beside which its traffic cannot hide.
    """
    answer = system.cost
    us = low_us = high_us = 0.0  # sums of plain numbers: this loop is most of a prediction
    source = Source.MEASURED
    traffic: dict[Part, Cost] = {}
    for _, operator, direction, shape, times, part, _ in tasks:
        cost = answer(operator, direction, shape)
        us += cost.us * times
        low_us += cost.low_us * times
        high_us += cost.high_us * times
        if cost.source > source:
            source = cost.source
        if part in TRAFFIC:
            traffic[part] = traffic[part] + cost * times if part in traffic else cost * times
    device = Cost(us, low_us, high_us, source)
    if not overlaps:
        return PassTime(device, traffic, ZERO, {})
    elsewhere = total([*traffic.values(), time_tasks(system, apart)]) if apart else total(traffic.values())
    overlap_time = time_overlaps(system, without_part(device, elsewhere), overlaps)
    whole = device + total(overlap_time.exposed.values()) + overlap_time.slowed
    return PassTime(whole, _merged(traffic, overlap_time.exposed), ZERO, overlap_time.hidden)


def _timed(system: PublishedSystem, tasks: PassTasks, apart: Sequence[Task] = ()) -> PassTime:
    return time_pass(system, tasks.tasks, tasks.overlaps, apart) if tasks.tasks or tasks.overlaps else NO_PASS


def _counted(system: PublishedSystem, launches: HostWork) -> Cost:
    """Return how much longer the host takes to launch a forward pass's counted tasks than the device to run them."""
    if not launches.counted:
        return ZERO
    launching = launch_cost(system.hardware, launches.counted_launches, backward=False)
    return waiting(launching, time_tasks(system, launches.counted), synchronized=False)


def _launched(
    system: PublishedSystem,
    device: PassTime,
    launches: float,
    backward: bool,
    takes_turns: bool,
    least: Cost = ZERO,
    ahead: Cost = ZERO,
) -> PassTime:
    """Return a pass with the time in which the device waits for the host's launches, ``least`` or more.

    Args:
        system: with its host.
        device: the pass without the host.
        launches: of the pass.
        backward: they are of a backward pass.
        takes_turns: the host waits for the device after every pass.
        least: no shorter wait.
        ahead: by which the host is ahead of the device when the pass begins.
    """
    if not device.cost.us:
        return NO_PASS
    host = waiting(launch_cost(system.hardware, launches, backward), device.cost, takes_turns, least, ahead)
    if not host.high_us:
        return device
    return PassTime(device.cost + host, device.traffic, host, device.hidden)


def _split_off(system: PublishedSystem, tasks: Sequence[Task], whole: PassTime) -> tuple[PassTime, PassTime]:
    """Split a backward pass into the rest and the tasks that run in slots of their own."""
    if not tasks:
        return whole, NO_PASS
    weight = time_tasks(system, tasks)
    rest = Cost(
        whole.cost.us - weight.us,
        whole.cost.low_us - weight.low_us,
        whole.cost.high_us - weight.high_us,
        whole.cost.source,
    )
    return PassTime(rest, whole.traffic, whole.host, whole.hidden), PassTime(weight, {}, ZERO, {})


def _leads(system: PublishedSystem, block: BlockTasks, passes: tuple[PassTime, ...]) -> tuple[Cost, Cost]:
    """Return by how much the host is ahead of the device after a forward pass, and after a whole backward pass."""
    host = block.host
    if host is None or not host.lead:
        return ZERO, ZERO
    forward, *behind = passes
    launching = launch_cost(system.hardware, host.recompute if behind[0].cost.us else 0.0, backward=False)
    launching += launch_cost(system.hardware, host.backward, backward=True)
    return (
        lead(launch_cost(system.hardware, host.forward, backward=False), forward.cost, host.lead),
        lead(launching, total([step_pass.cost for step_pass in behind]), host.lead),
    )


def time_block(system: PublishedSystem, block: BlockTasks) -> ChunkTime:
    """Time one block with its host launch overhead; gradients of weights in slots of their own have their launches."""
    forward, recompute = _timed(system, block.forward), _timed(system, block.recompute)
    backward, weight = _split_off(system, block.weight, _timed(system, block.backward, block.weight))
    if block.host is None:
        return ChunkTime(forward, recompute, backward, weight)
    launches, turns = block.host, block.host.takes_turns
    apart = sum([task.launches for task in block.weight])
    after_forward, after_backward = _leads(system, block, (forward, recompute, backward, weight))
    return ChunkTime(
        _launched(
            system,
            forward,
            launches.forward,
            backward=False,
            takes_turns=turns,
            least=_counted(system, launches),
            ahead=after_backward,
        ),
        _launched(system, recompute, launches.recompute, backward=False, takes_turns=turns),
        _launched(system, backward, launches.backward - apart, backward=True, takes_turns=turns, ahead=after_forward),
        _launched(system, weight, apart, backward=True, takes_turns=turns),
    )


def hidden_reduction_us(stage: StageTime) -> float:
    """Return what backward passes hide of a stage's gradient reduction, in µs."""
    return max(0.0, stage.reduction.us + stage.tied.us + stage.slowed.us - stage.exposed_reduction.us)


class _Timer:
    """Times one step's parts, each distinct object once."""

    def __init__(self, system: PublishedSystem, step: StepTasks) -> None:
        self._system = system
        self._step = step
        self._blocks: dict[BlockTasks, ChunkTime] = {}
        self._repeated: dict[tuple[BlockTasks, int], ChunkTime] = {}
        self._chunks: dict[ChunkTasks, ChunkTime] = {}
        self._stages: dict[StageTasks, StageTime] = {}

    def stage(self, stage: StageTasks) -> StageTime:
        timed = self._stages.get(stage)
        if timed is None:
            timed = self._stages[stage] = self._with_end(stage, tuple([self._chunk(chunk) for chunk in stage.chunks]))
        return timed

    def _chunk(self, chunk: ChunkTasks) -> ChunkTime:
        timed = self._chunks.get(chunk)
        if timed is None:
            parts = [self._repeat(block, count) for block, count in chunk.blocks]
            timed = parts[0] if parts else NO_CHUNK
            for part in parts[1:]:
                timed = part + timed
            self._chunks[chunk] = timed
        return timed

    def _repeat(self, block: BlockTasks, count: int) -> ChunkTime:
        if count == 1:
            return self._block(block)
        timed = self._repeated.get((block, count))
        if timed is None:
            timed = self._repeated[block, count] = self._block(block) * count
        return timed

    def _block(self, block: BlockTasks) -> ChunkTime:
        timed = self._blocks.get(block)
        if timed is None:
            timed = self._blocks[block] = time_block(self._system, block)
        return timed

    def _with_end(self, stage: StageTasks, chunks: tuple[ChunkTime, ...]) -> StageTime:
        """Return a stage with the end of its step."""
        system, step, end = self._system, self._step, stage.end
        reduction, tied = time_tasks(system, end.reduction), time_tasks(system, end.tied)
        optimizer, parts = time_update(system, end)
        late, gather, hidden_gather, slowed = reduction, time_tasks(system, end.gather), ZERO, ZERO
        if step.overlap_gradient_reduction and end.reduction:
            window = total(
                step_pass.cost for chunk in chunks for step_pass in (chunk.recompute, chunk.backward, chunk.weight)
            )
            added = overlapped(reduction, window, contention_slowdown(system, end.reduction), end.buckets)
            late, slowed = added.added, added.slowed
        if step.overlap_parameter_gather and end.gather:
            whole = gather
            window = total(chunk.forward.cost for chunk in chunks)
            added = overlapped(whole, window, contention_slowdown(system, end.gather), end.buckets)
            gather, hidden_gather = added.added, without_part(whole, added.exposed)
        return StageTime(
            num_layers=stage.num_layers,
            parameters=stage.parameters,
            chunks=chunks,
            reduction=reduction,
            exposed_reduction=late + tied if end.tied else late,
            slowed=slowed,
            tied=tied,
            optimizer=optimizer,
            gather=gather,
            hidden_gather=hidden_gather,
            update_parts=parts,
        )


def time_stages(system: PublishedSystem, step: StepTasks) -> tuple[StageTime, ...]:
    """Time every stage: one micro-batch's passes through its model chunks, and the end of the step."""
    timer = _Timer(system, step)
    return tuple([timer.stage(stage) for stage in step.stages])
