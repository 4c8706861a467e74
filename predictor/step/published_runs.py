"""A note on how predictions of similar published runs came out."""

from __future__ import annotations

from predictor.costs.published import PublishedSystem
from predictor.step.families import Family, closest_family, share_beyond
from predictor.step.prediction import Prediction

# Of a step that waits for the host so much longer than any published run, the note says it.
WORTH_A_NOTE = 0.05


def _limit(prediction: Prediction, family: Family, system: PublishedSystem) -> str:
    """Return where the errors of other runs are not taken for those of this one."""
    beyond = share_beyond(family, system, prediction.host_share)
    if beyond == 1.0:
        return ", where that of its own operators is not wider"
    if beyond < WORTH_A_NOTE:
        return ""
    return (
        f", but for the time in which it waits for the host: {prediction.host_share:.0%} of the step, at most "
        f"{family.most_host_share:.0%} of theirs"
    )


def published_runs_note(prediction: Prediction, system: PublishedSystem) -> str | None:
    """Return the error of predictions of published runs of this kind, on the same generation of GPUs if it has any.

    None on a calibrated system, whose own runs say it; and for a run whose operators make its interval, unless its
    system is known from a data sheet.
    """
    if system.hardware.calibration is not None:
        return None
    if prediction.family is not None:
        return f"{prediction.family.summary}; the interval is theirs{_limit(prediction, prediction.family, system)}."
    family = None if system.has_own_operators else closest_family(prediction.run, system.gpu)
    return None if family is None else f"{family.summary}."
