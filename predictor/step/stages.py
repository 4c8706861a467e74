"""Time every pipeline stage: one micro-batch's passes through each piece of the model, and the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from predictor.costs.cost import ZERO, Cost, Source, total
from predictor.costs.published import PublishedSystem
from predictor.step.host import launch_us, waiting_us
from predictor.step.overlap import exposed, exposed_reduction, less, shorter
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.expand import edge_passes, layer_passes, step_end, tied_embedding_reduction
from predictor.workloads.layer import weight_gradients
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.tasks import TRAFFIC, Overlap, Part, PassTasks, Task
from predictor.workloads.transformer import LayerKind


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
        return PassTime(
            self.cost * times,
            {part: cost * times for part, cost in self.traffic.items()},
            self.host * times,
            {part: cost * times for part, cost in self.hidden.items()},
        )


def _merged(one: dict[Part, Cost], other: dict[Part, Cost]) -> dict[Part, Cost]:
    """Return the sum of costs by what they are for."""
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
    device = ZERO
    traffic: dict[Part, Cost] = {}
    for _, operator, direction, shape, times, part, _ in tasks:
        cost = system.cost(operator, direction, shape) * times
        device = device + cost
        if part in TRAFFIC:
            traffic[part] = traffic[part] + cost if part in traffic else cost
    if not overlaps:
        return PassTime(device, traffic, ZERO, {})
    exposures, hidden = _time_overlaps(system, less(device, total(traffic.values())), overlaps)
    return PassTime(device + total(exposures.values()), _merged(traffic, exposures), ZERO, hidden)


def time_tasks(system: PublishedSystem, tasks: Iterable[Task]) -> Cost:
    """Return the cost of tasks that run one after the other."""
    return total(system.cost(task.operator, task.direction, task.shape) * task.times for task in tasks)


def _split_off(
    system: PublishedSystem, run: TrainingRun, backward: PassTasks, whole: PassTime
) -> tuple[PassTime, PassTime]:
    """Return a backward pass without the gradients of weights, and those, where the schedule runs them apart."""
    if not SCHEDULES[run.schedule].splits_backward:
        return whole, NO_PASS
    weight = time_tasks(system, weight_gradients(backward.tasks))
    rest = Cost(
        whole.cost.us - weight.us,
        whole.cost.low_us - weight.low_us,
        whole.cost.high_us - weight.high_us,
        whole.cost.source,
    )
    return PassTime(rest, whole.traffic, whole.host, whole.hidden), PassTime(weight, {}, ZERO, {})


def time_layer(system: PublishedSystem, run: TrainingRun, kind: LayerKind) -> PieceTime:
    """Time one layer of a kind, the host's part included."""
    passes = layer_passes(run, kind)
    full = run.recompute is Recompute.FULL
    times = []
    for one, backward in ((passes.forward, False), (passes.recompute, False), (passes.backward, True)):
        if not one.tasks:
            times.append(NO_PASS)
            continue
        device = time_pass(system, one.tasks, one.overlaps)
        records_graph = not (full and one is passes.forward)
        launching = launch_us(system.system, one.calls(), backward, records_graph)
        us = waiting_us(launching, device.cost.us, run.synchronize_each_layer)
        host = Cost(us, us, us, Source.EXTRAPOLATED if us else Source.MEASURED)
        times.append(PassTime(device.cost + host, device.traffic, host, device.hidden))
    backward_time, weight = _split_off(system, run, passes.backward, times[2])
    return PieceTime(times[0], times[1], backward_time, weight)


def time_edges(system: PublishedSystem, run: TrainingRun, stage: int, chunk: int) -> PieceTime:
    """Time what a piece runs beside its layers."""
    passes = edge_passes(run, stage, chunk)
    forward = time_pass(system, passes.forward.tasks, passes.forward.overlaps)
    whole = time_pass(system, passes.backward.tasks, passes.backward.overlaps)
    backward, weight = _split_off(system, run, passes.backward, whole)
    return PieceTime(forward, NO_PASS, backward, weight)


def _time_end(system: PublishedSystem, run: TrainingRun, stage: int, pieces: tuple[PieceTime, ...]) -> StageTime:
    """Time a stage's end of the step."""
    end = step_end(run, stage)
    parameters = run.stage_parameters(stage)
    buckets = -(-parameters // run.gradient_bucket_elements)
    reduction, gather = time_tasks(system, end.reduction), time_tasks(system, end.gather)
    late = reduction
    if run.overlap_gradient_reduction and end.reduction:
        window = total(one.cost for piece in pieces for one in (piece.recompute, piece.backward, piece.weight))
        late = exposed_reduction(reduction, window, buckets)
    if run.overlap_parameter_gather and end.gather:
        gather = exposed_reduction(gather, total(piece.forward.cost for piece in pieces), buckets)
    if stage in (0, run.layout.pipeline_parallel_size - 1):
        late = late + time_tasks(system, tied_embedding_reduction(run))
    return StageTime(
        num_layers=run.layers_per_stage[stage],
        parameters=parameters,
        pieces=pieces,
        reduction=reduction,
        exposed_reduction=late,
        optimizer=time_tasks(system, end.optimizer),
        gather=gather,
    )


class StageTimer:
    """Times the stages of one run; what several of them have alike is timed once."""

    def __init__(self, system: PublishedSystem, run: TrainingRun) -> None:
        """Prepare for a run on a system."""
        self._system = system
        self._run = run
        self._layers: dict[LayerKind, PieceTime] = {}
        self._pieces: dict[tuple[object, ...], PieceTime] = {}
        self._stages: dict[tuple[object, ...], StageTime] = {}

    def stage(self, stage: int) -> StageTime:
        """Return the time of a stage."""
        run = self._run
        last = run.layout.pipeline_parallel_size - 1
        chunks = [tuple(run.layer_kinds(stage, chunk).items()) for chunk in range(run.virtual_pipeline_parallel_size)]
        key = (stage == 0, stage == last, *chunks)
        if key not in self._stages:
            pieces = tuple(self._piece(stage, chunk, kinds) for chunk, kinds in enumerate(chunks))
            self._stages[key] = _time_end(self._system, run, stage, pieces)
        return self._stages[key]

    def _piece(self, stage: int, chunk: int, kinds: tuple[tuple[LayerKind, int], ...]) -> PieceTime:
        run = self._run
        is_first = stage == 0 and chunk == 0
        is_last = stage == run.layout.pipeline_parallel_size - 1 and chunk == run.virtual_pipeline_parallel_size - 1
        key = (is_first, is_last, kinds)
        if key not in self._pieces:
            piece = time_edges(self._system, run, stage, chunk)
            for kind, count in kinds:
                piece = self._layer(kind) * count + piece
            self._pieces[key] = piece
        return self._pieces[key]

    def _layer(self, kind: LayerKind) -> PieceTime:
        if kind not in self._layers:
            self._layers[kind] = time_layer(self._system, self._run, kind)
        return self._layers[kind]


def time_stages(system: PublishedSystem, run: TrainingRun) -> tuple[StageTime, ...]:
    """Time every stage: its share of the layers, what the first and the last run besides, and the end of the step."""
    timer = StageTimer(system, run)
    return tuple(timer.stage(stage) for stage in range(run.layout.pipeline_parallel_size))
