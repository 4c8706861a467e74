"""The health of a run in words, a line at most: what every report shares."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo

from predictor.core.base.quantities import duration, span
from predictor.watch.detector import MATERIAL
from predictor.watch.health import Change, ChangeKind, Expected, Finding, Health, State

US_PER_S, S_PER_HOUR = 1e6, 3600.0
NOT_LOST_S = 0.5  # less lost time is none
_SLOW_STEPS = (ChangeKind.SINGLE, ChangeKind.PERIODIC, ChangeKind.IRREGULAR)


def plain(text: str) -> str:
    """Return text without control characters, which a log may hold and a terminal would obey.

    >>> plain("one" + chr(27) + "[2Jtwo")
    'one [2Jtwo'
    """
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


def seconds(value: float) -> str:
    """Return a step time.

    >>> seconds(1.60099)
    '1.601 s'
    """
    return duration(value * US_PER_S)


def lasting(value: float) -> str:
    """Return a time of many steps.

    >>> lasting(42.0), lasting(5400.0), lasting(300000.0)
    ('42 s', '1.5 h', '3.5 days')
    """
    if 120.0 <= value < S_PER_HOUR:
        return f"{value / 60.0:.3g} min"
    return span(value / S_PER_HOUR)


def moment(at: float) -> str:
    """Return a moment to the minute, in this machine's zone, which a log without zones is taken to be in."""
    return clock(at, "%Y-%m-%d %H:%M") or "no date"


def clock(at: float, form: str, zone: tzinfo | None = None) -> str | None:
    """Return a moment in a form of ``strftime``; None of a number that is no moment, which only a log can state."""
    try:
        return datetime.fromtimestamp(at, zone).strftime(form)
    except (ValueError, OverflowError, OSError):
        return None


def signed(share: float) -> str:
    """Return a relative difference.

    >>> signed(0.0213), signed(-0.004), signed(1.5)
    ('+2.1 %', '−0.4 %', '+150 %')
    """
    size = abs(share)
    text = f"{size:.0%}" if size >= 0.0995 else f"{size:.1%}"
    return f"{'−' if share < 0 else '+'}{text[:-1]} %"


def expected_s(expected: Expected) -> float:
    """Return the expected step: calibrated on the run's own first healthy steps where there were some."""
    return expected.seconds if expected.calibrated_s is None else expected.calibrated_s


def deviation(health: Health) -> float | None:
    """Return the usual step relative to the expected one; None where either is not known."""
    if health.expected is None or health.median_s is None:
        return None
    return health.median_s / expected_s(health.expected) - 1.0


def alarms_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings as they are numbered: those that a healthy run does not show, then the others."""
    return sorted(findings, key=lambda finding: finding.is_expected)


def slowdown(health: Health) -> float | None:
    """Return by how much a run is slower than it should be, relative.

    The usual step over the predicted one, before calibration, which would forgive a run that is slow from its first
    step on; without a prediction the time lost to deviations that healthy runs do not show, over that of usual steps.
    """
    if health.median_s is None:
        return None
    if health.expected is not None:
        return health.median_s / health.expected.seconds - 1.0
    usual = health.steps * health.median_s
    return lost_s(health) / usual if usual > 0.0 else None


def when(change: Change) -> str:
    """Return when a deviation was, and its shape."""
    first, last = f"{change.first_step:,}", "" if change.last_step is None else f"{change.last_step:,}"
    during = f"from step {first} on" if not last else f"steps {first} to {last}"
    match change.kind:
        case ChangeKind.SINGLE:
            if last in ("", first):
                return f"step {first}"
            return during if change.occurrences == 1 else f"{change.occurrences:,} of {during}"
        case ChangeKind.PERIODIC:
            every = "" if change.period is None else f" every {change.period:,.4g} steps"
            return f"{every.strip() or 'again and again'}, {during}"
        case ChangeKind.IRREGULAR:
            return f"{change.occurrences:,} slow steps, {during}"
        case ChangeKind.STALL:
            return f"no step after step {first}"
        case ChangeKind.WHOLE:
            return "the whole run"
    return f"{change.kind}{',' if last else ''} {during}"


def extent(change: Change) -> str:
    """Return how large a deviation is, and what it cost."""
    if change.kind is ChangeKind.STALL:
        return f"silence for {lasting(change.lost_s)}, a usual step takes {seconds(change.level_s)}"
    if change.kind in _SLOW_STEPS and abs(change.extra_s) <= MATERIAL * change.level_s:
        return (
            "no time lost" if change.occurrences == 1 else f"steps no longer than the usual {seconds(change.level_s)}"
        )
    if change.kind is ChangeKind.SINGLE and change.occurrences == 1 and change.last_step != change.first_step:
        return f"{lasting(change.lost_s)} lost"  # steps that are taken again
    lost = f", {lasting(change.lost_s)} lost" if change.lost_s >= NOT_LOST_S else ""
    more = "more" if change.extra_s >= 0.0 else "less"
    return f"{seconds(abs(change.extra_s))} {more} than {seconds(change.level_s)} a step{lost}"


def unexpected(health: Health) -> tuple[Finding, ...]:
    """Return the findings that a healthy run does not show."""
    return tuple(finding for finding in health.findings if not finding.is_expected)


def lost_s(health: Health) -> float:
    """Return the seconds lost to deviations that a healthy run does not show."""
    return sum(finding.change.lost_s for finding in unexpected(health))


def brief(health: Health) -> str:
    """Return state and usual step in a few words.

    >>> brief(Health(State.HEALTHY, median_s=1.64))
    'healthy, 1.64 s a step'
    """
    if health.median_s is None:
        return str(health.state)
    off = deviation(health)
    return f"{health.state}, {seconds(health.median_s)} a step{'' if off is None else f' ({signed(off)})'}"


def line(health: Health, at: float) -> str:
    """Return the state in a line, for a terminal that follows a run."""
    parts = [clock(at, "%H:%M:%S") or "", brief(health)]
    if health.last_step is not None:
        parts.append(f"step {health.last_step:,}")
    if health.tokens_per_second is not None:
        parts.append(f"{health.tokens_per_second:,.0f} tokens/s")
    if health.mfu is not None:
        parts.append(f"MFU {health.mfu:.1%}")
    if lost_s(health) >= NOT_LOST_S:
        parts.append(f"lost {lasting(lost_s(health))}")
    if health.end_at is not None and health.state is not State.ENDED:
        parts.append(f"ends {moment(health.end_at)}")
    found = unexpected(health)
    if found:
        parts.append(f"{found[0].explanations[0].title} ({when(found[0].change)})")
    return plain("  ".join(parts))
