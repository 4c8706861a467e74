"""The health of a run as text: the answer, how far to trust it and why, then findings, then numbers."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.report.text import wrapped
from predictor.watch.events import BACKWARD, FORWARD, OPTIMIZER
from predictor.watch.explain import NOT_EXPLAINED
from predictor.watch.health import Expected, Finding, Health, State
from predictor.watch.words import (
    NOT_LOST_S,
    alarms_first,
    deviation,
    expected_s,
    extent,
    lasting,
    lost_s,
    moment,
    plain,
    seconds,
    signed,
    unexpected,
    when,
)

TITLE = 10
# Kernels of a prediction that a measured part holds, traffic and waiting aside.
KERNELS = {FORWARD: ("forward",), BACKWARD: ("recompute", "backward"), OPTIMIZER: ("optimizer",)}
LEAST_TREND = 5e-4  # per 1,000 steps, that is shown
AS_EXPECTED = 0.005  # a smaller difference is none
LISTED = 6  # findings of a kind; --json has all
LISTED_CAUSES = 3
ADVICE = "    to "
LEAST_BELIEF = 0.02  # of a cause that is listed behind the first


def answer(health: Health) -> str:
    """Return how the run stands."""
    if health.last_step is None:
        return "Waiting for the first step: the log has none yet."
    steps = counted(health.steps, "step")
    said = f"{str(health.state).capitalize()}, at step {health.last_step:,}"
    if health.median_s is None:
        return f"{said}: {steps} seen, and the log has no times of them yet."
    said += f": {seconds(health.median_s)} a step"
    off = deviation(health)
    if off is not None and health.expected is not None:
        how = "as expected" if abs(off) < AS_EXPECTED else f"{signed(off)} beside the expected {_expected(health)}"
        said += f", {how}"
    if lost_s(health) >= NOT_LOST_S:
        said += f"; {lasting(lost_s(health))} lost so far"
    return f"{said}."


def _expected(health: Health) -> str:
    return "" if health.expected is None else seconds(expected_s(health.expected))


def trust(health: Health) -> str:
    """Return what the answer rests on."""
    expected = health.expected
    if expected is None:
        return "Judged by the run's own steps: no configuration says what a step should take."
    predicted = f"Predicted {seconds(expected.seconds)} ({_span(expected.low_s, expected.high_s)}; {expected.source})"
    if expected.calibrated_s is not None:
        moved = expected.calibrated_s / expected.seconds - 1.0
        predicted += f"; the run's first healthy steps moved it by {signed(moved)} to {_calibrated(expected)}"
    if health.median_s is None:
        return f"{predicted}."
    if health.median_s > expected.high_s:
        return f"{predicted}. The run is slower than the interval."
    return f"{predicted}. The run is {'faster than' if health.median_s < expected.low_s else 'inside'} the interval."


def _span(low_s: float, high_s: float) -> str:
    return f"90 % interval {seconds(low_s)} – {seconds(high_s)}"


def _calibrated(expected: Expected) -> str:
    low, high = expected.calibrated_low_s, expected.calibrated_high_s
    ends = "" if low is None or high is None else f" ({seconds(low)} – {seconds(high)})"
    return f"{seconds(expected.calibrated_s or expected.seconds)}{ends}"


def why(health: Health) -> str:
    """Return the reason of the state: the costliest deviation, or that there is none."""
    found = unexpected(health)
    usual = len(health.findings) - len(found)
    healthy = f" {counted(usual, 'deviation')} of a kind that healthy runs show." if usual else ""
    if not found:
        return f"No deviation needs an explanation.{healthy}" if health.steps else "Nothing to explain yet."
    first = found[0]
    cause = first.explanations[0]
    lost = f", {lasting(first.change.lost_s)} lost" if first.change.lost_s >= NOT_LOST_S else ""
    more = f" {counted(len(found) - 1, 'other deviation')} below." if len(found) > 1 else ""
    said = f"{when(first.change)}{lost}."
    title = cause.title[:1].upper() + cause.title[1:]
    if cause.cause == NOT_EXPLAINED:
        return f"{title}: {said}{more}{healthy}"
    evidence = f" {cause.evidence[0]}." if cause.evidence else ""
    return f"{title} ({cause.belief:.0%} sure): {said}{evidence}{more}{healthy}"


def _in_detail(number: int, finding: Finding) -> list[str]:
    """Return a finding: its change, its causes with their evidence, and the remedy of the first."""
    lines = [f"{number:2}  {when(finding.change)}: {extent(finding.change)}"]
    for rank, cause in enumerate(finding.explanations[:LISTED_CAUSES]):
        if rank and cause.belief < LEAST_BELIEF:
            break
        evidence = f": {'; '.join(cause.evidence)}" if cause.evidence else ""
        lines.append(f"    {cause.belief:4.0%}  {cause.title}{evidence}")
    first = finding.explanations[0]
    if first.distinguish and len(finding.explanations) > 1:
        lines.append(f"{ADVICE}tell: {first.distinguish}")
    return [*lines, f"{ADVICE}do: {first.remedy}"] if first.remedy else lines


def finding_lines(findings: Sequence[Finding], width: int) -> list[str]:
    """Return the findings, those that a healthy run does not show in detail; the same advice is given once."""
    numbered = list(enumerate(alarms_first(findings), 1))
    alarms = [pair for pair in numbered if not pair[1].is_expected]
    usual = [pair for pair in numbered if pair[1].is_expected]
    lines, given = ["Findings, the costliest first"] if alarms else [], set[str]()
    for number, finding in alarms[:LISTED]:
        first, *others = _in_detail(number, finding)
        fresh = [line for line in others if line not in given]
        given.update(line for line in others if line.startswith(ADVICE))
        lines += [*wrapped([first], width, 4), *wrapped(fresh, width, 10)]
    lines += ["Deviations that healthy runs show"] if usual else []
    for number, finding in usual[:LISTED]:
        cause = finding.explanations[0]
        sure = "" if cause.cause == NOT_EXPLAINED else f" ({cause.belief:.0%})"
        told = f"{when(finding.change)}: {extent(finding.change)}: {cause.title}{sure}"
        told += f", but {finding.tolerated}" if finding.tolerated else ""
        lines += wrapped([f"{number:2}  {told}"], width, 4)
    left = max(0, len(alarms) - LISTED) + max(0, len(usual) - LISTED)
    return [*lines, f"and {left} more; --json lists all"] if left else lines


def _speed(tokens: float | None, step_s: float | None, flops: float | None, peak: float | None) -> tuple[str, str]:
    """Return tokens per second and MFU of a step time; a dash where they are not known."""
    if not step_s:
        return "-", "-"
    rate = "-" if tokens is None else f"{tokens / step_s:,.0f}"
    return rate, "-" if flops is None or not peak else f"{flops / step_s / peak:.1%}"


def number_rows(health: Health) -> list[Sequence[str]]:
    """Return expected, calibrated and measured step as rows of a table, its head first."""
    rows: list[Sequence[str]] = [("", "step", "90 % from", "to", "tokens/s", "MFU")]
    expected = health.expected
    if expected is not None:
        of = (expected.tokens, expected.flops, expected.peak_flops_per_second)
        ends = seconds(expected.low_s), seconds(expected.high_s)
        rows.append(("expected", seconds(expected.seconds), *ends, *_speed(of[0], expected.seconds, *of[1:])))
        if expected.calibrated_s is not None:
            low, high = expected.calibrated_low_s, expected.calibrated_high_s
            calibrated = ["-" if end is None else seconds(end) for end in (low, high)]
            speed = _speed(of[0], expected.calibrated_s, *of[1:])
            rows.append(("calibrated", seconds(expected.calibrated_s), *calibrated, *speed))
    if health.median_s is not None:
        measured = ["-" if end is None else seconds(end) for end in (health.low_s, health.high_s)]
        rate = "-" if health.tokens_per_second is None else f"{health.tokens_per_second:,.0f}"
        mfu = "-" if health.mfu is None else f"{health.mfu:.1%}"
        rows.append(("measured", seconds(health.median_s), *measured, rate, mfu))
    return rows


def facts(health: Health) -> dict[str, str]:
    """Return what else is known of the run, by its title."""
    found: dict[str, str] = {}
    if health.spread is not None:
        trend = health.trend or 0.0
        told = f", trend {signed(trend)} per 1,000 steps" if abs(trend) >= LEAST_TREND else ""
        found["spread"] = f"{health.spread:.1%}{told}"
    if health.first_step is not None and health.last_step is not None:
        found["steps"] = f"{health.steps:,}, numbers {health.first_step:,} to {health.last_step:,}"
        found["steps"] += f", {counted(health.restarts, 'restart')}" if health.restarts else ""
    if health.steps:
        found["lost"] = _lost(health)
    if health.end_at is not None:
        left = "" if not health.remaining_steps else f", {counted(health.remaining_steps, 'step')} to go"
        verb = "ended" if health.state is State.ENDED else "ends"
        found[verb] = f"{moment(health.end_at)}{left}"
    return found


def _lost(health: Health) -> str:
    """Return the time lost, what of it healthy runs lose, and what is to come."""
    if health.lost_s < NOT_LOST_S:
        said = "nothing"
    else:
        usual = health.lost_s - lost_s(health)
        said = lasting(health.lost_s)
        said += f", {lasting(usual)} of it to what healthy runs show" if usual >= NOT_LOST_S else ""
    to_come = health.lost_to_come_s or 0.0
    return said if to_come < NOT_LOST_S else f"{said}, {lasting(to_come)} to come"


def part_rows(health: Health) -> list[Sequence[str]]:
    """Return measured and expected parts of a step as rows of a table, its head first; empty without measured ones."""
    if not health.parts:
        return []
    predicted = {} if health.expected is None else health.expected.parts
    rows: list[Sequence[str]] = [("part of a step", "measured", "predicted kernels")]
    for name, value in sorted(health.parts.items(), key=lambda item: -item[1]):
        kernels = sum(predicted.get(label, 0.0) for label in KERNELS.get(name, ()))
        rows.append((name.replace("_", " "), seconds(value), seconds(kernels) if kernels else "-"))
    return rows if predicted else [row[:2] for row in rows]


def render(health: Health, sources: Sequence[str], width: int = 100) -> str:
    """Return the report.

    Args:
        health: of the run.
        sources: path and format of each.
        width: columns of the output.
    """
    titles = {"Health": answer(health), "Trust": trust(health), "Why": why(health)}
    lines = wrapped([f"{title:{TITLE}}{words}" for title, words in titles.items()], width, TITLE)
    lines += ["", *finding_lines(health.findings, width)] if health.findings else []
    lines += ["", *text_table(number_rows(health))] if len(number_rows(health)) > 1 else []
    lines += wrapped([f"{title:{TITLE}}{words}" for title, words in facts(health).items()], width, TITLE)
    lines += ["", *text_table(part_rows(health))] if health.parts else []
    lines += [""] if health.notes or sources else []
    lines += wrapped([f"Note: {note}" for note in health.notes], width, 6)
    return plain("\n".join([*lines, *wrapped([f"Read: {source}" for source in sources], width, 6)]))
