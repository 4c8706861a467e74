"""Measure a list of shapes twice, one pass after the other, and report the gap between the two results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from microbench.device import Device
from microbench.errors import MeasureError
from microbench.kernels import kernel_names
from microbench.profile import Job, timed
from microbench.sweep import Sweep, shapes_of
from microbench.table import Measurement
from microbench.timing import clock_for, take_turns
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Operator, Shape

ROUNDS = 2


def relative_gap(first: float, second: float) -> float:
    """Return |first − second| ÷ their mean."""
    return abs(first - second) / ((first + second) / 2.0)


def pick_calls(sweep: Sweep, precision: str, count: int) -> list[tuple[Operator, Shape]]:
    """Return so many calls, a shape of each operator in turn.

    Raises:
        MeasureError: the number is not positive.
    """
    if count < 1:
        raise MeasureError(f"--shapes is {count}; expected at least 1")
    names = [name for name in kernel_names() if precision in catalogue()[name].precisions]
    operators = [catalogue()[name] for name in names[:count]]
    calls = [[(operator, shape) for shape in shapes_of(operator.name, sweep, precision)] for operator in operators]
    turns = (call for turn in zip_longest(*calls) for call in turn if call is not None)
    return list(islice(turns, count))


def repeatability(device: Device, sweep: Sweep, count: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the gaps between two measurements of the same calls, as fractions of their mean, and a sentence."""
    job = Job(Path(), device, device.precisions[0], sweep)
    clock = clock_for(device, sweep.timing)
    chosen = pick_calls(sweep, job.precision, count)
    rounds: list[list[Measurement]] = []
    for number in range(ROUNDS):
        progress(f"round {number + 1} of {ROUNDS}: {len(chosen)} shapes")
        calls = [timed(job, operator, shape, clock) for operator, shape in chosen]
        deque(take_turns(calls), maxlen=0)
        rounds.append([row for call in calls for row in call.finish()])
    pairs = [(a, b) for a, b in zip(*rounds, strict=True) if a.status.is_timed and b.status.is_timed]
    if not pairs:
        raise MeasureError("no shape could be measured twice")
    kernels = [relative_gap(median(a.best_samples_us), median(b.best_samples_us)) for a, b in pairs]
    whole = [relative_gap(a.median_us, b.median_us) for a, b in pairs]
    text = (
        f"{len(chosen)} shapes ({len(pairs)} passes) measured twice on {device.name}: the kernels' medians differ by "
        f"{median(kernels):.1%} in the median and {max(kernels):.1%} at most; by the clock on the wall "
        f"{median(whole):.1%} and {max(whole):.1%}"
    )
    return {
        "shapes": len(chosen),
        "passes": len(pairs),
        "median_gap": round(median(kernels), 4),
        "largest_gap": round(max(kernels), 4),
        "median_wall_gap": round(median(whole), 4),
        "text": text,
    }
