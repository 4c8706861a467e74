"""The card of a calibrated system: runs, factors, and errors before and after."""

from __future__ import annotations

from predictor.core.hardware.hardware import System
from predictor.evidence.calibration.answer import Calibrated
from predictor.evidence.calibration.text import MEANINGS, common_line, error_line, factor_rows, run_rows


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())


def card(calibrated: Calibrated, system: System) -> str:
    """Return the card's text."""
    fitted, base = calibrated.fitted, calibrated.hardware
    sources = sorted({run.source for run in calibrated.observations})
    lines = [
        f"# {system.name}: {base.name}, calibrated",
        "",
        (
            f"Regressors and hardware are those of {base.name}; see its card. {len(calibrated.observations)} measured "
            "step(s) moved the factors below, which multiply its times; docs/calibration.md says how."
        ),
        "",
        f"- Error: {error_line(calibrated)}.",
        f"- In common: {common_line(calibrated)}.",
        (
            f"- A run that took no part: ±{100 * fitted.residual:.1f} % (standard deviation, logarithmic), and what "
            "the factors' intervals leave open."
        ),
        f"- Measured in: {', '.join(map(_cell, sources))}.",
        *(f"- Note: {note}." for note in calibrated.notes),
        "",
        "## Factors",
        "",
        "| component | | factor | 90 % interval | known before within |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {name} | {MEANINGS[name]} | {factor:.3f} | {low:.3f} – {high:.3f} | ×{known:.2f} |"
            for name, factor, low, high, known in factor_rows(calibrated)
        ),
        "",
        "## Runs",
        "",
        (
            "Errors are predicted over measured, minus one; *left out* is the error with the factors of all other "
            "configurations' runs."
        ),
        "",
        "| run | measured s | published | calibrated | left out | high ÷ low, published | calibrated |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {_cell(name)} | {seconds:.4g} | {before:+.1%} | {after:+.1%} | {left_out:+.1%} | {wide:.2f} | "
            f"{narrow:.2f} |"
            for name, seconds, before, after, left_out, wide, narrow in run_rows(calibrated)
        ),
    ]
    if calibrated.failed:
        lines += ["", "## Not used", "", *(f"- {_cell(failed.name)}: {failed.reason}" for failed in calibrated.failed)]
    return "\n".join(lines) + "\n"
