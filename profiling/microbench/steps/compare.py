"""Compare recorded steps with their predictions; reads files only, so it needs neither torch nor the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from microbench.errors import MeasureError
from microbench.rows import Status
from microbench.steps.record import Measured, StepRecord, read_records
from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.text_table import text_table
from predictor.core.plan.loading import prepare
from predictor.core.schema.finding import find_folder
from predictor.core.schema.inherited_keys import of_record
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.run_choices import Conditions

FORMAT = "estimate-train-time/step-comparison/1"
COLUMNS = (
    "step", "measured ms", "wall ms", "spread", "predicted ms", "90 % interval", "inside", "error", "forward",
    "backward", "optimizer", "peak GiB", "predicted GiB",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartComparison:
    """A part of the step, in microseconds: all micro-batches, waiting for the host included."""

    measured_us: float
    predicted_us: float

    @property
    def ratio(self) -> float:
        """Return predicted over measured."""
        return self.predicted_us / self.measured_us


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """One GPU's memory in GiB, and the part of the prediction that is tensors, as ``allocated_gib`` is."""

    allocated_gib: float
    reserved_gib: float
    predicted_tensors_gib: float
    predicted_total_gib: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction of a recorded step, in microseconds; ``source`` is that of its least certain cost."""

    step_us: float
    low_us: float
    high_us: float
    source: str
    forward: PartComparison
    backward: PartComparison
    optimizer: PartComparison
    memory: MemoryComparison | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One recorded step and its prediction.

    Attributes:
        step_us: median of the steps by events, which the prediction is held to.
        wall_us: the same from an idle device to an idle device.
        relative_spread: IQR ÷ median of the steps by events.
        predicted: None where ``reason`` says why there is none.
    """

    name: str
    step_us: float
    wall_us: float
    relative_spread: float
    kernel_us: float | None
    predicted: Predicted | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Return predicted ÷ measured − 1."""
        return None if self.predicted is None else self.predicted.step_us / self.step_us - 1.0

    @property
    def is_inside(self) -> bool | None:
        """Return whether the measured step is inside the 90 % interval."""
        return None if self.predicted is None else self.predicted.low_us <= self.step_us <= self.predicted.high_us


def _memory(measured: Measured, prediction: Prediction) -> MemoryComparison | None:
    if measured.memory is None:
        return None
    (needed,) = step_memory(prediction.tasks)
    return MemoryComparison(
        allocated_gib=measured.memory.allocated / GIB,
        reserved_gib=measured.memory.reserved / GIB,
        predicted_tensors_gib=(needed.total - needed.allowance) / GIB,
        predicted_total_gib=needed.total / GIB,
    )


def _predicted(measured: Measured, prediction: Prediction) -> Predicted:
    """Return a prediction beside what was measured."""
    (stage,) = prediction.stages
    count = prediction.run.num_micro_batches
    parts = {
        "forward": count * stage.whole.forward.cost.us,
        "backward": count * stage.whole.backward.cost.us,
        "optimizer": stage.optimizer.us,
    }
    step = prediction.step
    return Predicted(
        step_us=step.us,
        low_us=step.low_us,
        high_us=step.high_us,
        source=step.source.label,
        memory=_memory(measured, prediction),
        **{part: PartComparison(measured.median_us(f"{part}_us"), us) for part, us in parts.items()},
    )


def compare_step(record: StepRecord, system: Path) -> Comparison | None:
    """Predict a recorded step on a published system; None for a record without a measurement."""
    measured = record.measured
    if record.status is not Status.OK or measured is None:
        return None
    predicted, reason = None, ""
    try:
        loaded = prepare({**of_record(record.configuration), "system": str(system)}, system)
        # A recorded step is a bare loop: the model answers for it, without what users' runs took beyond it.
        predicted = _predicted(measured, predict(replace(loaded.run, conditions=Conditions.MODEL), loaded.system))
    except (ConfigError, MissingKeyError, PublishedError) as error:
        reason = str(error)
    return Comparison(
        name=record.name,
        step_us=measured.median_us("device_us"),
        wall_us=measured.median_us("wall_us"),
        relative_spread=measured.relative_spread,
        kernel_us=None if measured.kernels is None else measured.kernels.time_us,
        predicted=predicted,
        reason=reason,
    )


def compare_steps(results: Path, regressors: str) -> tuple[list[Comparison], list[StepRecord]]:
    """Compare all records of a results folder; those without a measurement come second, as they are.

    Args:
        results: folder of the measured system, results/NAME.
        regressors: folder of a published system, or its name.

    Raises:
        MeasureError: there is no record, no such system, or a record is damaged.
    """
    try:
        system = find_folder(regressors, Path.cwd())
    except ConfigError as error:
        raise MeasureError(str(error)) from None
    records = read_records(results)
    rows = [row for record in records if (row := compare_step(record, system)) is not None]
    return rows, [record for record in records if record.status is not Status.OK]


def _cells(row: Comparison) -> tuple[str, ...]:
    measured = (f"{row.step_us / 1e3:.2f}", f"{row.wall_us / 1e3:.2f}", f"{row.relative_spread:.1%}")
    predicted = row.predicted
    if predicted is None:
        return (row.name, *measured, f"not predicted: {row.reason}")
    memory = ("", "")
    if predicted.memory is not None:
        memory = (f"{predicted.memory.allocated_gib:.1f}", f"{predicted.memory.predicted_tensors_gib:.1f}")
    return (
        row.name,
        *measured,
        f"{predicted.step_us / 1e3:.2f}",
        f"{predicted.low_us / 1e3:.2f} to {predicted.high_us / 1e3:.2f}",
        "yes" if row.is_inside else "no",
        f"{row.error:+.1%}",
        *(f"{part.ratio:.2f}" for part in (predicted.forward, predicted.backward, predicted.optimizer)),
        *memory,
    )


def render(rows: Sequence[Comparison], unmeasured: Sequence[StepRecord]) -> str:
    """Return the comparison as a table with a line on what its columns are, and what was not measured below."""
    lines = text_table([COLUMNS, *map(_cells, rows)])
    errors = [abs(row.error) for row in rows if row.error is not None]
    if errors:
        inside = sum(bool(row.is_inside) for row in rows)
        lines.append(
            f"{len(errors)} steps: mean absolute error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}, "
            f"{inside} inside the interval."
        )
    lines.append("forward, backward, optimizer: predicted ÷ measured; GiB: of tensors, without runtime and fragments.")
    lines += [f"{record.name}: {record.status}: {record.reason}" for record in unmeasured]
    return "\n".join(lines)


def to_json(rows: Sequence[Comparison], unmeasured: Sequence[StepRecord], regressors: str) -> dict[str, Any]:
    """Return the comparison as plain lists, dictionaries, strings and numbers."""
    return {
        "format": FORMAT,
        "regressors": regressors,
        "steps": [{**asdict(row), "error": row.error, "is_inside": row.is_inside} for row in rows],
        "not_measured": [
            {"name": record.name, "status": record.status.value, "reason": record.reason} for record in unmeasured
        ],
    }
