"""``test``: every recorded step predicted, unchanged and from traces in other precisions, beside measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import duration
from predictor.core.timeline.graph import GraphError
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.procedure.arguments import add_model
from predictor.replay.procedure.command import UnansweredError, folders_of, new_parser
from predictor.replay.procedure.folders import RECORD, Folders
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.opened import count_steps
from predictor.replay.procedure.predicted import JobTrace, Prediction, open_job, predict_job

BY_ITS_OPERATORS = "its operators"


@dataclass(frozen=True, slots=True)
class Row:
    """Predicted steps beside measured ones.

    Attributes:
        model: of the traces.
        by: trace that the steps were predicted from.
        of: trace that they were measured in; the same one where steps were replayed unchanged.
        measured_us: median of the trace's steps.
        predicted_us: likewise; None where there is no prediction.
        words: what the prediction rests on, or why there is none.
    """

    model: str
    by: str
    of: str
    measured_us: float
    predicted_us: float | None
    words: str

    @property
    def error(self) -> float | None:
        """Return predicted ÷ measured − 1; None where there is no prediction."""
        return None if self.predicted_us is None else self.predicted_us / self.measured_us - 1.0


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser("test", "Compare predicted steps with measured ones, for every model and precision recorded.")
    add_model(result, default=None)
    add_config(result)
    result.add_argument(
        "--target_trace_idx", "--target-trace-idx", type=int, metavar="I", help="step of the traces (median of all)"
    )
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Return the table of all comparisons.

    Raises:
        UnansweredError: nothing is recorded, or nothing of it can be tracked.
    """
    folders, config = folders_of(arguments), config_of(folders_of(arguments), arguments)
    models = folders.models() if arguments.model_name is None else [arguments.model_name]
    models = [model for model in models if folders.trace_names(model)]
    if not models:
        raise UnansweredError(f"no traces are recorded below {folders.root / 'traces'}; {RECORD} records a model's")
    rows: list[Row] = []
    left_out: list[str] = []
    for model in models:
        traces = []
        for name in folders.trace_names(model):
            try:
                traces.append(list(_steps(folders, model, name, arguments.target_trace_idx, config)))
            except (ConfigError, GraphError) as error:
                left_out.append(f"left out: {model}, {name}: {' '.join(str(error).split())}")
        rows += [_row(by, of) for by in traces for of in traces]
    if not rows:
        raise UnansweredError("; ".join(left_out))
    return "\n".join([*_text(rows), *left_out])


def _steps(folders: Folders, model: str, name: str, index: int | None, config: OperatorConfig) -> Iterator[JobTrace]:
    indices = range(count_steps(folders.traces(model, name)[0])) if index is None else [index]
    for each in indices:
        yield open_job(folders, model, name, each, config)


def _row(by: Sequence[JobTrace], of: Sequence[JobTrace]) -> Row:
    """Compare the steps of a trace, in the precision of another one, with those of that one."""
    first, measured_us = by[0], median(job.measured_us for job in of)
    try:
        if first.name == of[0].name:
            predictions, words = [predict_job(job, None) for job in by], "unchanged"
        else:
            predictions, words = _in_precision(by, of)
    except ConfigError as error:
        return Row(first.model, first.name, of[0].name, measured_us, None, " ".join(str(error).split()))
    return Row(first.model, first.name, of[0].name, measured_us, median(each.step_us for each in predictions), words)


def _in_precision(by: Sequence[JobTrace], of: Sequence[JobTrace]) -> tuple[list[Prediction], str]:
    """Predict steps in the precision of a trace, without it where costs measured apart from it tell enough.

    Raises:
        ConfigError: no operator can compute in the precision, or even with that trace's operators a cost is not known.
    """
    precision = of[0].precision
    words = "measured costs"
    if any(costs.unknown_us(precision) for job in by for costs in job.costs):
        times = [costs.times for job in of for costs in job.costs]
        by, words = [job.knowing(times) for job in by], BY_ITS_OPERATORS
    predictions = [predict_job(job, precision) for job in by]
    return predictions, f"{words} ({max(each.source for each in predictions).label})"


def _text(rows: Sequence[Row]) -> Iterator[str]:
    yield (f"{'model':10} {'predicted from':20} {'measured in':20} {'measured':>10} {'predicted':>10} {'error':>7}  by")
    for row in rows:
        head = f"{row.model:10} {row.by:20.20} {row.of:20.20} {duration(row.measured_us):>10}"
        if row.predicted_us is None or row.error is None:
            yield f"{head} {'–':>10} {'':7}  {row.words}"
        else:
            yield f"{head} {duration(row.predicted_us):>10} {row.error:+7.1%}  {row.words}"
    yield ""
    for what, chosen in (
        ("unchanged replay", [row for row in rows if row.by == row.of]),
        ("another precision", [row for row in rows if row.by != row.of]),
    ):
        errors = [abs(row.error) for row in chosen if row.error is not None]
        if errors:
            yield (
                f"{what}: median error {median(errors):.1%}, largest {max(errors):.1%}, "
                f"{len(errors)} of {len(chosen)} predicted"
            )
    if any(BY_ITS_OPERATORS in row.words for row in rows):
        yield f"{BY_ITS_OPERATORS}: operators take what they took in the trace that is predicted, as QSync does"
