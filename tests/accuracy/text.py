"""Measured and predicted steps as tables of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from predictor.evidence.verification.measured import Compared, summary
from tests.accuracy.compare_steps import components
from tests.accuracy.step_tables import MeasuredComponent

HEAD = f"{'measured s':>10} {'predicted s':>11} {'error':>7}  90 % interval, s"
# The measured value of several stages that includes no waiting for other stages; the median of other parts.
REPRESENTATIVE: dict[str, Callable[[list[float]], float]] = {
    "pp_p2p": min,
    "optimizer": lambda stages: stages[0],  # later stages have nothing left to do and wait for the first
}


def _numbers(row: Compared, digits: int) -> str:
    cost = row.prediction.step
    interval = f"{cost.low_us / 1e6:.2f} to {cost.high_us / 1e6:.2f}{'' if row.is_inside else '  (outside)'}"
    return f"{row.step.seconds:10.{digits}f} {row.seconds:11.{digits}f} {row.error:+7.1%}  {interval}"


def jobs_text(rows: Iterable[Compared]) -> Iterator[str]:
    """Return one line per run."""
    yield f"{'job':44} {HEAD}"
    for row in rows:
        yield f"{row.step.name:44} {_numbers(row, 3)}"


def published_text(rows: Sequence[Compared]) -> Iterator[str]:
    """Return one line per run with its table and its GPUs, and the mean error of each table."""
    yield f"{'row':58} {'GPUs':>5} {HEAD}"
    for row in rows:
        yield f"{row.step.label:58} {row.step.num_gpus:5} {_numbers(row, 2)}"
    for table in dict.fromkeys(row.step.table for row in rows):
        yield f"{table}: MAPE {summary([row for row in rows if row.step.table == table]).mape:.1%}"


def components_text(rows: Iterable[Compared], measured: Iterable[MeasuredComponent]) -> Iterator[str]:
    """Return every measured part beside its prediction and the source's own."""
    predicted = {row.step.name: components(row) for row in rows}
    yield f"{'job':44} {'part':13} {'measured':>30} {'predicted':>30} {'error':>7} {'reference':>9}"
    for part in measured:
        if part.run not in predicted or part.name not in predicted[part.run]:
            continue
        predictions, measurements = predicted[part.run][part.name], [x for x in part.microseconds if x]
        choose = REPRESENTATIVE.get(part.name, median)
        ratio = choose(predictions) / choose(measurements) - 1.0
        reference = f"{choose(part.reference) / choose(measurements) - 1.0:+9.1%}" if part.reference else ""
        shown = [" ".join(f"{x:.0f}" for x in numbers) for numbers in (part.microseconds, predictions)]
        yield f"{part.run:44} {part.name:13} {shown[0]:>30} {shown[1]:>30} {ratio:+7.1%} {reference}"


def summary_text(name: str, rows: Sequence[Compared]) -> str:
    """Return one line about many rows."""
    errors = summary(rows)
    return f"{name}: MAPE {errors.mape:.2%}, mean {errors.bias:+.2%}, inside their interval {errors.coverage:.0%}"


def layouts_text(rows: Iterable[Compared]) -> Iterator[str]:
    """Return errors by layout."""
    groups: dict[tuple[int, int, int, int], list[Compared]] = defaultdict(list)
    for row in rows:
        run = row.prediction.run
        layout = run.layout
        key = (run.model.hidden_size, layout.tensor_parallel_size, layout.pipeline_parallel_size, run.micro_batch_size)
        groups[key].append(row)
    yield "hidden  tp  pp  micro-batch  rows     mean     least     most   inside"
    for (hidden, tensor, pipeline, batch), members in sorted(groups.items()):
        errors = summary(members)
        numbers = f"{errors.bias:+8.1%} {errors.least:+9.1%} {errors.most:+8.1%}"
        yield f"{hidden:6} {tensor:3} {pipeline:3} {batch:12} {len(members):5} {numbers} {errors.coverage:8.0%}"
