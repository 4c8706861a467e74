"""Verdict on memory: fits, may not fit, does not fit, from the peak and its error."""

from __future__ import annotations

from enum import StrEnum
from math import log

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.memory import GIB, step_memory
from predictor.core.workload.step_tasks import StepTasks

# Mean error that every group of published runs with a measured peak keeps to (tests/accuracy/test_memory.py).
MEMORY_ERROR = 0.08
# How much longer a full GPU's step may take: one run at 79.2 GiB reserved of 80 took 48 % longer than the same at 62.
# Where cudaMalloc finds no room, PyTorch waits for the GPU, gives cached blocks back and asks again, in every step.
# Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks (num_alloc_retries of memory_stats).
MOST_RETRIES = 0.48


class MemoryVerdict(StrEnum):
    """Whether a predicted peak fits into memory: nearer to the limit than peaks are known, it cannot be told."""

    FITS = "fits"
    MAY_NOT_FIT = "may not fit"
    DOES_NOT_FIT = "does not fit"

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None where that cannot be told."""
        return None if self is MemoryVerdict.MAY_NOT_FIT else self is MemoryVerdict.FITS


def memory_verdict(size_bytes: float, memory_gib: float | None) -> MemoryVerdict | None:
    """Return whether a predicted peak fits into so much memory, in GiB (2³⁰ bytes); None where that is not known.

    >>> [str(memory_verdict(gib * 2**30, 80.0)) for gib in (73, 74, 86, 87)]
    ['fits', 'may not fit', 'may not fit', 'does not fit']
    """
    if memory_gib is None:
        return None
    limit = memory_gib * GIB
    if size_bytes > limit * (1.0 + MEMORY_ERROR):
        return MemoryVerdict.DOES_NOT_FIT
    return MemoryVerdict.FITS if size_bytes <= limit * (1.0 - MEMORY_ERROR) else MemoryVerdict.MAY_NOT_FIT


def memory_verdict_on(size_bytes: float, system: PublishedSystem) -> MemoryVerdict | None:
    """Return whether a predicted peak fits into a GPU of a system; None where its memory is not known."""
    limit = system.hardware.gpu.memory_gib
    return memory_verdict(size_bytes, None if limit is None else limit.value)


def retries_log_error(size_bytes: float, memory_gib: float | None) -> float:
    """Return by how much a step may exceed its time, as a log, since memory is so full that allocations are retried.

    Nothing where the peak surely fits, all of ``MOST_RETRIES`` from the limit on.

    >>> [round(retries_log_error(gib * 2**30, 80.0), 2) for gib in (70, 76.8, 80, 86)]
    [0.0, 0.2, 0.39, 0.39]
    """
    if memory_gib is None:
        return 0.0
    above = size_bytes / (memory_gib * GIB) - (1.0 - MEMORY_ERROR)
    return log(1.0 + MOST_RETRIES) * min(1.0, max(0.0, above / MEMORY_ERROR))


def retries_on(tasks: StepTasks, system: PublishedSystem) -> float:
    """Return ``retries_log_error`` of a step's fullest GPU on a system."""
    limit = system.hardware.gpu.memory_gib
    return retries_log_error(max(stage.total for stage in step_memory(tasks)), None if limit is None else limit.value)


def fits_in_memory(verdict: MemoryVerdict | None) -> bool | None:
    """Return whether a run fits; None where that cannot be told, or the memory is not known."""
    return None if verdict is None else verdict.fits
