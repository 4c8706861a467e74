"""Costs of traced operators in precisions: from a trace in them, from measurements, from regressors, or by physics.

An operator costs what was traced in the precision that it was traced in. In another precision the first source that
knows it answers:

trace       the same operator, by name and shapes, in a trace in that precision
measured    a table of ``microbench traced``; where the table has the traced precision too, the traced time changes
            by the ratio of both rows or, backward on a CPU whose cores run collectives too, by their difference
regressors  published regressors of matrix products, as a ratio between precisions
physics     max(FLOP ÷ peak, bytes ÷ bandwidth) of the shapes, as a ratio between precisions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.replay.precision.casts import CastCosts
from predictor.replay.precision.cost_sources import (
    MeasuredSource,
    Pass,
    PhysicsSource,
    RegressorSource,
    TimesOperators,
    TracedTimes,
    TraceSource,
)
from predictor.replay.precision.device_sheets import DeviceSheet
from predictor.replay.precision.measured_costs import MeasuredCosts
from predictor.replay.precision.operator_config import OperatorConfig, own_operators
from predictor.replay.precision.operator_graph import OperatorNode, Precision


class CostOrigin(StrEnum):
    """Where a cost is from, in a word."""

    TRACED = "traced"
    TRACE = "trace"
    MEASURED = "measured"
    REGRESSORS = "regressors"
    PHYSICS = "physics"


class OperatorCost(NamedTuple):
    """A cost and where it is from."""

    cost: Cost
    origin: CostOrigin


class CostSource(Protocol):
    """Something that may know the cost of an operator in a precision."""

    def cost(self, node: OperatorNode, precision: Precision, step_pass: Pass, traced_us: float) -> Cost | None:
        """Return the cost, or None where it is not known."""


class PrecisionCosts:
    """Costs of one graph's operators, each from the first source that knows it; answers are kept."""

    def __init__(
        self,
        times: TracedTimes,
        traces: Sequence[TracedTimes] = (),
        measured: MeasuredCosts | None = None,
        systems: Mapping[Precision, TimesOperators] | None = None,
        sheet: DeviceSheet | None = None,
        config: OperatorConfig | None = None,
    ) -> None:
        """Join the sources.

        Args:
            times: of the graph as traced.
            traces: of the same operators in other precisions, on the same device.
            measured: operators and casts that were measured on the same device.
            systems: a published system of the same device, by precision.
            sheet: the device's data sheet.
            config: what is known of operators; None for what the project knows.
        """
        config = config or own_operators()
        self._times = times
        self._casts = CastCosts(measured, sheet.memory_bandwidth_gb_per_s if sheet is not None else None)
        self._sources: list[tuple[CostOrigin, CostSource]] = [(CostOrigin.TRACE, TraceSource((*traces, times), config))]
        if measured is not None:
            self._sources.append((CostOrigin.MEASURED, MeasuredSource(measured, config)))
        if systems:
            self._sources.append((CostOrigin.REGRESSORS, RegressorSource(systems, config)))
        if sheet is not None:
            self._sources.append((CostOrigin.PHYSICS, PhysicsSource(sheet, config)))
        self._answers: dict[tuple[str, Precision, Pass], OperatorCost] = {}

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of an operator's forward pass.

        Raises:
            ConfigError: no source knows it.
        """
        return self.look_up(node, precision, "forward").cost

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of its backward pass; ZERO where none was traced.

        Raises:
            ConfigError: no source knows it.
        """
        return self.look_up(node, precision, "backward").cost

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        """Return the cost of casting a tensor.

        Raises:
            ConfigError: the pair was not measured, and no data sheet is known.
        """
        return self._casts.cost(cast_from, cast_to, numel)

    def look_up(self, node: OperatorNode, precision: Precision, step_pass: Pass) -> OperatorCost:
        """Return a cost and where it is from.

        Raises:
            ConfigError: no source knows it.
        """
        key = (node.label, precision, step_pass)
        if key not in self._answers:
            self._answers[key] = self._ask(node, precision, step_pass)
        return self._answers[key]

    def _ask(self, node: OperatorNode, precision: Precision, step_pass: Pass) -> OperatorCost:
        traced_us = self._times.us(node.label, step_pass)
        if traced_us == 0.0:
            return OperatorCost(ZERO, CostOrigin.TRACED)
        if precision is node.traced:
            return OperatorCost(Cost(traced_us, traced_us, traced_us, Source.MEASURED), CostOrigin.TRACED)
        for origin, source in self._sources:
            cost = source.cost(node, precision, step_pass, traced_us)
            if cost is not None:
                return OperatorCost(cost, origin)
        shapes = " × ".join(str(list(shape)) for shape in node.shapes if shape) or "unknown shapes"
        raise ConfigError(
            f"{node.label} ({node.name}, {shapes}): its {step_pass} pass in {precision} is not known; give a trace in "
            f"{precision}, a table of python -m microbench traced, or the device's data sheet"
        )
