"""Time of a step beyond its modelled time, in words and as an entry of a document."""

from __future__ import annotations

from math import exp
from typing import Any

from predictor.core.base.quantities import duration
from predictor.core.step.prediction import Prediction
from predictor.core.workload.run_choices import Conditions

AS_RUN = {Conditions.TUNED: "as tuned benchmarks run", Conditions.ORDINARY: "as ordinary runs come out"}


def times_us(prediction: Prediction) -> dict[Conditions, float]:
    """Return the step under both conditions, in microseconds; empty where the model alone answers.

    Of experts that ranks share out only under its own: the other routing has another modelled time.
    """
    found, run = prediction.discrepancy, prediction.run
    if found is None:
        return {}
    if run.model.experts is not None and run.layout.expert_parallel_size > 1:
        return {found.conditions: prediction.step.us}
    return {conditions: prediction.modelled_us * exp(mean) for conditions, mean in found.log_means().items()}


def conditions_note(prediction: Prediction) -> str | None:
    """Return the step under both conditions, and which one it is; None where the model alone answers."""
    found = prediction.discrepancy
    if found is None:
        return None
    told = ", ".join(f"{duration(us)} {AS_RUN[conditions]}" for conditions, us in times_us(prediction).items())
    return f"{told}; training.conditions is {found.conditions}."


def not_modelled_note(prediction: Prediction) -> str | None:
    """Return how much of a step is not modelled, and the runs that say so; None where the model alone answers."""
    found = prediction.discrepancy
    if found is None:
        return None
    share = prediction.step.us / prediction.modelled_us - 1.0
    return f"Not modelled: {share:+.0%} of the modelled time; {found.runs.summary}."


def not_modelled_entry(prediction: Prediction) -> dict[str, Any] | None:
    """Return what is not modelled of a step, and the runs behind it; None where the model alone answers."""
    found = prediction.discrepancy
    if found is None:
        return None
    return {
        "modelled_us": prediction.modelled_us,
        "not_modelled_us": prediction.step.us - prediction.modelled_us,
        "conditions": str(found.conditions),
        **{f"{conditions}_us": us for conditions, us in times_us(prediction).items()},
        "runs": found.runs.model_dump(mode="json"),
        "source": not_modelled_note(prediction),
    }
