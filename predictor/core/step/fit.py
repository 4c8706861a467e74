"""Whether a run fits into a GPU's memory, as surely as its peak is known."""

from __future__ import annotations

from enum import StrEnum

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.memory import GIB

# Mean error that every group of published runs with a measured peak keeps to (tests/accuracy/test_memory.py).
MEMORY_ERROR = 0.08


class Fit(StrEnum):
    """Whether a predicted peak fits: nearer to the limit than peaks are known, it cannot be told."""

    FITS = "fits"
    MAY_NOT_FIT = "may not fit"
    DOES_NOT_FIT = "does not fit"

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None where that cannot be told."""
        return None if self is Fit.MAY_NOT_FIT else self is Fit.FITS


def fit_of(size_bytes: float, memory_gib: float | None) -> Fit | None:
    """Return whether a predicted peak fits into so much memory, in GiB (2³⁰ bytes); None where that is not known.

    >>> [str(fit_of(gib * 2**30, 80.0)) for gib in (73, 74, 86, 87)]
    ['fits', 'may not fit', 'may not fit', 'does not fit']
    """
    if memory_gib is None:
        return None
    limit = memory_gib * GIB
    if size_bytes > limit * (1.0 + MEMORY_ERROR):
        return Fit.DOES_NOT_FIT
    return Fit.FITS if size_bytes <= limit * (1.0 - MEMORY_ERROR) else Fit.MAY_NOT_FIT


def fit_on(size_bytes: float, system: PublishedSystem) -> Fit | None:
    """Return whether a predicted peak fits into a GPU of a system; None where its memory is not known."""
    limit = system.hardware.gpu.memory_gib
    return fit_of(size_bytes, None if limit is None else limit.value)


def fits_of(fit: Fit | None) -> bool | None:
    """Return whether a run fits; None where that cannot be told, or the memory is not known."""
    return None if fit is None else fit.fits
