"""Verified runs as text: one in detail, or a table of many."""

from __future__ import annotations

from statistics import median

from predictor.core.base.quantities import NONE, duration, milliseconds
from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.evidence.verification.answer import Verification, disturbed_lines, failure_lines, summary_lines
from predictor.replay.files.verified_run import OperatorOfStep, PartOfStep, PredictedTime, VerifiedRun

# Operators below this share of the step are counted, not listed; --json has all.
SMALLEST_LISTED = 0.001


def error_text(predicted_us: float | None, measured_us: float | None) -> str:
    """Return predicted over measured minus one; a dash where one is missing."""
    if predicted_us is None or not measured_us:
        return NONE
    return f"{predicted_us / measured_us - 1.0:+.1%}"


def interval_text(low_us: float | None, high_us: float | None, step_us: float) -> str:
    """Return the ends of an interval in milliseconds."""
    if low_us is None or high_us is None:
        return ""
    return f"{milliseconds(low_us, step_us)} – {milliseconds(high_us, step_us)}"


def drift_text(drift: float | None) -> str:
    """Return how much slower the machine was than while it was measured; a dash where it is not known."""
    return NONE if drift is None else f"{drift:.2f}×"


def part_cells(part: PartOfStep, step_us: float) -> list[str]:
    """Return a part's name, predicted and measured time, interval and error."""
    return [
        part.name,
        milliseconds(part.predicted_us, step_us),
        interval_text(part.low_us, part.high_us, step_us),
        milliseconds(part.measured_us, step_us),
        error_text(part.predicted_us, part.measured_us),
    ]


def operator_cells(row: OperatorOfStep, step_us: float) -> list[str]:
    """Return an operator's pass, name, times, interval, share of the measured step, error, and what it rests on."""
    predicted: PredictedTime | None = row.predicted
    name = f"{row.name} ({row.part.replace('_', ' ')})" if row.part else row.name
    return [
        row.step_pass,
        name,
        milliseconds(None if predicted is None else predicted.us, step_us),
        "" if predicted is None else interval_text(predicted.low_us, predicted.high_us, step_us),
        milliseconds(row.measured_us, step_us),
        NONE if row.measured_us is None else f"{row.measured_us / step_us:.1%}",
        "" if row.error is None else f"{row.error:+.1%}",
        row.missing or ("" if predicted is None else predicted.source),
    ]


PART_HEAD = ("part, ms", "predicted", "90 % interval", "measured", "error")
OPERATOR_HEAD = ("pass", "operator, ms", "predicted", "90 % interval", "measured", "share", "error", "source")


def listed_operators(run: VerifiedRun, stage: int) -> tuple[list[OperatorOfStep], int]:
    """Return a stage's operators that take a share of the step worth listing, and how many more there are."""
    rows = [row for row in run.operators if row.stage == stage]
    smallest = SMALLEST_LISTED * run.measured_us
    listed = [
        row for row in rows if (row.measured_us or 0.0) >= smallest or (row.predicted and row.predicted.us >= smallest)
    ]
    return listed, len(rows) - len(listed)


def together(run: VerifiedRun, stage: int) -> list[str]:
    """Return what all operators, and all collectives, of a stage take beside the step; traffic may be hidden."""
    lines = []
    for label, are_collectives in (("operators", False), ("collectives, hidden or not", True)):
        rows = [row for row in run.operators if row.stage == stage and bool(row.part) is are_collectives]
        if rows:
            predicted_us = sum(row.predicted.us for row in rows if row.predicted is not None)
            measured_us = sum(row.measured_us for row in rows if row.measured_us is not None)
            lines.append(
                f"All {label}: predicted {milliseconds(predicted_us, run.measured_us)} ms, measured "
                f"{milliseconds(measured_us, run.measured_us)} ms, {measured_us / run.measured_us:.0%} of the step."
            )
    return lines


def headline(run: VerifiedRun) -> str:
    """Return the step in one line."""
    predicted = run.predicted
    drift = "" if run.drift is None else f", drift {drift_text(run.drift)}"
    return (
        f"{run.name} on {run.system}: predicted {duration(predicted.us)} ({duration(predicted.low_us)} – "
        f"{duration(predicted.high_us)}, {predicted.source}), measured {duration(run.measured_us)}, error "
        f"{run.error:+.1%}{drift}, {'inside' if run.inside else 'outside'} the 90 % interval"
    )


def circumstances(run: VerifiedRun) -> list[str]:
    """Return how and where a run was measured, a sentence each."""
    if not run.launches:
        told = f"{run.statistic} of several steps, " if run.statistic else ""
        return [f"The measured time is as reported: {told}{run.group}."]
    steps = sum(len(launch.samples_us) for launch in run.launches)
    threads = "" if run.threads is None else f" of {run.threads} thread{'s' * (run.threads > 1)}"
    where = f"{run.num_gpus} rank{'s' * (run.num_gpus > 1)}{threads} on {run.device}, {run.precision}"
    spread = max(launch.spread for launch in run.launches)
    lines = [f"Measured: {counted(steps, 'step')}, {where}; interquartile range at most {spread:.1%} of the median."]
    if run.noise is None:
        lines.append("Launched once, so the noise between launches is not known.")
    else:
        lines.append(f"Noise: the medians of {len(run.launches)} launches are {run.noise:.1%} apart.")
    lines.append(machine(run))
    profiled = [us for launch in run.launches for us in launch.profiled_us]
    if profiled:
        slower = median(profiled) / run.measured_us - 1.0
        lines.append(f"Operators: {len(profiled)} steps under the profiler, {slower:+.1%} against the timed ones.")
    return lines


def machine(run: VerifiedRun) -> str:
    """Return how busy the machine was beside a run."""
    if run.drift is None:
        return f"Drift of the machine: not known; {run.system} was measured without a reference kernel, or elsewhere."
    tries = max(launch.tries for launch in run.launches)
    kept = f", the quietest of up to {tries} tries" if tries > 1 else ""
    words = "; its error says little of the prediction" if run.disturbed else ""
    return (
        f"Drift of the machine: the reference kernel took {run.drift:.2f} × as long beside this run as while "
        f"{run.system} was measured{kept}{words}."
    )


def _detailed(run: VerifiedRun) -> list[str]:
    """Return one run: the step, its parts and its operators."""
    step_us = run.measured_us
    lines = [headline(run), *circumstances(run)]
    stages = sorted({part.stage for part in run.parts})
    for stage in stages:
        title = f"stage {stage}" if len(stages) > 1 else "the step"
        parts = [part_cells(part, step_us) for part in run.parts if part.stage == stage]
        lines += ["", f"Where {title} goes", *text_table([PART_HEAD, *parts], left=(0, -1))]
        listed, more = listed_operators(run, stage)
        if listed:
            cells = [OPERATOR_HEAD, *(operator_cells(row, step_us) for row in listed)]
            lines += ["", f"Operators and collectives of {title}", *text_table(cells, left=(0, 1, -1))]
            if more:
                lines.append(f"and {more} more, each below {SMALLEST_LISTED:.1%} of the step; --json lists all")
            lines += together(run, stage)
    if run.parts and not run.operators:
        lines += ["", "Operators: not recorded in this run."]
    if run.operator_error is not None:
        lines.append("")
        lines.append(
            f"Operators that take 1 % of the step or more: median absolute error {run.operator_error:.1%} "
            f"({run.compared_operators} of them)."
        )
    return lines


def run_cells(run: VerifiedRun) -> list[str]:
    """Return one run as a row of the table of many."""
    return [
        run.name,
        str(run.num_gpus),
        duration(run.predicted.us),
        f"{duration(run.predicted.low_us)} – {duration(run.predicted.high_us)}",
        duration(run.measured_us),
        f"{run.error:+.1%}",
        drift_text(run.drift),
        "yes" if run.inside else "NO",
        NONE if run.noise is None else f"{run.noise:.1%}",
        NONE if run.operator_error is None else f"{run.operator_error:.1%}",
    ]


RUN_HEAD = ("run", "ranks", "predicted", "90 % interval", "measured", "error", "drift", "inside", "noise", "operators")


def render(verification: Verification) -> str:
    """Return the answer: one run in detail, several as a table with the errors over all below it."""
    records = [run.record for run in verification.runs]
    lines: list[str] = []
    if len(records) == 1 and not verification.failed:
        return "\n".join([*disturbed_lines(verification), *_detailed(records[0])])
    if records:
        lines = [*disturbed_lines(verification), *text_table([RUN_HEAD, *map(run_cells, records)], left=(0, -1)), ""]
        lines.append("drift: the reference kernel now ÷ while measured; noise: between launches;")
        lines.append("operators: median absolute error of those with 1 % of the step or more.")
    return "\n".join([*lines, *summary_lines(verification), *failure_lines(verification.failed)])
