"""How predictions of similar published runs came out: a note, and an entry of a document."""

from __future__ import annotations

from typing import Any

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.families import Family, share_beyond
from predictor.core.step.prediction import Prediction

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
    """Return the error of predictions of published runs of this kind; None where there are none."""
    if prediction.published is None:
        return None
    if prediction.family is None:
        return f"{prediction.published.summary}."
    return f"{prediction.family.summary}; the interval is theirs{_limit(prediction, prediction.family, system)}."


def published_entry(prediction: Prediction, system: PublishedSystem) -> dict[str, Any] | None:
    """Return how published runs of a prediction's kind came out; None where there are none."""
    family, note = prediction.published, published_runs_note(prediction, system)
    if family is None or note is None:
        return None
    return {
        "ratio": family.ratio,
        "time_us": prediction.corrected_us,
        "rows": family.rows,
        "framework": family.framework,
        "gpus": list(family.gpus),
        "source": note,
    }
