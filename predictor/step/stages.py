"""Time every pipeline stage: one micro-batch's passes through each piece of the model, and the end of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.costs.cost import ZERO, Cost, Source, total
from predictor.costs.published import PublishedSystem
from predictor.step.host import launch_us, waiting_us
from predictor.step.overlap import exposed, exposed_reduction, less, shorter
from predictor.workloads.step_tasks import BlockTasks, PieceTasks, StageTasks, StepTasks
from predictor.workloads.tasks import TRAFFIC, Overlap, Part, PassTasks, Task


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of one micro-batch through one piece of the model.

    Attributes:
        cost: the whole pass.
        traffic: the part of it that collectives take, by what they are for; what computing hides is not in it.
        hidden: what computing hides.
        host: the part of it in which the device waits for the host.
    """

    cost: Cost
    traffic: dict[Part, Cost]
    host: Cost
    hidden: dict[Part, Cost]

    def __add__(self, other: PassTime) -> PassTime:
        """Run one after the other."""
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

    def __mul__(self, times: float) -> PassTime:
        """Repeat a pass."""
        if not self.cost.us:
            return self
        return PassTime(
            self.cost * times,
            {part: cost * times for part, cost in self.traffic.items()},
            self.host * times if self.host.us else self.host,
            {part: cost * times for part, cost in self.hidden.items()} if self.hidden else self.hidden,
        )


def _merged(one: dict[Part, Cost], other: dict[Part, Cost]) -> dict[Part, Cost]:
    """Return the sum of costs by what they are for."""
    if not other:
        return one
    merged = dict(one)
    for part, cost in other.items():
        merged[part] = merged[part] + cost if part in merged else cost
    return merged


NO_PASS = PassTime(ZERO, {}, ZERO, {})


@dataclass(frozen=True, slots=True)
class PieceTime:
    """One micro-batch's passes through one piece of the model.

    Attributes:
        backward: where the schedule splits the backward pass, without the gradients of the weights.
        weight: those; nothing where the schedule does not split.
    """

    forward: PassTime
    recompute: PassTime
    backward: PassTime
    weight: PassTime

    def __add__(self, other: PieceTime) -> PieceTime:
        """Return two pieces as one."""
        return PieceTime(
            self.forward + other.forward,
            self.recompute + other.recompute,
            self.backward + other.backward,
            self.weight + other.weight,
        )

    def __mul__(self, times: float) -> PieceTime:
        """Return so many equal pieces as one."""
        return PieceTime(self.forward * times, self.recompute * times, self.backward * times, self.weight * times)

    @property
    def passes(self) -> tuple[PassTime, ...]:
        """Return all passes."""
        return self.forward, self.recompute, self.backward, self.weight


NO_PIECE = PieceTime(NO_PASS, NO_PASS, NO_PASS, NO_PASS)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage's passes per micro-batch and piece, and its end of the step."""

    num_layers: int
    parameters: int
    pieces: tuple[PieceTime, ...]
    reduction: Cost
    exposed_reduction: Cost
    optimizer: Cost
    gather: Cost

    @property
    def whole(self) -> PieceTime:
        """Return the passes of all pieces together."""
        whole = self.pieces[0]
        for piece in self.pieces[1:]:
            whole = whole + piece
        return whole


def _time_overlaps(
    system: PublishedSystem, computing: Cost, overlaps: Sequence[Overlap]
) -> tuple[dict[Part, Cost], dict[Part, Cost]]:
    """Return what of the traffic beside a pass's tasks is exposed, and what is hidden, by what it is for.

    Args:
        system: times it.
        computing: all that the pass computes.
        overlaps: in the order in which they take their share of it.
    """
    exposures: dict[Part, Cost] = {}
    hidden: dict[Part, Cost] = {}
    for overlap in overlaps:
        if overlap.traffic:
            traffic, behind = time_tasks(system, overlap.traffic), time_tasks(system, overlap.behind)
            left = exposed(traffic, shorter(behind, computing))
            beside = less(traffic, left)
            computing = less(computing, beside)
            part = overlap.traffic[0].part
            exposures, hidden = _merged(exposures, {part: left}), _merged(hidden, {part: beside})
    return exposures, hidden


def time_pass(system: PublishedSystem, tasks: Sequence[Task], overlaps: Sequence[Overlap] = ()) -> PassTime:
    """Time one pass as its kernels one after the other, and what traffic beside them takes longer."""
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
    exposures, hidden = _time_overlaps(system, less(device, total(traffic.values())), overlaps)
    return PassTime(device + total(exposures.values()), _merged(traffic, exposures), ZERO, hidden)


def time_tasks(system: PublishedSystem, tasks: Sequence[Task]) -> Cost:
    """Return the cost of tasks that run one after the other."""
    if not tasks:
        return ZERO
    us = low_us = high_us = 0.0
    source = Source.MEASURED
    for _, operator, direction, shape, times, _, _ in tasks:
        cost = system.cost(operator, direction, shape)
        us += cost.us * times
        low_us += cost.low_us * times
        high_us += cost.high_us * times
        if cost.source > source:
            source = cost.source
    return Cost(us, low_us, high_us, source)


def _launched(system: PublishedSystem, one: PassTasks, launches: float, backward: bool, takes_turns: bool) -> PassTime:
    """Time one pass with the host's part."""
    if not one.tasks:
        return NO_PASS
    device = time_pass(system, one.tasks, one.overlaps)
    us = waiting_us(launch_us(system.system, launches, backward), device.cost.us, takes_turns)
    if not us:
        return device
    host = Cost(us, us, us, Source.EXTRAPOLATED)
    return PassTime(device.cost + host, device.traffic, host, device.hidden)


def _split_off(system: PublishedSystem, tasks: Sequence[Task], whole: PassTime) -> tuple[PassTime, PassTime]:
    """Return a backward pass without the tasks that run in slots of their own, and those."""
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


def time_block(system: PublishedSystem, block: BlockTasks) -> PieceTime:
    """Time one block, the host's part included."""
    if block.host is None:
        forward, recompute, whole = (
            time_pass(system, one.tasks, one.overlaps) if one.tasks or one.overlaps else NO_PASS
            for one in (block.forward, block.recompute, block.backward)
        )
    else:
        launches = block.host
        turns = launches.takes_turns
        forward = _launched(system, block.forward, launches.forward, backward=False, takes_turns=turns)
        recompute = _launched(system, block.recompute, launches.recompute, backward=False, takes_turns=turns)
        whole = _launched(system, block.backward, launches.backward, backward=True, takes_turns=turns)
    backward, weight = _split_off(system, block.weight, whole)
    return PieceTime(forward, recompute, backward, weight)


class _Timer:
    """Times one step's parts; a part that several have is one object and timed once."""

    def __init__(self, system: PublishedSystem, step: StepTasks) -> None:
        self._system = system
        self._step = step
        self._blocks: dict[BlockTasks, PieceTime] = {}
        self._repeated: dict[tuple[BlockTasks, int], PieceTime] = {}
        self._pieces: dict[PieceTasks, PieceTime] = {}
        self._stages: dict[StageTasks, StageTime] = {}

    def stage(self, stage: StageTasks) -> StageTime:
        found = self._stages.get(stage)
        if found is None:
            found = self._stages[stage] = self._with_end(stage, tuple([self._piece(piece) for piece in stage.pieces]))
        return found

    def _piece(self, piece: PieceTasks) -> PieceTime:
        found = self._pieces.get(piece)
        if found is None:
            parts = [self._repeat(block, count) for block, count in piece.blocks]
            found = parts[0] if parts else NO_PIECE
            for part in parts[1:]:
                found = part + found
            self._pieces[piece] = found
        return found

    def _repeat(self, block: BlockTasks, count: int) -> PieceTime:
        if count == 1:
            return self._block(block)
        found = self._repeated.get((block, count))
        if found is None:
            found = self._repeated[block, count] = self._block(block) * count
        return found

    def _block(self, block: BlockTasks) -> PieceTime:
        found = self._blocks.get(block)
        if found is None:
            found = self._blocks[block] = time_block(self._system, block)
        return found

    def _with_end(self, stage: StageTasks, pieces: tuple[PieceTime, ...]) -> StageTime:
        """Return a stage with what it runs after its last micro-batch."""
        system, step, end = self._system, self._step, stage.end
        reduction, gather = time_tasks(system, end.reduction), time_tasks(system, end.gather)
        late = reduction
        if step.overlap_gradient_reduction and end.reduction:
            window = total(one.cost for piece in pieces for one in (piece.recompute, piece.backward, piece.weight))
            late = exposed_reduction(reduction, window, end.buckets)
        if step.overlap_parameter_gather and end.gather:
            gather = exposed_reduction(gather, total(piece.forward.cost for piece in pieces), end.buckets)
        return StageTime(
            num_layers=stage.num_layers,
            parameters=stage.parameters,
            pieces=pieces,
            reduction=reduction,
            exposed_reduction=late + time_tasks(system, end.tied) if end.tied else late,
            optimizer=time_tasks(system, end.optimizer),
            gather=gather,
        )


def time_stages(system: PublishedSystem, step: StepTasks) -> tuple[StageTime, ...]:
    """Time every stage: one micro-batch's passes through its pieces of the model, and the end of the step."""
    timer = _Timer(system, step)
    return tuple([timer.stage(stage) for stage in step.stages])
