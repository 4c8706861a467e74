"""The same published system under other conditions: in CUDA graphs, with other factors, changed, or as its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.slowdown import NO_SLOWDOWN, Slowdown
from predictor.core.hardware.hardware import Calibration


def in_graphs(system: PublishedSystem) -> PublishedSystem:
    """Return a system whose collectives are launched inside CUDA graphs.

    That tells apart collectives that are timed by their bytes: their donors were launched by a host. A collective that
    was measured here keeps its time.
    """
    if system.uncalibrated is not None:
        return below_calibration(system, in_graphs)
    other = system.unanswered(keeps_regressors=False)
    other.in_graphs = True
    return other


@lru_cache(maxsize=64)
def as_tabled(system: PublishedSystem) -> PublishedSystem:
    """Return a system that times single calls as its tables do: a backward pass with the gradients that it was fed.

    A training step feeds it others, see ``gradient_products.ConstantGradients``.
    """
    if system.uncalibrated is not None:
        return below_calibration(system, as_tabled)
    other = system.unanswered(keeps_regressors=False)
    other.is_as_tabled = True
    return other


def slowed(system: PublishedSystem, slowdown: Slowdown) -> PublishedSystem:
    """Return a system whose computing is slowed as in a step; both share the calls alone, which are timed once."""
    other = system.unanswered()
    other._alone = system._alone
    other.slowdown = slowdown
    return other


def below_calibration(system: PublishedSystem, change: Callable[[PublishedSystem], PublishedSystem]) -> PublishedSystem:
    """Return a system whose published costs are changed; a calibration's factors multiply the changed ones."""
    if system.uncalibrated is None:
        return change(system)
    other = system.unanswered()
    other.uncalibrated = change(system.uncalibrated)
    return other


def with_calibration(system: PublishedSystem, calibration: Calibration) -> PublishedSystem:
    """Return a system with other factors on its published costs, with which it shares what they are computed from."""
    other = system.unanswered()
    other.slowdown = NO_SLOWDOWN  # what a system changes of its costs is below the factors
    other.hardware = system.hardware.model_copy(update={"calibration": calibration})
    other.uncalibrated = system if system.uncalibrated is None else system.uncalibrated
    return other
