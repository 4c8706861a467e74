"""Operators and collectives of a step, predicted and measured: the time of all calls in one pass, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple, TypeVar, get_args

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.cost import Cost
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime
from predictor.core.timeline.schedules import SCHEDULES, messages_sent
from predictor.core.workload.step_tasks import StageTasks, StepTasks
from predictor.core.workload.tasks import Task
from predictor.replay.files.measured_run import MeasuredRun
from predictor.replay.files.measured_step import COLLECTIVE, MeasuredSteps, PassName
from predictor.replay.files.verified_run import OperatorOfStep, PredictedTime

PASSES: dict[str, PassName] = {name: name for name in get_args(PassName)}


class Key(NamedTuple):
    """What measured and predicted calls are matched by."""

    step_pass: PassName
    name: str
    part: str


def _calls(record: MeasuredSteps) -> dict[Key, list[float]]:
    """Return the durations of a rank's collectives in the order of its calls, in microseconds."""
    calls: dict[Key, list[float]] = {}
    for span in sorted(record.profiled_spans, key=lambda span: span.start_us):
        step_pass = PASSES.get(str(span.details.get("pass")))
        if span.category == COLLECTIVE and step_pass is not None:
            key = Key(step_pass, span.name, str(span.details.get("part", "")))
            calls.setdefault(key, []).append(span.duration_us)
    return calls


def transfer_us(ranks: Sequence[MeasuredSteps], key: Key) -> float:
    """Return what all calls of a collective in one step take, in microseconds.

    Where the ranks' records do not show the same calls, it is the shortest of the ranks' sums, the median of its steps.

    Args:
        ranks: of one stage in one launch; at least one has recorded the collective.
        key: of the collective.
    """
    calls = [_calls(rank).get(key, []) for rank in ranks]
    if calls[0] and len({len(durations) for durations in calls}) == 1:
        return float(sum(min(durations) for durations in zip(*calls, strict=True)))
    return min(
        median(operator.samples_us)
        for rank in ranks
        for operator in rank.provenance.operators
        if (operator.step_pass, operator.name, operator.part) == key
    )


# Errors of operators that take less than this share of the measured step are left out of their median.
SMALLEST_COUNTED = 0.01
NOT_MEASURED, NOT_PREDICTED = "not measured", "not predicted"


@dataclass(frozen=True, slots=True)
class Calls:
    """All predicted calls of a key in one step of one rank."""

    cost: Cost
    count: float

    def __add__(self, other: Calls) -> Calls:
        """Return both together."""
        return Calls(self.cost + other.cost, self.count + other.count)


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """All measured calls of a key in one step of one rank, in microseconds."""

    us: float
    count: float

    def __add__(self, other: MeasuredCalls) -> MeasuredCalls:
        """Return both together."""
        return MeasuredCalls(self.us + other.us, self.count + other.count)


AnyCalls = TypeVar("AnyCalls", Calls, MeasuredCalls)


def predicted_time(cost: Cost) -> PredictedTime:
    """Return a cost as records have it."""
    return PredictedTime(us=cost.us, low_us=cost.low_us, high_us=cost.high_us, source=cost.source.label)


def _sends(step: StepTasks, stage: StageTasks, number: int) -> tuple[tuple[PassName, int], tuple[PassName, int]]:
    """Return the messages that a stage sends per micro-batch forward and backward."""
    forward, backward = messages_sent(SCHEDULES[step.schedule], number, len(step.stages), len(stage.chunks))
    return ("forward", forward), ("backward", backward)


def _calls_by_pass(step: StepTasks, number: int) -> Iterator[tuple[PassName, Task, float]]:
    """Yield every task of a stage with its pass and the number of times that one step runs it.

    A message is counted where it is sent.
    """
    stage, count = step.stages[number], step.num_micro_batches
    for chunk in stage.chunks:
        for block, times in chunk.blocks:
            passes: tuple[tuple[PassName, list[Task]], ...] = (
                ("forward", block.forward.calls()),
                ("recompute", block.recompute.calls()),
                ("backward", block.backward.calls()),
            )
            for step_pass, tasks in passes:
                for task in tasks:
                    yield step_pass, task, task.times * times * count
    for task in step.message:
        for step_pass, sent in _sends(step, stage, number):
            yield step_pass, task, task.times * sent * count
    for task in stage.end.calls():
        yield "end", task, task.times


def predicted_operators(step: StepTasks, stage: int, system: PublishedSystem) -> dict[Key, Calls]:
    """Return all operators and collectives of a stage's step, hidden traffic included."""
    summed: dict[Key, Calls] = {}
    for step_pass, task, times in _calls_by_pass(step, stage):
        if not times:
            continue
        part = str(task.part) if task.operator.name in COLLECTIVES else ""
        key = Key(step_pass, task.name, part)
        calls = Calls(system.cost(task.operator, task.direction, task.shape) * times, times)
        summed[key] = summed[key] + calls if key in summed else calls
    return summed


def _measured_on(ranks: Sequence[MeasuredSteps]) -> dict[Key, MeasuredCalls]:
    """Return what one launch recorded on the ranks of a stage: the median over the profiled steps, per step.

    Of an operator it is the mean over the ranks, one that does not run it counting as zero; of a collective what it
    takes without waiting for other ranks.
    """
    times: dict[Key, list[MeasuredCalls]] = {}
    for rank in ranks:
        for operator in rank.provenance.operators:
            key = Key(operator.step_pass, operator.name, operator.part)
            times.setdefault(key, []).append(MeasuredCalls(median(operator.samples_us), operator.count))
    return {
        key: MeasuredCalls(
            transfer_us(ranks, key) if key.name in COLLECTIVES else sum(call.us for call in calls) / len(ranks),
            mean(call.count for call in calls),
        )
        for key, calls in times.items()
    }


def measured_operators(launches: Sequence[MeasuredRun], stage: int) -> dict[Key, MeasuredCalls]:
    """Return what the profiler recorded on a stage, the mean of the launches in which it did."""
    recorded = [
        _measured_on(ranks)
        for launch in launches
        if (ranks := [rank for rank in launch.of_stage(stage) if rank.provenance.operators])
    ]
    keys = dict.fromkeys(key for measured in recorded for key in measured)
    return {
        key: MeasuredCalls(
            sum(measured[key].us for measured in recorded if key in measured) / len(recorded),
            mean(measured[key].count for measured in recorded if key in measured),
        )
        for key in keys
    }


def _renamed(calls: dict[Key, AnyCalls], names: dict[Key, Key]) -> dict[Key, AnyCalls]:
    """Return calls under other keys; those that come together are added."""
    merged: dict[Key, AnyCalls] = {}
    for key, value in calls.items():
        new = names.get(key, key)
        merged[new] = merged[new] + value if new in merged else value
    return merged


def matched(
    predicted: dict[Key, Calls], measured: dict[Key, MeasuredCalls]
) -> tuple[dict[Key, Calls], dict[Key, MeasuredCalls]]:
    """Return both sides with the collectives' keys brought together.

    What a recorder does not tell apart is compared together: parts that it does not name, and passes where the two
    sides see different ones, as of a message or of a reduction that runs beside the backward pass.
    """
    whole = {key: key._replace(part="") for key in predicted if key.part and key._replace(part="") in measured}
    predicted = _renamed(predicted, whole)
    for name, part in {(key.name, key.part) for key in measured if key.name in COLLECTIVES}:
        seen = [key for key in measured if (key.name, key.part) == (name, part)]
        expected = [key for key in predicted if (key.name, key.part) == (name, part)]
        if expected and set(seen) != set(expected):
            common = expected[0] if len(expected) == 1 else seen[0]
            predicted = _renamed(predicted, dict.fromkeys(expected, common))
            measured = _renamed(measured, dict.fromkeys(seen, common))
    return predicted, measured


def _why_not_predicted(key: Key, predicted: dict[Key, Calls]) -> str:
    """Return why a measured operator has no prediction."""
    alike = [other for other in predicted if other.name == key.name]
    passes = sorted({other.step_pass for other in alike if other.part == key.part})
    if passes:
        return f"{NOT_PREDICTED}: in {' and '.join(passes)} only"
    parts = sorted({other.part.replace("_", " ") for other in alike})
    if parts:
        return f"{NOT_PREDICTED}: {' and '.join(parts)} only"
    if key.name in catalogue() or key.name in COLLECTIVES:
        return f"{NOT_PREDICTED}: not in this configuration's step"
    return f"{NOT_PREDICTED}: no such task"


def compared_operators(
    prediction: StepTime, system: PublishedSystem, launches: Sequence[MeasuredRun]
) -> list[OperatorOfStep]:
    """Return every operator of every stage, predicted beside measured, the longest first; none if none was recorded."""
    rows: list[OperatorOfStep] = []
    for stage in range(len(prediction.tasks.stages)):
        recorded = measured_operators(launches, stage)
        if not recorded:
            continue
        predicted, measured = matched(predicted_operators(prediction.tasks, stage, system), recorded)
        of_stage = []
        for key in {**predicted, **measured}:
            calls, ran = predicted.get(key), measured.get(key)
            missing = NOT_MEASURED if ran is None else "" if calls else _why_not_predicted(key, predicted)
            row = OperatorOfStep(
                stage=stage,
                step_pass=key.step_pass,
                name=key.name,
                part=key.part,
                predicted=None if calls is None else predicted_time(calls.cost),
                predicted_calls=None if calls is None else calls.count,
                measured_us=None if ran is None else ran.us,
                measured_calls=None if ran is None else ran.count,
                missing=missing,
            )
            of_stage.append(row)
        rows += sorted(of_stage, key=lambda row: -max(row.measured_us or 0.0, row.predicted.us if row.predicted else 0))
    return rows


def counted_errors(rows: Sequence[OperatorOfStep], step_us: float) -> list[float]:
    """Return the absolute errors of the operators that take their share of the measured step."""
    return [
        abs(row.error)
        for row in rows
        if row.error is not None and row.measured_us is not None and row.measured_us >= SMALLEST_COUNTED * step_us
    ]
