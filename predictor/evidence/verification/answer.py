"""All runs of one question: the compared, the failed, and the errors over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

from predictor.evidence.verification.drift import largest
from predictor.evidence.verification.measured import Summary, summary
from predictor.evidence.verification.operators import counted_errors
from predictor.evidence.verification.runs import Verified

FORMAT = "estimate-train-time/verification/1"


class Failed(NamedTuple):
    """A configuration that was not compared, and why in one line."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str, error: Exception) -> Failed:
        """Return a configuration and the error that kept it from being compared, in one line."""
        return cls(name, " ".join(str(error).split()))


@dataclass(frozen=True, slots=True)
class Verification:
    """What verification answers."""

    runs: tuple[Verified, ...]
    failed: tuple[Failed, ...] = ()

    @property
    def summary(self) -> Summary | None:
        """Return the errors of the whole steps; None where nothing was compared."""
        return summary([run.compared for run in self.runs]) if self.runs else None

    @property
    def worst(self) -> Verified:
        """Return the run whose prediction is farthest off."""
        return max(self.runs, key=lambda run: abs(run.record.error))

    @property
    def operator_errors(self) -> list[float]:
        """Return the absolute errors of the operators that count, of all runs."""
        return [error for run in self.runs for error in counted_errors(run.record.operators, run.record.measured_us)]

    @property
    def noises(self) -> list[float]:
        """Return how far the launches of every run are apart, where it was launched more than once."""
        return [run.record.noise for run in self.runs if run.record.noise is not None]

    @property
    def disturbed(self) -> list[Verified]:
        """Return the runs beside which the machine was busier than while it was measured."""
        return [run for run in self.runs if run.record.disturbed]

    @property
    def undisturbed_summary(self) -> Summary | None:
        """Return the errors of the other runs where there are both; None otherwise."""
        quiet = [run.compared for run in self.runs if not run.record.disturbed]
        return summary(quiet) if quiet and self.disturbed else None


def _summary(verification: Verification, errors: Summary) -> dict[str, Any]:
    operators, noises = verification.operator_errors, verification.noises
    return {
        "runs": len(verification.runs),
        **{f"{name}_error" if name in ("median", "worst") else name: value for name, value in asdict(errors).items()},
        "disturbed": len(verification.disturbed),
        "largest_drift": largest([run.record.drift for run in verification.runs]),
        "operators": len(operators),
        "operator_median_error": median(operators) if operators else None,
        "median_noise": median(noises) if noises else None,
        "worst_noise": max(noises) if noises else None,
    }


def to_json(verification: Verification) -> dict[str, Any]:
    """Return everything for machines (docs/json.md)."""
    errors = verification.summary
    return {
        "format": FORMAT,
        "runs": [run.record.model_dump(mode="json", by_alias=True) for run in verification.runs],
        "failed": [failed._asdict() for failed in verification.failed],
        "summary": None if errors is None else _summary(verification, errors),
    }


def disturbed_lines(verification: Verification) -> list[str]:
    """Return that the machine was busy, for the head of a report; nothing where it was not."""
    disturbed, count = verification.disturbed, len(verification.runs)
    if not disturbed:
        return []
    drifts = [run.record.drift for run in disturbed if run.record.drift is not None]
    which = "Every run is" if len(disturbed) == count else f"{len(disturbed)} of {count} runs are"
    told = f"DISTURBED: {which}: the machine was up to {max(drifts):.2f} × slower than while it was measured, in the"
    way_out = "remove their folders, and run them on a quiet machine"
    return [f"{told} quietest try. Their errors say little of the prediction: {way_out}."]


def summary_lines(verification: Verification) -> list[str]:
    """Return the errors over all runs as sentences."""
    errors = verification.summary
    lines = []
    if errors is not None:
        count = len(verification.runs)
        lines.append(
            f"{count} run{'s' * (count > 1)}: median absolute error of the step {errors.median:.1%}, worst "
            f"{errors.worst:.1%} ({verification.worst.record.name}), mean error {errors.bias:+.1%}; "
            f"{errors.coverage:.0%} inside the 90 % interval."
        )
    quiet = verification.undisturbed_summary
    if quiet is not None:
        lines.append(
            f"Without the disturbed ones: median absolute error {quiet.median:.1%}, worst {quiet.worst:.1%}, mean "
            f"error {quiet.bias:+.1%}; {quiet.coverage:.0%} inside."
        )
    operators, noises = verification.operator_errors, verification.noises
    if operators:
        lines.append(
            f"Operators that take 1 % of their step or more: median absolute error {median(operators):.1%} "
            f"({len(operators)} of them)."
        )
    if noises:
        lines.append(
            f"Noise, the same configuration launched again: median {median(noises):.1%}, worst {max(noises):.1%}."
        )
    return lines


def failure_lines(failed: Sequence[Failed]) -> list[str]:
    """Return a line about every configuration that was not compared."""
    return [f"{name}: not compared: {reason}" for name, reason in failed]
