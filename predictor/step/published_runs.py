"""A note on how predictions of similar published runs came out."""

from __future__ import annotations

from predictor.costs.folder import OPERATOR_FOLDER
from predictor.costs.published import PublishedSystem
from predictor.step.families import closest_family, family_of, is_plain
from predictor.workloads.run import TrainingRun


def published_runs_note(run: TrainingRun, system: PublishedSystem) -> str | None:
    """Return the error of predictions of published runs of this kind, on the same generation of GPUs if it has any.

    None on a calibrated system, whose own runs say it; and for a plain run without similar ones, unless its system is
    known from a data sheet.
    """
    if system.hardware.calibration is not None:
        return None
    measured = system.hardware.transfer is None or system.files.names(OPERATOR_FOLDER)
    deciding = family_of(run, system.gpu)
    family = deciding or (None if measured else closest_family(run, system.gpu))
    if family is None:
        return None
    if deciding is None:
        return f"{family.summary}."
    rests = ", or its operators' where they were measured and are surer" if is_plain(run) else ""
    return f"{family.summary}; the interval is theirs{rests}."
