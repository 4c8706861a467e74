"""The same published system under other conditions: inside CUDA graphs, with other factors, changed below them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from predictor.costs.hardware import Calibration
from predictor.costs.load import ALONE, Load
from predictor.costs.published import PublishedSystem


def in_graphs(system: PublishedSystem) -> PublishedSystem:
    """Return a system whose collectives are launched inside CUDA graphs.

    That tells apart collectives that are timed by their bytes: their donors were launched by a host. A collective that
    was measured here keeps its time.
    """
    if system._published is not None:
        return below_calibration(system, in_graphs)
    other = copy(system)
    other._in_graphs = True
    other._regressors, other._answers = {}, {}
    return other


def under(system: PublishedSystem, load: Load) -> PublishedSystem:
    """Return a system whose computing runs under the load of a step."""
    other = copy(system)
    other.load = load
    other._answers = {}
    return other


def below_calibration(system: PublishedSystem, change: Callable[[PublishedSystem], PublishedSystem]) -> PublishedSystem:
    """Return a system whose published costs are changed; a calibration's factors multiply the changed ones."""
    if system._published is None:
        return change(system)
    other = copy(system)
    other._answers = {}
    other._published = change(system._published)
    return other


def with_calibration(system: PublishedSystem, calibration: Calibration) -> PublishedSystem:
    """Return a system with other factors on its published costs, with which it shares what they are computed from."""
    other = copy(system)
    other.load = ALONE  # what a system changes of its costs is below the factors
    other.hardware = system.hardware.model_copy(update={"calibration": calibration})
    other._answers = {}
    other._published = system if system._published is None else system._published
    return other
