"""A calibration as text and as JSON."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

from predictor.core.hardware.hardware import COMPONENTS
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.evidence.calibration.answer import Calibrated

FORMAT = "estimate-train-time/calibration/1"
MEANINGS = {
    "compute": "matrix products",
    "attention": "core of attention",
    "memory_bound": "kernels that stream memory, optimizer included",
    "links_in_node": "collectives inside a node",
    "links_between_nodes": "collectives between nodes",
    "host": "kernel launches",
    "overlap": "1 + share of hidden traffic that costs time",
}


def _share(log_miss: float) -> float:
    """Return the error of a prediction, predicted over measured minus one."""
    return exp(-log_miss) - 1.0


def factor_rows(calibrated: Calibrated) -> list[tuple[str, float, float, float, float]]:
    """Return name, factor, ends of its 90 % interval, and how far it was known beforehand (a factor either way)."""
    fitted = calibrated.fitted
    rows: list[tuple[str, float, float, float, float]] = []
    for i, name in enumerate(COMPONENTS):
        if not any(gradient[i] for gradient in fitted.gradients):
            continue
        half = TWO_SIDED_90 * sqrt(fitted.covariance[i][i])
        known = exp(TWO_SIDED_90 * calibrated.priors[i])
        rows.append((name, exp(fitted.logs[i]), exp(fitted.logs[i] - half), exp(fitted.logs[i] + half), known))
    return rows


def factor_lines(calibrated: Calibrated) -> list[str]:
    """Return the factors as aligned lines."""
    return [
        f"  {name:<20}×{factor:5.2f}  {low:5.2f} – {high:5.2f}   known before within ×{known:.2f}   {MEANINGS[name]}"
        for name, factor, low, high, known in factor_rows(calibrated)
    ]


def run_rows(calibrated: Calibrated) -> list[tuple[str, float, float, float, float, float, float]]:
    """Return per run: name, measured seconds, errors before, after and left out, and widths before and after."""
    fitted = calibrated.fitted
    return [
        (
            run.name,
            run.measured_us / 1e6,
            _share(calibrated.before[i]),
            _share(fitted.after[i]),
            _share(fitted.left_out[i]),
            *calibrated.width(i),
        )
        for i, run in enumerate(calibrated.observations)
    ]


def error_line(calibrated: Calibrated) -> str:
    """Return the mean absolute errors before, after, and of runs that took no part."""
    fitted = calibrated.fitted
    misses = (calibrated.before, fitted.after, fitted.left_out)
    before, after, left_out = (100 * calibrated.errors(each) for each in misses)
    return (
        f"mean absolute error {before:.1f} % as published, {after:.1f} % calibrated, {left_out:.1f} % leaving one out"
    )


def common_line(calibrated: Calibrated) -> str:
    """Return how likely the runs err in common, which factors correct, and what is left to each."""
    fitted = calibrated.fitted
    return (
        f"published times err alike in all runs with a probability of {100 * fitted.systematic:.0f} %, else each run "
        f"errs for itself; runs spread by {100 * fitted.spread:.1f} % around what factors explain"
    )


def render(calibrated: Calibrated) -> str:
    """Return the answer as text."""
    count = len(calibrated.observations)
    steps = f"{count} measured step{'s' * (count != 1)}"
    lines = [
        f"{calibrated.hardware.name} calibrated with {steps}: {error_line(calibrated)}",
        "",
        f"  {'component':<20}{'factor':>6}  90 % interval",
        *factor_lines(calibrated),
        f"  {common_line(calibrated)}",
        "",
        f"  {'measured s':>10}  {'published':>9}  {'calibrated':>10}  {'left out':>8}  {'high/low':>12}  run",
    ]
    for name, seconds, before, after, left_out, wide, narrow in run_rows(calibrated):
        widths = f"{wide:.2f} → {narrow:.2f}"
        lines.append(f"  {seconds:>10.4g}  {before:>+9.1%}  {after:>+10.1%}  {left_out:>+8.1%}  {widths:>12}  {name}")
    lines += [f"Note: {note}." for note in calibrated.notes]
    lines += [f"not used: {failed.name}: {failed.reason}" for failed in calibrated.failed]
    return "\n".join(lines)


def to_json(calibrated: Calibrated) -> dict[str, Any]:
    """Return the answer as a JSON document."""
    fitted = calibrated.fitted
    return {
        "format": FORMAT,
        "system": calibrated.hardware.name,
        "runs": [
            {
                "name": name,
                "source": run.source,
                "measured_seconds": seconds,
                "published_error": before,
                "calibrated_error": after,
                "left_out_error": left_out,
                "published_high_over_low": wide,
                "calibrated_high_over_low": narrow,
            }
            for run, (name, seconds, before, after, left_out, wide, narrow) in zip(
                calibrated.observations, run_rows(calibrated), strict=True
            )
        ],
        "factors": {
            name: {"factor": factor, "low": low, "high": high, "known_within": known}
            for name, factor, low, high, known in factor_rows(calibrated)
        },
        "mean_absolute_error": {
            "published": calibrated.errors(calibrated.before),
            "calibrated": calibrated.errors(fitted.after),
            "left_out": calibrated.errors(fitted.left_out),
        },
        "systematic_probability": fitted.systematic,
        "residual": fitted.residual,
        "notes": list(calibrated.notes),
        "failed": [{"name": failed.name, "reason": failed.reason} for failed in calibrated.failed],
    }
