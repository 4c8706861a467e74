"""Break a prediction down: time per part and stage, and the source of every answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from operator import add

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime
from predictor.core.step.stages import PassTime, StageTime, hidden_reduction_us
from predictor.core.workload.tasks import TRAFFIC, Part, Task

# Behind the name of a kernel without measurements.
BY_BYTES = " (by bytes)"


@dataclass(frozen=True, slots=True)
class StageParts:
    """One stage's step, in microseconds; all parts but ``data_parallel_hidden_us`` add up to the step.

    Attributes:
        forward_us, recompute_us, backward_us: kernels of all micro-batches, without the traffic between them.
        tensor_parallel_us: collectives of the tensor-parallel group.
        context_parallel_us: keys and values around the context-parallel ring, what attention does not hide.
        expert_parallel_us: tokens to other ranks' experts and back.
        pipeline_us: messages to neighbouring stages, and gathering what arrives split.
        host_us: the device waits for the host to launch kernels.
        bubble_us: the stage waits for its neighbours in the pipeline.
        data_parallel_exposed_us: gradient reduction, and gathering of shared-out weights, that nothing hides.
        data_parallel_hidden_us: reduction of gradients and gathering of weights while the stage computes.
        optimizer_us: the optimizer step and what mixed precision does around it.
        parameter_gather_us: replicas collect the parameters that others updated.
        waiting_us: other stages still reduce, or update longer.
        host_link_us: activations to host memory and back, what computing does not hide.
        not_modelled_us: what runs of this kind took beyond their modelled time; negative where they took less.
    """

    forward_us: float
    recompute_us: float
    backward_us: float
    tensor_parallel_us: float
    context_parallel_us: float
    expert_parallel_us: float
    pipeline_us: float
    host_us: float
    bubble_us: float
    data_parallel_exposed_us: float
    optimizer_us: float
    parameter_gather_us: float
    waiting_us: float
    data_parallel_hidden_us: float
    host_link_us: float = 0.0
    not_modelled_us: float = 0.0

    @property
    def step_us(self) -> float:
        """Return the sum of the parts."""
        kernels = self.forward_us + self.recompute_us + self.backward_us + self.optimizer_us
        between_layers = self.tensor_parallel_us + self.context_parallel_us + self.expert_parallel_us
        traffic = self.pipeline_us + self.data_parallel_exposed_us + self.parameter_gather_us
        idle = self.host_us + self.bubble_us + self.waiting_us
        return kernels + between_layers + traffic + self.host_link_us + idle + self.not_modelled_us

    def as_dict(self, with_host_link: bool) -> dict[str, float]:
        """Return the parts by name; the host link's where activations of any stage travel over it."""
        parts = asdict(self)
        return parts if with_host_link else {name: us for name, us in parts.items() if name != "host_link_us"}

    @property
    def data_parallel_us(self) -> float:
        """Return all data-parallel traffic, hidden or not."""
        return self.data_parallel_exposed_us + self.data_parallel_hidden_us + self.parameter_gather_us


@dataclass(frozen=True, slots=True)
class Answer:
    """Contribution of one operator or collective, with its source and its extrapolation.

    Attributes:
        operator: which regressor's operator answered.
        direction: forward or backward.
        source: the weakest source of its calls.
        step_us: its time on the stage where it takes longest.
        outside: the size that lies farthest outside the measured range, "topology", or None.
        factor: how many times beyond the measured range that size is; None for a topology.
        donor: the operator that its time was transferred from, where it was not measured itself.
        width_us: its share of the interval's width, on the stage where that is largest.
    """

    operator: str
    direction: str
    source: Source
    step_us: float
    outside: str | None
    factor: float | None
    donor: str | None
    width_us: float


def _kernels(passes: Iterable[PassTime]) -> float:
    """Return the time of passes without traffic and without waiting for the host."""
    return sum(
        step_pass.cost.us - step_pass.host.us - sum(cost.us for cost in step_pass.traffic.values())
        for step_pass in passes
    )


def stage_parts(timed: StepTime) -> list[StageParts]:
    """Return where every stage spends the step."""
    count, timeline = timed.tasks.num_micro_batches, timed.timeline
    parts = []
    for index, stage in enumerate(timed.stages):
        whole = stage.whole
        traffic = {
            part: count * sum(step_pass.traffic[part].us for step_pass in whole.passes if part in step_pass.traffic)
            for part in TRAFFIC
        }
        bubble = timeline.finished[index] - timeline.busy[index] - timeline.communicating[index]
        parts.append(
            StageParts(
                forward_us=count * _kernels([whole.forward]),
                recompute_us=count * _kernels([whole.recompute]),
                backward_us=count * _kernels([whole.backward, whole.weight]),
                tensor_parallel_us=traffic[Part.TENSOR_PARALLEL],
                context_parallel_us=traffic[Part.CONTEXT_PARALLEL],
                expert_parallel_us=traffic[Part.EXPERT_PARALLEL],
                pipeline_us=timeline.communicating[index] + traffic[Part.PIPELINE_PARALLEL],
                host_us=count * sum(step_pass.host.us for step_pass in whole.passes),
                bubble_us=bubble,
                data_parallel_exposed_us=stage.exposed_reduction.us + traffic[Part.DATA_PARALLEL],
                optimizer_us=stage.optimizer.us,
                parameter_gather_us=stage.gather.us,
                waiting_us=timed.end.waiting(index, stage.optimizer.us, stage.gather.us),
                data_parallel_hidden_us=hidden_reduction_us(stage)
                + count
                * sum(
                    step_pass.hidden[Part.DATA_PARALLEL].us
                    for step_pass in whole.passes
                    if Part.DATA_PARALLEL in step_pass.hidden
                ),
                host_link_us=traffic[Part.HOST_LINK],
                not_modelled_us=timed.step.us - timed.modelled_us,
            )
        )
    return parts


def _exposed_share(timed: StepTime, stage: int) -> float:
    """Return the share of a gradient reduction's width that computing does not hide."""
    whole, added, slowed = (
        cost.high_us - cost.low_us
        for cost in (timed.stages[stage].reduction, timed.stages[stage].exposed_reduction, timed.stages[stage].slowed)
    )
    return min(1.0, max(0.0, added - slowed) / whole) if whole else 1.0


def answers(timed: StepTime, system: PublishedSystem) -> list[Answer]:
    """Return the contribution of each operator and collective, the largest first.

    Side kernels are timed by their bytes at another operator's rate and counted under their own name.
    """
    merged: dict[tuple[str, str], Answer] = {}
    step = timed.tasks
    distinct = {stage: number for number, stage in enumerate(step.stages)}  # equal stages give equal answers
    for stage, number in distinct.items():
        on_stage: dict[tuple[str, str], Answer] = {}
        reduction, exposed = stage.end.reduction, _exposed_share(timed, number)
        for task, times in step.calls(stage):
            cost = system.cost(task.operator, task.direction, task.shape)
            outside = system.outside(task.operator, task.direction, task.shape)
            name = task.operator.name if task.name == task.operator.name else f"{task.name}{BY_BYTES}"
            width_us = (cost.high_us - cost.low_us) * times * (exposed if task in reduction else 1.0)
            new = Answer(
                operator=name,
                direction=str(task.direction),
                source=cost.source,
                step_us=cost.us * times,
                outside=outside.dimension if outside else None,
                factor=outside.factor if outside else None,
                donor=outside.donor if outside else None,
                width_us=width_us,
            )
            key = (name, new.direction)
            on_stage[key] = _merged((on_stage[key], new), add) if key in on_stage else new
        for key, new in on_stage.items():
            merged[key] = _merged((merged[key], new), max) if key in merged else new
    return sorted(merged.values(), key=lambda answer: -answer.step_us)


def _merged(pair: tuple[Answer, Answer], combine: Callable[[float, float], float]) -> Answer:
    """Return two answers of an operator as one, with the weaker source and the farther extrapolation.

    ``combine`` adds the times of one stage, and takes the larger of two stages.
    """

    def distance(answer: Answer) -> float:
        return 0.0 if answer.outside is None else answer.factor or float("inf")

    first, second = pair
    return replace(
        max(pair, key=distance),
        source=max(first.source, second.source),
        step_us=combine(first.step_us, second.step_us),
        width_us=combine(first.width_us, second.width_us),
    )


def busiest_stage(timed: StepTime) -> int:
    """Return the stage that computes and sends longest, from 0."""
    return max(range(len(timed.stages)), key=lambda i: timed.timeline.busy[i] + timed.timeline.communicating[i])


def source_shares(timed: StepTime, system: PublishedSystem) -> dict[Source, float]:
    """Return each source's share of the busiest stage's kernels, exposed traffic and host time, most reliable first.

    The busiest stage sets the pace of a pipeline: the bubbles of the others come from its times.
    """
    us: dict[Source, float] = defaultdict(float)
    for cost in exposed_costs(timed, system):
        us[cost.source] += cost.us
    whole = sum(us.values())
    return {source: us[source] / whole for source in sorted(us) if us[source] > 0.0}


def exposed_costs(timed: StepTime, system: PublishedSystem) -> Iterator[Cost]:
    """Yield the costs that add up to the busiest stage's time; traffic with the share that nothing hides."""
    busiest = busiest_stage(timed)
    step, stage = timed.tasks, timed.stages[busiest]
    end = step.stages[busiest].end
    passes = _exposed_traffic(stage)
    sent_us = step.num_micro_batches * step.stages[busiest].num_messages * timed.message.us
    sent = timed.timeline.communicating[busiest] / (sent_us or 1.0)
    reduced = max(0.0, 1.0 - hidden_reduction_us(stage) / (stage.reduction.us or 1.0))
    gathered = stage.gather.us / (stage.gather.us + stage.hidden_gather.us or 1.0)

    def exposed(task: Task) -> float:
        for tasks, share in ((step.message, sent), (end.reduction, reduced), (end.gather, gathered)):
            if task in tasks:
                return share
        return passes.get(task.part, 1.0)

    for task, times in step.calls(step.stages[busiest]):
        yield system.cost(task.operator, task.direction, task.shape) * (times * exposed(task))
    for step_pass in stage.whole.passes:
        yield step_pass.host * step.num_micro_batches


def _exposed_traffic(stage: StageTime) -> dict[Part, float]:
    """Return the share of traffic that computing does not hide, of every part with hidden traffic."""
    shown: dict[Part, float] = defaultdict(float)
    hidden: dict[Part, float] = defaultdict(float)
    for step_pass in stage.whole.passes:
        for part, cost in step_pass.traffic.items():
            shown[part] += cost.us
        for part, cost in step_pass.hidden.items():
            hidden[part] += cost.us
    return {part: shown[part] / (shown[part] + us) for part, us in hidden.items() if us}
