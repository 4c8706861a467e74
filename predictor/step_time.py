"""Compose the time of one training step: tasks → slots → timeline → step, with its interval and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from predictor.costs.cost import ZERO, Cost, Source, total
from predictor.costs.published import PublishedSystem
from predictor.host import launch_us, waiting_us
from predictor.timeline.replay import Replay, replay
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.expand import (
    Passes,
    edge_passes,
    layer_passes,
    step_end,
    tied_embedding_reduction,
    transfer_tasks,
)
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.tasks import Part, Task

# The same kernels on two machines with the same GPU differ by a median of 5 % forward and 7 to 8 % backward (A100
# tables of two sources, same shapes), and a run is not on the machine that was measured. As a log, for the whole step.
MACHINE_SPREAD = 0.08


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of one micro-batch through one piece of the model.

    Attributes:
        cost: the whole pass.
        tensor_parallel: the part of it that tensor-parallel collectives take.
        host: the part of it in which the device waits for the host.
    """

    cost: Cost
    tensor_parallel: Cost
    host: Cost

    def __add__(self, other: PassTime) -> PassTime:
        """Run one after the other."""
        return PassTime(self.cost + other.cost, self.tensor_parallel + other.tensor_parallel, self.host + other.host)

    def __mul__(self, times: float) -> PassTime:
        """Repeat a pass."""
        return PassTime(self.cost * times, self.tensor_parallel * times, self.host * times)


NO_PASS = PassTime(ZERO, ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage's passes per micro-batch and its end of the step."""

    num_layers: int
    parameters: int
    forward: PassTime
    recompute: PassTime
    backward: PassTime
    reduction: Cost
    exposed_reduction: Cost
    optimizer: Cost
    gather: Cost


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of one step and everything that it is made of; durations in microseconds.

    Attributes:
        step: the step, with its 90 % interval and its weakest source.
        stages: per pipeline stage.
        transfer: one message between neighbouring stages.
        timeline: the replay behind the point estimate.
        critical_stage: the stage whose end ends the step; its parts add up to the step.
        tasks: every distinct task with its cost per call and its number of calls on the critical stage.
    """

    run: TrainingRun
    system: str
    gpu: str
    step: Cost
    stages: tuple[StageTime, ...]
    transfer: Cost
    timeline: Replay
    critical_stage: int
    closing: Cost
    peak_tflop_per_s: float

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of the whole run."""
        return self.run.tokens_per_step / self.step.us * 1e6

    @property
    def model_flops_per_second(self) -> float:
        """Return model FLOP/s per GPU, recomputation not counted."""
        flops = self.run.model.model_flops_per_token() * self.run.tokens_per_step
        return flops / self.step.us * 1e6 / self.run.layout.num_gpus

    @property
    def mfu(self) -> float:
        """Return the model FLOP/s utilisation."""
        return self.model_flops_per_second / (self.peak_tflop_per_s * 1e12)

    @property
    def bubble_us(self) -> float:
        """Return the time that the critical stage waits for others."""
        stage = self.critical_stage
        timeline = self.timeline
        return timeline.finished[stage] - timeline.busy[stage] - timeline.communicating[stage]


def time_pass(system: PublishedSystem, tasks: Sequence[Task]) -> PassTime:
    """Time one pass as its kernels one after the other."""
    device, tensor_parallel = ZERO, ZERO
    for _, operator, direction, shape, times, part, _ in tasks:
        cost = system.cost(operator, direction, shape) * times
        device = device + cost
        if part is Part.TENSOR_PARALLEL:
            tensor_parallel = tensor_parallel + cost
    return PassTime(device, tensor_parallel, ZERO)


def time_tasks(system: PublishedSystem, tasks: Sequence[Task]) -> Cost:
    """Return the cost of tasks that run one after the other."""
    return total(system.cost(task.operator, task.direction, task.shape) * task.times for task in tasks)


def time_layer(system: PublishedSystem, run: TrainingRun) -> tuple[PassTime, PassTime, PassTime]:
    """Time one layer's forward, recompute and backward pass, the host's part included."""
    passes = layer_passes(run)
    full = run.recompute is Recompute.FULL
    times = []
    for tasks, backward in ((passes.forward, False), (passes.recompute, False), (passes.backward, True)):
        if not tasks:
            times.append(NO_PASS)
            continue
        device = time_pass(system, tasks)
        records_graph = not (full and tasks is passes.forward)
        launching = launch_us(system.system, tasks, backward, records_graph)
        us = waiting_us(launching, device.cost.us, run.synchronize_each_layer)
        host = Cost(us, us, us, Source.EXTRAPOLATED if us else Source.MEASURED)
        times.append(PassTime(device.cost + host, device.tensor_parallel, host))
    return times[0], times[1], times[2]


def _time_edges(system: PublishedSystem, passes: Passes) -> tuple[PassTime, PassTime, PassTime]:
    return time_pass(system, passes.forward), NO_PASS, time_pass(system, passes.backward)


def exposed_reduction(reduction: Cost, window: Cost, buckets: int) -> Cost:
    """Return what a gradient reduction adds to the step when it overlaps a backward pass.

    The first bucket is full after 1/buckets of the pass, and the last one can only follow it.
    """

    def exposed(comm: float, compute: float) -> float:
        return max(comm / buckets, comm - compute * (1.0 - 1.0 / buckets))

    return Cost(
        exposed(reduction.us, window.us),
        exposed(reduction.low_us, window.high_us),
        exposed(reduction.high_us, window.low_us),
        reduction.source,
    )


def time_stages(system: PublishedSystem, run: TrainingRun) -> tuple[StageTime, ...]:
    """Time every stage: its share of the layers, what the first and the last run besides, and the end of the step."""
    layer = time_layer(system, run)
    tied = time_tasks(system, tied_embedding_reduction(run))
    stages = []
    last = run.layout.pipeline_parallel_size - 1
    for stage, layers in enumerate(run.layers_per_stage):
        passes = [part * layers for part in layer]
        edges = _time_edges(system, edge_passes(run, stage))
        passes = [part + edge for part, edge in zip(passes, edges, strict=True)]
        end = step_end(run, stage)
        reduction = time_tasks(system, end.reduction)
        exposed = reduction
        if run.overlap_gradient_reduction and end.reduction:
            buckets = -(-run.stage_parameters(stage) // run.gradient_bucket_elements)
            exposed = exposed_reduction(reduction, passes[1].cost + passes[2].cost, buckets)
        if stage in (0, last):
            exposed = exposed + tied
        stages.append(
            StageTime(
                num_layers=layers,
                parameters=run.stage_parameters(stage),
                forward=passes[0],
                recompute=passes[1],
                backward=passes[2],
                reduction=reduction,
                exposed_reduction=exposed,
                optimizer=time_tasks(system, end.optimizer),
                gather=time_tasks(system, end.gather),
            )
        )
    return tuple(stages)


def _compose(
    run: TrainingRun, stages: Sequence[StageTime], transfer: Cost, closing: Cost, end: str
) -> tuple[float, Replay, int]:
    """Return step time, timeline and critical stage from one end ("us", "low_us" or "high_us") of every cost."""
    timeline = replay(
        SCHEDULES[run.schedule],
        run.num_micro_batches,
        [getattr(s.forward.cost, end) for s in stages],
        [getattr(s.recompute.cost, end) + getattr(s.backward.cost, end) for s in stages],
        getattr(transfer, end),
        run.blocking_transfers,
    )
    reduced = [t + getattr(s.exposed_reduction, end) for t, s in zip(timeline.finished, stages, strict=True)]
    critical = max(range(len(stages)), key=reduced.__getitem__)
    return reduced[critical] + getattr(closing, end), timeline, critical


def widened(us: float, low_us: float, high_us: float) -> tuple[float, float]:
    """Return an interval's ends with the spread between machines added, independent of the regressors' own error."""
    below, above = log(us / low_us), log(high_us / us)
    return us * exp(-hypot(below, MACHINE_SPREAD)), us * exp(hypot(above, MACHINE_SPREAD))


def predict(run: TrainingRun, system: PublishedSystem) -> Prediction:
    """Predict one training step.

    Raises:
        PublishedError: the system lacks a regressor that the run needs.
    """
    stages = time_stages(system, run)
    transfer = time_tasks(system, transfer_tasks(run))
    # Gradient norm and overflow check need every stage's gradients, so no optimizer starts before the last reduction.
    closing = max((stage.optimizer + stage.gather for stage in stages), key=lambda cost: cost.us)
    us, timeline, critical = _compose(run, stages, transfer, closing, "us")
    low_us = _compose(run, stages, transfer, closing, "low_us")[0]
    high_us = _compose(run, stages, transfer, closing, "high_us")[0]
    low_us, high_us = widened(us, low_us, high_us)
    sources = [closing.source, transfer.source]
    if run.precision != system.precision:
        sources.append(Source.EXTRAPOLATED)  # answered from another precision with the same element size and peak
    for stage in stages:
        sources += [stage.forward.cost.source, stage.backward.cost.source, stage.reduction.source]
    return Prediction(
        run=run,
        system=system.name,
        gpu=system.gpu,
        step=Cost(us, low_us, high_us, max(sources)),
        stages=stages,
        transfer=transfer,
        timeline=timeline,
        critical_stage=critical,
        closing=closing,
        peak_tflop_per_s=system.system.gpu.peak_tflop_per_s[run.precision].value,
    )
