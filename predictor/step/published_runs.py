"""A note on how predictions of similar published runs came out."""

from __future__ import annotations

from predictor.costs.published import PublishedSystem
from predictor.step.families import closest_family
from predictor.step.prediction import Prediction


def published_runs_note(prediction: Prediction, system: PublishedSystem) -> str | None:
    """Return the error of predictions of published runs of this kind, on the same generation of GPUs if it has any.

    None on a calibrated system, whose own runs say it; and for a run whose operators make its interval, unless its
    system is known from a data sheet.
    """
    if system.hardware.calibration is not None:
        return None
    if prediction.family is not None:
        is_bounded = not prediction.family.gpus and not system.has_own_operators
        limit = ", where that of its own operators is not wider" if is_bounded else ""
        return f"{prediction.family.summary}; the interval is theirs{limit}."
    family = None if system.has_own_operators else closest_family(prediction.run, system.gpu)
    return None if family is None else f"{family.summary}."
