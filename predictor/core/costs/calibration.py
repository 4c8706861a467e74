"""Factors of a calibrated system: what measured steps of one's own say about the times that are published.

A step is made of components: matrix products, attention, kernels that stream memory, links inside and between nodes,
the host's launches, and what traffic beside computing costs. Each has a factor, measured over published time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.cost import Cost
from predictor.core.costs.host_adam import HOST_ADAMS
from predictor.core.costs.host_copy import NAMES as HOST_COPIES
from predictor.core.costs.operator import Operator, Shape
from predictor.core.hardware.hardware import COMPONENTS, Calibration, Component, Factor, System

ANY_ERROR = 10.0  # half width of an interval, as a log: wider than any that is published
NOTHING_KNOWN = Calibration(
    base="-", factors={}, covariance=((0.0,) * len(COMPONENTS),) * len(COMPONENTS), residual=ANY_ERROR, runs=1
)


def component_of(operator: Operator, shape: Shape) -> Component | None:
    """Return the component that a call belongs to; None for copies from the host and for its own work."""
    if operator.name in COLLECTIVES:
        _, nodes, _ = shape
        return "links_in_node" if nodes == 1 else "links_between_nodes"
    if operator.name in HOST_COPIES or operator.name in HOST_ADAMS:
        return None
    if operator.fused_attention or operator.attention_part:
        return "attention"
    return "compute" if "flops" in operator.extra_kinds else "memory_bound"


def factor(system: System, component: Component) -> float:
    """Return how much longer a component takes than published; 1 on a system that was not calibrated."""
    if system.calibration is None:
        return 1.0
    known = system.calibration.factors.get(component)
    return 1.0 if known is None else known.factor


def calibrated(cost: Cost, operator: Operator, shape: Shape, calibration: Calibration | None) -> Cost:
    """Return the cost of a call on a calibrated system.

    Its interval is the factor's or the published one, whichever is narrower: a factor covers many shapes at once.
    """
    component = None if calibration is None else component_of(operator, shape)
    known = None if calibration is None or component is None else calibration.factors.get(component)
    if known is None or cost.low_us <= 0.0:
        return cost
    us = cost.us * known.factor
    below = min(log(cost.us / cost.low_us), known.log_error)
    above = min(log(cost.high_us / cost.us), known.log_error)
    return Cost(us, us * exp(-below), us * exp(above), cost.source)


def logs_of(calibration: Calibration) -> list[float]:
    """Return the logs of all factors, in the order of ``COMPONENTS``."""
    known = calibration.factors
    return [log(known[name].factor) if name in known else 0.0 for name in COMPONENTS]


def with_logs(calibration: Calibration | None, logs: Sequence[float]) -> Calibration:
    """Return a calibration with other factors, given by their logs in the order of ``COMPONENTS``.

    It times what steps with such factors take; intervals of the factors are those of the calibration, wide where
    there is none.
    """
    before = NOTHING_KNOWN if calibration is None else calibration
    unknown = Factor(factor=1.0, log_error=ANY_ERROR)
    factors = {
        name: before.factors.get(name, unknown).model_copy(update={"factor": exp(value)})
        for name, value in zip(COMPONENTS, logs, strict=True)
    }
    return before.model_copy(update={"factors": factors})
