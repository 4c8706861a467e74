"""Take a prediction apart: where each stage spends the step, and how well founded every answer in it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from predictor.costs.cost import Source
from predictor.costs.published import PublishedSystem
from predictor.step_time import Prediction
from predictor.workloads.expand import (
    edge_passes,
    layer_passes,
    step_end,
    tied_embedding_reduction,
    transfer_tasks,
)
from predictor.workloads.run import TrainingRun
from predictor.workloads.tasks import Part, Task

# Behind the name of a kernel that nobody benchmarked.
BY_BYTES = " (by bytes)"


@dataclass(frozen=True, slots=True)
class StageParts:
    """One stage's step, in microseconds; all parts but ``data_parallel_hidden_us`` add up to the step.

    Attributes:
        forward_us, recompute_us, backward_us: kernels of all micro-batches, without the traffic between them.
        tensor_parallel_us: collectives of the tensor-parallel group.
        pipeline_us: messages to neighbouring stages, and gathering what arrives split.
        host_us: the device waits for the host to launch kernels.
        bubble_us: the stage waits for its neighbours in the pipeline.
        data_parallel_exposed_us: gradient reduction that nothing hides.
        data_parallel_hidden_us: gradient reduction that runs while the stage computes.
        optimizer_us: the optimizer step and what mixed precision does around it.
        parameter_gather_us: replicas collect the parameters that others updated.
        waiting_us: other stages still reduce, or update longer.
    """

    forward_us: float
    recompute_us: float
    backward_us: float
    tensor_parallel_us: float
    pipeline_us: float
    host_us: float
    bubble_us: float
    data_parallel_exposed_us: float
    optimizer_us: float
    parameter_gather_us: float
    waiting_us: float
    data_parallel_hidden_us: float

    @property
    def step_us(self) -> float:
        """Return the sum of the parts."""
        kernels = self.forward_us + self.recompute_us + self.backward_us + self.optimizer_us
        traffic = self.tensor_parallel_us + self.pipeline_us + self.data_parallel_exposed_us + self.parameter_gather_us
        return kernels + traffic + self.host_us + self.bubble_us + self.waiting_us

    @property
    def data_parallel_us(self) -> float:
        """Return all data-parallel traffic, hidden or not."""
        return self.data_parallel_exposed_us + self.data_parallel_hidden_us + self.parameter_gather_us


@dataclass(frozen=True, slots=True)
class Answer:
    """What one operator or collective contributes, and how far its answers can be trusted.

    Attributes:
        operator: which regressor's operator answered.
        direction: forward or backward.
        source: the weakest source of its calls.
        step_us: its time on the stage where it takes longest.
        outside: the size that lies farthest outside the measured range, "topology", or None.
        factor: how many times beyond the measured range that size is; None for a topology.
    """

    operator: str
    direction: str
    source: Source
    step_us: float
    outside: str | None
    factor: float | None


def _gathering_us(system: PublishedSystem, tasks: list[Task]) -> float:
    """Return the time of collectives that put together what arrives split from a neighbouring stage."""
    pipeline = (task for task in tasks if task.part is Part.PIPELINE_PARALLEL)
    return sum(system.cost(task.operator, task.direction, task.shape).us * task.times for task in pipeline)


def stage_parts(prediction: Prediction, system: PublishedSystem) -> list[StageParts]:
    """Return where every stage spends the step."""
    run, timeline = prediction.run, prediction.timeline
    found = []
    for index, stage in enumerate(prediction.stages):
        edges = edge_passes(run, index)
        gathering = _gathering_us(system, edges.forward), 0.0, _gathering_us(system, edges.backward)
        passes = stage.forward, stage.recompute, stage.backward
        kernels = [
            run.num_micro_batches * (one.cost.us - one.tensor_parallel.us - one.host.us - gathered)
            for one, gathered in zip(passes, gathering, strict=True)
        ]
        bubble = timeline.finished[index] - timeline.busy[index] - timeline.communicating[index]
        ended = timeline.finished[index] + stage.exposed_reduction.us + stage.optimizer.us + stage.gather.us
        found.append(
            StageParts(
                forward_us=kernels[0],
                recompute_us=kernels[1],
                backward_us=kernels[2],
                tensor_parallel_us=run.num_micro_batches * sum(one.tensor_parallel.us for one in passes),
                pipeline_us=timeline.communicating[index] + run.num_micro_batches * sum(gathering),
                host_us=run.num_micro_batches * sum(one.host.us for one in passes),
                bubble_us=bubble,
                data_parallel_exposed_us=stage.exposed_reduction.us,
                optimizer_us=stage.optimizer.us,
                parameter_gather_us=stage.gather.us,
                waiting_us=prediction.step.us - ended,
                data_parallel_hidden_us=max(0.0, stage.reduction.us - stage.exposed_reduction.us),
            )
        )
    return found


def stage_calls(run: TrainingRun, stage: int) -> Iterator[tuple[Task, float]]:
    """Return every task of a stage with the number of times that one step runs it."""
    count = run.num_micro_batches
    layers = run.layers_per_stage[stage]
    for passes, times in ((layer_passes(run), layers * count), (edge_passes(run, stage), count)):
        for task in (*passes.forward, *passes.recompute, *passes.backward):
            yield task, task.times * times
    neighbours = (stage > 0) + (stage < len(run.layers_per_stage) - 1)
    for task in transfer_tasks(run):
        yield task, task.times * 2 * neighbours * count
    end = step_end(run, stage)
    tied = tied_embedding_reduction(run) if stage in (0, len(run.layers_per_stage) - 1) else []
    for task in (*end.reduction, *tied, *end.optimizer, *end.gather):
        yield task, task.times


def answers(prediction: Prediction, system: PublishedSystem) -> list[Answer]:
    """Return what each operator and collective contributes, the largest first.

    Side kernels are timed by their bytes at another operator's rate and counted under their own name.
    """
    found: dict[tuple[str, str], Answer] = {}
    for stage in range(len(prediction.stages)):
        on_stage: dict[tuple[str, str], Answer] = {}
        for task, times in stage_calls(prediction.run, stage):
            cost = system.cost(task.operator, task.direction, task.shape)
            outside = system.outside(task.operator, task.direction, task.shape)
            name = task.operator.name if task.name == task.operator.name else f"{task.name}{BY_BYTES}"
            far = (outside.dimension, outside.factor) if outside else (None, None)
            new = Answer(name, str(task.direction), cost.source, cost.us * times, *far)
            key = (name, new.direction)
            on_stage[key] = _merged(on_stage[key], new, on_stage[key].step_us + new.step_us) if key in on_stage else new
        for key, new in on_stage.items():
            found[key] = _merged(found[key], new, max(found[key].step_us, new.step_us)) if key in found else new
    return sorted(found.values(), key=lambda answer: -answer.step_us)


def _merged(one: Answer, other: Answer, step_us: float) -> Answer:
    """Return two answers of one operator as one, with the weaker source and the farther extrapolation."""

    def distance(answer: Answer) -> float:
        return 0.0 if answer.outside is None else answer.factor or float("inf")

    far = max(one, other, key=distance)
    return Answer(one.operator, one.direction, max(one.source, other.source), step_us, far.outside, far.factor)


def model_parameters(run: TrainingRun) -> int:
    """Return the parameters of the whole model, its vocabulary not padded."""
    model = run.model
    embeddings = (1 if model.tied_embeddings else 2) * model.vocab_size * model.hidden_size
    layers = model.num_layers * model.layer_parameters()
    return layers + embeddings + model.position_parameters() + model.norm_parameters(1)
