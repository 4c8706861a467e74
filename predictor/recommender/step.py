"""A recommender's step: its time, its parts and its throughput."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime, fields_of, step_in
from predictor.core.step.stages import time_tasks
from predictor.core.workload.tasks import Part, Task
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.step import recommender_step


@dataclass(frozen=True, slots=True)
class RecommenderPrediction(StepTime):
    """The time of one step of a recommender's run on a system.

    Attributes:
        run: the run.
        system, gpu: names of the published system and of its GPU.
    """

    run: RecommenderRun
    system: str
    gpu: str

    @property
    def samples_per_second(self) -> float:
        """Return samples per second of the whole run."""
        return self.run.batch_size / self.step.us * 1e6


@dataclass(frozen=True, slots=True)
class RecommenderParts:
    """Where a recommender's step goes, in microseconds; all but the hidden parts add up to the step.

    Attributes:
        lookup_us: rows looked up and pooled.
        forward_us, backward_us: kernels of the dense network.
        update_us: gradients merged by row, and rows updated.
        exchange_us: pooled vectors and their gradients between ranks, what nothing hides.
        input_us: the input's copy from the host and its keys' way to their owners, what nothing hides.
        reduction_us: sum of the replicated gradients over ranks, what nothing hides.
        optimizer_us: update of replicated weights.
        host_us: the device waits for the host to launch kernels.
        hidden_exchange_us, hidden_input_us, hidden_reduction_us: the same traffic beside kernels.
    """

    lookup_us: float
    forward_us: float
    backward_us: float
    update_us: float
    exchange_us: float
    input_us: float
    reduction_us: float
    optimizer_us: float
    host_us: float
    hidden_exchange_us: float
    hidden_input_us: float
    hidden_reduction_us: float

    @property
    def step_us(self) -> float:
        """Return the sum of the parts."""
        embeddings = self.lookup_us + self.update_us + self.exchange_us + self.input_us
        dense = self.forward_us + self.backward_us + self.reduction_us + self.optimizer_us
        return embeddings + dense + self.host_us


def recommender_parts(timed: RecommenderPrediction, system: PublishedSystem) -> RecommenderParts:
    """Return where a predicted step goes."""
    (stage,), (tasks,) = timed.stages, timed.tasks.stages
    ((block, _),) = tasks.chunks[0].blocks
    passes = (stage.whole.forward, stage.whole.backward)

    def kernels(calls: Iterable[Task], *parts: Part) -> float:
        return time_tasks(system, [task for task in calls if task.part in parts]).us

    def exposed(part: Part) -> float:
        return sum(step_pass.traffic[part].us for step_pass in passes if part in step_pass.traffic)

    def hidden(part: Part) -> float:
        return sum(step_pass.hidden[part].us for step_pass in passes if part in step_pass.hidden)

    dense = (Part.OPERATORS, Part.SIDE_KERNELS)
    return RecommenderParts(
        lookup_us=kernels(block.forward.tasks, Part.EMBEDDING_LOOKUP),
        forward_us=kernels(block.forward.tasks, *dense),
        backward_us=kernels(block.backward.tasks, *dense),
        update_us=kernels(block.backward.tasks, Part.EMBEDDING_UPDATE),
        exchange_us=exposed(Part.EMBEDDING_EXCHANGE),
        input_us=exposed(Part.INPUT),
        reduction_us=exposed(Part.DATA_PARALLEL) + stage.exposed_reduction.us,
        optimizer_us=stage.optimizer.us,
        host_us=sum(step_pass.host.us for step_pass in passes),
        hidden_exchange_us=hidden(Part.EMBEDDING_EXCHANGE),
        hidden_input_us=hidden(Part.INPUT),
        hidden_reduction_us=hidden(Part.DATA_PARALLEL),
    )


def predict_recommender(run: RecommenderRun, system: PublishedSystem) -> RecommenderPrediction:
    """Predict one training step of a recommender.

    Raises:
        PublishedError: the system lacks a regressor that the run needs.
    """
    return RecommenderPrediction(
        **fields_of(step_in(run.precision, recommender_step(run), system)),
        run=run,
        system=system.name,
        gpu=system.gpu,
    )
