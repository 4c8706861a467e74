"""One self-contained HTML page: predicted against measured, and the two timelines of every run on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from predictor.core.base.quantities import duration
from predictor.core.base.words import counted
from predictor.core.report.page.parity import ParityPoint, parity
from predictor.core.report.page.parts import table
from predictor.core.report.page.style import CONTENT_WIDTH, STYLE
from predictor.core.step.spans import timed_trace
from predictor.core.timeline.picture import picture
from predictor.core.timeline.pipeline import PASS_NAMES, Stream
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import StepTrace
from predictor.evidence.verification.answer import Verification, disturbed_lines, failure_lines, summary_lines
from predictor.evidence.verification.operators import SMALLEST_COUNTED
from predictor.evidence.verification.run_text import (
    OPERATOR_HEAD,
    PART_HEAD,
    RUN_HEAD,
    circumstances,
    headline,
    listed_operators,
    operator_cells,
    part_cells,
    run_cells,
    together,
)
from predictor.evidence.verification.runs import Verified
from predictor.replay.files.measured_run import MeasuredRun
from predictor.replay.files.measured_step import BACKWARD, FORWARD, OPERATOR, OPTIMIZER, MeasuredSteps
from predictor.replay.files.verified_run import VerifiedRun

# How passes of profiled operators are drawn.
SHOWN_AS = {"forward": FORWARD, "recompute": BACKWARD, "backward": BACKWARD, "end": OPTIMIZER}
SLOT_PASSES = frozenset(PASS_NAMES.values())
# A picture of more slots is too fine to read, and large.
MOST_SLOTS = 20_000


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _as_slot(span: Span, stage: int) -> Span:
    """Return a measured forward or backward part as a slot of a stage's picture."""
    told = span.details
    kind = str(told.get("pass", span.category))
    numbers = {name: value if isinstance(value := told.get(name), int) else 0 for name in ("micro_batch", "chunk")}
    details = {"pass": kind if kind in SLOT_PASSES else span.category, **numbers}
    return span._replace(rank=stage, stream=Stream.COMPUTE, details=details, depth=0, after=())


def _stage_spans(record: MeasuredSteps, stage: int) -> list[Span]:
    """Return a rank's parts as the spans of its stage."""
    spans = []
    for span in record.part_spans:
        if span.category in (FORWARD, BACKWARD):
            spans.append(_as_slot(span, stage))
        elif span.category == OPTIMIZER:
            spans.append(span._replace(rank=stage, stream=Stream.OPTIMIZER, depth=0, after=()))
    return spans


def _profiled_spans(record: MeasuredSteps, stage: int) -> list[Span]:
    """Return a rank's profiled operators, those of one pass that follow each other as one span of its stage."""
    spans: list[Span] = []
    for span in sorted(record.profiled_spans, key=lambda span: span.start_us):
        kind = str(span.details.get("pass"))
        if span.category != OPERATOR or kind not in SHOWN_AS:
            continue
        stream = Stream.OPTIMIZER if SHOWN_AS[kind] == OPTIMIZER else Stream.COMPUTE
        last = spans[-1] if spans else None
        if last is not None and last.category == SHOWN_AS[kind]:
            spans[-1] = last._replace(end_us=max(last.end_us, span.end_us))
            continue
        details = {"pass": SHOWN_AS[kind], "micro_batch": "", "chunk": 0}  # which one it is is not recorded
        times = (span.start_us, span.end_us)
        spans.append(Span(kind, stage, stream, *times, category=SHOWN_AS[kind], details=details))
    return spans


def _aligned(by_stage: list[list[Span]]) -> list[list[Span]]:
    """Return the spans of stages whose clocks started apart, ending together, from the first's start.

    The norm of all gradients, which clipping and the optimizer wait for, lets no stage end before the others.
    """
    ends = [max((span.end_us for span in spans), default=0.0) for spans in by_stage]
    starts = [min((span.start_us for span in spans), default=0.0) for spans in by_stage]
    lasts = max(end - start for start, end in zip(starts, ends, strict=True))
    return [
        [span._replace(start_us=span.start_us + lasts - end, end_us=span.end_us + lasts - end) for span in spans]
        for spans, end in zip(by_stage, ends, strict=True)
    ]


def measured_trace(launch: MeasuredRun) -> StepTrace | None:
    """Return the recorded step of every stage's first rank; None where one has no forward or backward part.

    Where the parts do not tell forward from backward passes, as of a pipeline, it is the profiled step.
    """
    first = [launch.of_stage(stage)[0] for stage in launch.stages]
    by_stage = [_stage_spans(record, stage) for stage, record in enumerate(first)]
    how = "measured"
    if not all(any(span.category == BACKWARD for span in spans) for spans in by_stage):
        by_stage = _aligned([_profiled_spans(record, stage) for stage, record in enumerate(first)])
        how = "measured under the profiler"
    if not all(any(span.stream == Stream.COMPUTE for span in spans) for spans in by_stage):
        return None
    told = launch.provenance
    spans = [span for spans in by_stage for span in spans]
    ends = [*(span.end_us for span in spans), *([launch.step_us] if how == "measured" else [])]
    return StepTrace(f"{how}, {told.world_size} × {told.device}", max(ends), spans)


def _timelines(run: Verified) -> str:
    """Return the predicted and the measured step, one above the other on one time axis."""
    record = run.record
    predicted = timed_trace(run.compared.prediction, f"{counted(record.num_gpus, 'GPU')} of {record.system}")
    if len(predicted.slots) > MOST_SLOTS:
        return f"<p>Timelines are left out: {len(predicted.slots):,} slots.</p>"
    measured = measured_trace(run.launches[-1]) if run.launches else None
    traces = [StepTrace(f"predicted, {predicted.title}", predicted.step_us, predicted.spans, predicted.blocking)]
    traces += [measured] if measured is not None else []
    until_us = max(trace.step_us for trace in traces)
    return "".join(f'<div class="scroll">{picture(trace, CONTENT_WIDTH, until_us)}</div>' for trace in traces)


def _run_section(run: Verified) -> str:
    record = run.record
    step_us = record.measured_us
    content = [_paragraphs([headline(record), *circumstances(record)]), _timelines(run)]
    stages = sorted({part.stage for part in record.parts})
    for stage in stages:
        title = f"<h3>Stage {stage}</h3>" if len(stages) > 1 else ""
        parts = [part_cells(part, step_us) for part in record.parts if part.stage == stage]
        content += [title, table(PART_HEAD, parts)]
        listed, more = listed_operators(record, stage)
        if listed:
            content.append(table(OPERATOR_HEAD, [operator_cells(row, step_us) for row in listed]))
        if more:
            content.append(f"<p>and {more} more, each smaller</p>")
        content.append(_paragraphs(together(record, stage)))
    return f"<section><h2>{escape(record.name)}</h2>{''.join(content)}</section>"


def _step_points(records: Sequence[VerifiedRun]) -> list[ParityPoint]:
    return [
        ParityPoint(run.measured_us, run.predicted.us, run.predicted.low_us, run.predicted.high_us, run.name)
        for run in records
        if run.predicted.low_us > 0.0
    ]


def _operator_points(records: Sequence[VerifiedRun]) -> list[ParityPoint]:
    """Return the operators that count into the median error."""
    points = []
    for run in records:
        for row in run.operators:
            predicted, us = row.predicted, row.measured_us
            if us is None or us < SMALLEST_COUNTED * run.measured_us or predicted is None or predicted.low_us <= 0.0:
                continue
            label = f"{run.name}, {row.step_pass} {row.name}"
            points.append(ParityPoint(us, predicted.us, predicted.low_us, predicted.high_us, label))
    return points


def page(verification: Verification) -> str:
    """Return the page."""
    records = [run.record for run in verification.runs]
    steps, operators = _step_points(records), _operator_points(records)
    title = "Predicted and measured"
    if len(records) == 1:
        title = f"{records[0].name}: predicted {duration(records[0].predicted.us)}"
    said = _paragraphs(
        [*disturbed_lines(verification), *summary_lines(verification), *failure_lines(verification.failed)]
    )
    title += ", on a disturbed machine" if records and all(run.disturbed for run in records) else ""
    sections = [
        f"<h1>{escape(title)} <small>{escape(', '.join(dict.fromkeys(run.system for run in records)))}</small></h1>",
        said,
        f"<section><h2>Steps</h2>{parity(steps, 'step')}</section>" if steps else "",
        table(RUN_HEAD, [run_cells(run) for run in records]) if records else "",
        "<section><h2>Operators</h2><p>All calls of an operator in one pass of a step, those that take 1 % of it or "
        f"more.</p>{parity(operators, 'operator')}</section>"
        if operators
        else "",
        *(_run_section(run) for run in verification.runs if run.launches or len(records) == 1),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )
