"""``test``: every recorded step predicted, unchanged and from traces in other precisions, beside measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from predictor.base.command_line import Parser
from predictor.base.errors import ConfigError
from predictor.precision.operator_graph import Precision
from predictor.replay.procedure.arguments import add_model
from predictor.replay.procedure.command import UnansweredError, folders_of, new_parser
from predictor.replay.procedure.folders import RECORD, Folders
from predictor.replay.procedure.predicted import JobTrace, Prediction, open_job, predict_job
from predictor.report.text import duration


@dataclass(frozen=True, slots=True)
class Row:
    """One predicted step beside a measured one.

    Attributes:
        model: of the traces.
        by: trace that it was predicted from.
        of: trace that it was measured in; the same one where the step was replayed unchanged.
        prediction: the predicted step, or why there is none.
        measured_us: median of the trace's steps.
    """

    model: str
    by: str
    of: str
    prediction: Prediction | str
    measured_us: float

    @property
    def error(self) -> float | None:
        """Return predicted ÷ measured − 1; None where there is no prediction."""
        return None if isinstance(self.prediction, str) else self.prediction.step_us / self.measured_us - 1.0


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser("test", "Compare predicted steps with measured ones, for every model and precision recorded.")
    add_model(result, default=None)
    result.add_argument(
        "--target_trace_idx", "--target-trace-idx", type=int, default=0, metavar="I", help="step to replay (0)"
    )
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Return the table of all comparisons.

    Raises:
        UnansweredError: nothing is recorded.
    """
    folders = folders_of(arguments)
    models = folders.models() if arguments.model_name is None else [arguments.model_name]
    models = [model for model in models if folders.trace_names(model)]
    if not models:
        raise UnansweredError(f"no traces are recorded below {folders.root / 'traces'}; {RECORD} records a model's")
    rows = [row for model in models for row in _rows(folders, model, arguments.target_trace_idx)]
    return "\n".join(_text(rows))


def _rows(folders: Folders, model: str, index: int) -> Iterator[Row]:
    """Yield the comparisons of a model: every trace from every one, itself included."""
    jobs = {name: open_job(folders, model, name, index) for name in folders.trace_names(model)}
    for by, job in jobs.items():
        for of, other in jobs.items():
            yield Row(model, by, of, _prediction(folders, job, None if by == of else other.precision), other.median_us)


def _prediction(folders: Folders, job: JobTrace, precision: Precision | None) -> Prediction | str:
    try:
        return predict_job(folders, job, precision)
    except ConfigError as error:
        return " ".join(str(error).split())


def _text(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'model':10} {'predicted from':20} {'measured in':20} {'measured':>10} {'predicted':>10} {'error':>7}  source"
    )
    for row in rows:
        head = f"{row.model:10} {row.by:20.20} {row.of:20.20} {duration(row.measured_us):>10}"
        if isinstance(row.prediction, str):
            yield f"{head} {'–':>10} {'':7}  {row.prediction}"
        else:
            yield f"{head} {duration(row.prediction.step_us):>10} {row.error:+7.1%}  {row.prediction.source.label}"
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
