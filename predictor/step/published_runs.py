"""A note on how predictions of similar published runs came out."""

from __future__ import annotations

from predictor.costs.folder import OPERATOR_FOLDER
from predictor.costs.published import PublishedSystem
from predictor.step.families import closest_family, family_of
from predictor.workloads.run import TrainingRun


def published_runs_note(run: TrainingRun, system: PublishedSystem) -> str | None:
    """Return the error of predictions of published runs of this kind, on the same generation of GPUs if it has any.

    None on a calibrated system, whose own runs say it; and for a run without a framework, in 16 bits and without
    sharding or experts, unless its system is known from a data sheet.
    """
    if system.hardware.calibration is not None:
        return None
    measured = system.hardware.transfer is None or system.files.names(OPERATOR_FOLDER)
    deciding = family_of(run, system.gpu)
    family = deciding or (None if measured else closest_family(run, system.gpu))
    if family is None:
        return None
    return f"{family.summary}{'; the interval is theirs' if deciding else ''}."
