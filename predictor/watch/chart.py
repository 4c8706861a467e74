"""Chart of a run's steps: their times with the predicted band and the findings, as SVG that takes the page's width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from statistics import median

from predictor.core.base.drawing import element, pixels, round_step, text, ticks
from predictor.core.report.page.charts import LEFT, chart, percent
from predictor.watch.health import ChangeKind, Expected, Finding, Health
from predictor.watch.series import Bucket
from predictor.watch.words import seconds, when

HEIGHT, WIDTH = 280, 1000  # of the plot; its width is stretched
MOST_POINTS = 500
MOST_MARKED = 60  # findings and steps beyond the top that are drawn
NARROWEST = 0.003  # share of the width that a finding takes at least
STRIP = 12  # height of a finding between whose steps others are as usual
AGAIN = (ChangeKind.PERIODIC, ChangeKind.IRREGULAR)
ROOM = 1.15  # above the highest of band and usual steps
STYLE = """
.band { fill: var(--accent); opacity: 0.13; }
.narrow { fill: var(--accent); opacity: 0.22; }
.predicted { stroke: var(--accent); stroke-width: 1.5; stroke-dasharray: 6 4; }
.range { fill: var(--ink); opacity: 0.16; }
.steps { fill: none; stroke: var(--ink); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.alarm { fill: #d55e00; opacity: 0.18; }
.usual { fill: var(--soft); opacity: 0.14; }
.above { fill: #d55e00; }
"""
Place = Callable[[float], float]


def _line(x1: str, y1: float, x2: str, y2: float, class_: str) -> str:
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)


def _band(low_s: float, high_s: float, y: Place, class_: str, title: str) -> str:
    top, bottom = max(0.0, y(high_s)), min(float(HEIGHT), y(low_s))
    return element("rect", class_=class_, x=0, y=top, width="100%", height=max(0.0, bottom - top), title=title)


def _expected(expected: Expected, y: Place) -> Iterator[str]:
    yield _band(expected.low_s, expected.high_s, y, "band", "90 % interval of the prediction")
    low, high = expected.calibrated_low_s, expected.calibrated_high_s
    if low is not None and high is not None:
        yield _band(low, high, y, "narrow", "90 % interval after the run's first healthy steps")
    yield _line("0%", y(expected.seconds), "100%", y(expected.seconds), "predicted")


def _axes(first: int, last: int, x: Place, y: Place, marks: Sequence[float]) -> Iterator[str]:
    for mark in marks:
        yield _line("0%", y(mark), "100%", y(mark), "grid")
        yield text(-8, y(mark) + 4, f"{mark:,g}", text_anchor="end")
    apart = max(1, round(round_step(max(1, last - first), 6)))
    for number, step in enumerate(range(ceil(first / apart) * apart, last + 1, apart)):
        minor = "minor" if number % 2 else None
        yield _line(percent(x(step)), HEIGHT, percent(x(step)), HEIGHT + 4, "grid")
        yield text(percent(x(step)), HEIGHT + 18, f"{step:,}", text_anchor="middle", class_=minor)
    yield text("50%", HEIGHT + 36, "step", text_anchor="middle")
    turned = f"translate({14 - LEFT} {HEIGHT / 2}) rotate(-90)"
    yield text(0, 0, "time of a step, s", transform=turned, text_anchor="middle")


def _steps(buckets: Sequence[Bucket], x: Place, y: Place) -> str:
    """Return the steps: their mean as a line, the smallest to the largest as an area."""

    def point(bucket: Bucket, value: float) -> str:
        at = x((bucket.first_step + bucket.last_step) / 2.0) * WIDTH
        return f"{pixels(at)} {pixels(min(float(HEIGHT), max(0.0, y(value))))}"

    means = "L".join(point(bucket, bucket.mean_s) for bucket in buckets)
    highs = "L".join(point(bucket, bucket.high_s) for bucket in buckets)
    lows = "L".join(point(bucket, bucket.low_s) for bucket in reversed(buckets))
    area = element("path", class_="range", d=f"M{highs}L{lows}z")
    shapes = area + element("path", class_="steps", d=f"M{means}" + (f"L{means}" if len(buckets) == 1 else ""))
    return (
        f'<svg x="0" y="0" width="100%" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none">{shapes}</svg>'
    )


def _above(buckets: Sequence[Bucket], top_s: float, x: Place) -> Iterator[str]:
    """Return marks of steps that are slower than the chart is high, the slowest ones."""
    slow = sorted((bucket for bucket in buckets if bucket.high_s > top_s), key=lambda bucket: -bucket.high_s)
    for bucket in slow[:MOST_MARKED]:
        title = f"step {bucket.first_step:,}: {seconds(bucket.high_s)}"
        if bucket.last_step > bucket.first_step:
            title = f"steps {bucket.first_step:,} to {bucket.last_step:,}: up to {seconds(bucket.high_s)}"
        at = percent(x((bucket.first_step + bucket.last_step) / 2.0))
        arrow = element("path", class_="above", d="M0 1L4 8L-4 8z", title=title)
        yield element("svg", arrow, x=at, y=0, class_="here")


def _findings(findings: Sequence[Finding], last: int, x: Place) -> Iterator[str]:
    """Return the span of every finding with its number."""
    for number, finding in enumerate(findings[:MOST_MARKED], 1):
        change = finding.change
        end = last if change.last_step is None else change.last_step
        start, share = x(change.first_step), max(0.0, x(end) - x(change.first_step))
        title = f"{number}: {finding.explanations[0].title}, {when(change)}"
        box = {"x": percent(start), "width": percent(max(NARROWEST, share)), "title": title}
        height = STRIP if change.kind in AGAIN else HEIGHT
        yield element("rect", class_="usual" if finding.is_expected else "alarm", **box, y=0, height=height)
        yield text(percent(start), -5, str(number), class_="name", text_anchor="start")


def steps_chart(health: Health, buckets: Sequence[Bucket]) -> str:
    """Return the chart; empty without a timed step."""
    if not buckets:
        return ""
    first, last = buckets[0].first_step, buckets[-1].last_step
    usual = median(bucket.mean_s for bucket in buckets)
    levels = [finding.change.level_s + finding.change.extra_s for finding in health.findings if not finding.is_expected]
    band = [] if health.expected is None else [min(health.expected.high_s, 3.0 * usual), health.expected.seconds]
    highest = max([usual, *band, *(level for level in levels if level < 4.0 * usual)]) or 1.0
    marks = ticks(highest * ROOM)

    def x(step: float) -> float:
        return min(1.0, max(0.0, (step - first) / max(1, last - first)))

    def y(value: float) -> float:
        return HEIGHT * (1.0 - value / marks[-1])

    shapes = [*_axes(first, last, x, y, marks)]
    shapes += [] if health.expected is None else _expected(health.expected, y)
    shapes += [*_findings(health.findings, last, x), _steps(buckets, x, y), *_above(buckets, marks[-1], x)]
    return chart(HEIGHT, "time of every step, with the predicted interval and the findings", shapes, above=18)
