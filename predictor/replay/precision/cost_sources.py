"""Cost sources of operators per precision, one class each; each answers a cost or None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal, Protocol

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.replay.precision.device_sheets import DeviceSheet, pass_work
from predictor.replay.precision.measured_costs import MeasuredCosts
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.work_of_shapes import MULTIPLIES, WorkKind, product_dims, shape_work

Pass = Literal["forward", "backward"]
Key = tuple[str, tuple[tuple[int, ...], ...], Precision, Pass]
MOST_OF_ROOFLINE = 10.0  # assumed: slower than that, something else than the work takes the time
LINEAR_REGRESSOR = "ffn_up"  # any operator of the family of matrix products


@dataclass(frozen=True, slots=True)
class TracedTimes:
    """How long the operators of a graph took as traced, in µs.

    Attributes:
        graph: of one traced step.
        forward_us: by label; of the operator alone, without casts inside it.
        backward_us: likewise, all its backward operators together; a label that it lacks has none.
    """

    graph: OperatorGraph
    forward_us: Mapping[str, float]
    backward_us: Mapping[str, float]

    def us(self, label: str, step_pass: Pass) -> float:
        """Return the time of an operator's pass; 0 where it has none."""
        return (self.forward_us if step_pass == "forward" else self.backward_us).get(label, 0.0)


def sampled(samples: Sequence[float]) -> Cost:
    """Return the median of samples with their 90 % range."""
    middle = median(samples)
    if len(samples) < 3:
        return Cost(middle, min(samples), max(samples), Source.MEASURED)
    twentieths = quantiles(samples, n=20, method="inclusive")
    return Cost(middle, twentieths[0], twentieths[-1], Source.MEASURED)


class TraceSource:
    """The same operator, by name and shapes, in a trace in the precision."""

    def __init__(self, traces: Iterable[TracedTimes], config: OperatorConfig) -> None:
        """Collect the operators of the traces."""
        self._config = config
        samples: defaultdict[Key, list[float]] = defaultdict(list)
        for times in traces:
            for node in times.graph.nodes:
                for step_pass in ("forward", "backward"):
                    us = times.us(node.label, step_pass)
                    if us > 0.0:
                        samples[config.family(node.name), node.shapes, node.traced, step_pass].append(us)
        self._costs = {key: sampled(times_us) for key, times_us in samples.items()}

    def cost(self, node: OperatorNode, precision: Precision, step_pass: Pass, traced_us: float) -> Cost | None:
        """Return the median of the operator's calls."""
        return self._costs.get((self._config.family(node.name), node.shapes, precision, step_pass))


class MeasuredSource:
    """A table of operators that were measured again.

    Of several rows of an operator in a precision that differ in the types of their inputs, as where a tensor in fp32
    meets one in bf16, the first has all of them in the precision; it answers.
    """

    def __init__(self, table: MeasuredCosts, config: OperatorConfig) -> None:
        """Index the table's rows."""
        self._config = config
        samples: defaultdict[Key, list[float]] = defaultdict(list)
        types: dict[Key, tuple[str, ...]] = {}
        for row in table.operators:
            key = (config.family(row.operator), row.shapes, row.precision, row.step_pass)
            if types.setdefault(key, row.dtypes) == row.dtypes:
                samples[key] += row.samples_us
        self._costs = {key: sampled(times_us) for key, times_us in samples.items()}
        self._on_cpu = table.device_kind == "cpu"

    def cost(self, node: OperatorNode, precision: Precision, step_pass: Pass, traced_us: float) -> Cost | None:
        """Return the measured time; with the traced precision in the table too, the traced time changed as theirs.

        What a trace adds to a backward pass on a CPU is other work, since its cores also run the collectives: it stays
        as it is, and the difference of both measured times is what changes. Elsewhere, and where the trace has the
        shorter time, the ratio of both does.
        """
        family = self._config.family(node.name)
        there = self._costs.get((family, node.shapes, precision, step_pass))
        here = self._costs.get((family, node.shapes, node.traced, step_pass))
        if there is None or here is None or here.us <= 0.0 or traced_us <= 0.0:
            return there
        beside_us = traced_us - here.us
        if self._on_cpu and step_pass == "backward" and beside_us > 0.0:
            return Cost(there.us + beside_us, there.low_us + beside_us, there.high_us + beside_us, Source.MEASURED)
        return Cost(
            traced_us * there.us / here.us,
            traced_us * there.low_us / max(here.high_us, here.us),
            traced_us * there.high_us / (here.low_us or here.us),
            Source.MEASURED,
        )


class TimesOperators(Protocol):
    """A system whose regressors time operators, such as ``predictor.core.costs.published.PublishedSystem``."""

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call."""


class RegressorSource:
    """Published regressors of matrix products of one system, one opened per precision."""

    def __init__(self, systems: Mapping[Precision, TimesOperators], config: OperatorConfig) -> None:
        """Take the system as measured in each precision."""
        self._systems, self._config = systems, config
        self._operator = catalogue()[LINEAR_REGRESSOR]

    def cost(self, node: OperatorNode, precision: Precision, step_pass: Pass, traced_us: float) -> Cost | None:
        """Return the traced time, times the ratio of the regressor's times in both precisions."""
        kind = self._config.of(self._config.work, node.name)
        if kind is None or traced_us <= 0.0:
            return None
        dims = product_dims(kind, node.shapes)
        there, here = self._systems.get(precision), self._systems.get(node.traced)
        if dims is None or dims[0] != 1 or there is None or here is None:
            return None
        direction = Direction.FORWARD if step_pass == "forward" else Direction.BACKWARD
        if not self._operator.takes(dims[1:], precision):
            return None
        new = there.cost(self._operator, direction, dims[1:])
        old = here.cost(self._operator, direction, dims[1:])
        return Cost(
            traced_us * new.us / old.us,
            traced_us * new.low_us / old.high_us,
            traced_us * new.high_us / old.low_us,
            max(new.source, old.source, Source.INTERPOLATED),
        )


class PhysicsSource:
    """The roofline of an operator's shapes on a device: what the work takes at least, as a ratio between precisions."""

    def __init__(self, sheet: DeviceSheet, config: OperatorConfig) -> None:
        """Take the device's data sheet."""
        self._sheet, self._config = sheet, config

    def cost(self, node: OperatorNode, precision: Precision, step_pass: Pass, traced_us: float) -> Cost | None:
        """Return the traced time times a ratio; anything between that, the ratio of the bytes and 1 is possible.

        Of an operator that takes long for its work, such as a small kernel, only MOST_OF_ROOFLINE times the roofline
        scales.
        """
        kind = self._config.of(self._config.work, node.name)
        if kind is None:
            return None
        if kind is WorkKind.VIEW:
            return Cost(traced_us, traced_us, traced_us, Source.ANALYTIC)
        by_bytes = precision.bytes / node.traced.bytes
        limits = self._limits(node, precision, step_pass, kind)
        if limits is None:
            if kind in MULTIPLIES:
                return None
            ratio, scales = by_bytes, 1.0  # as many elements in any precision, so that no shape is needed
        else:
            old, new = limits
            ratio, scales = new / old, min(1.0, MOST_OF_ROOFLINE * old / traced_us)
        us = traced_us * (1.0 - scales + scales * ratio)
        bounds = (us, traced_us * ratio, traced_us * by_bytes, traced_us)
        return Cost(us, min(bounds), max(bounds), Source.ANALYTIC)

    def _limits(
        self, node: OperatorNode, precision: Precision, step_pass: Pass, kind: WorkKind
    ) -> tuple[float, float] | None:
        """Return the roofline in the traced and in another precision, µs; None where shapes or peaks are unknown."""
        work = shape_work(kind, node.shapes, node.output_numel)
        if work is None:
            return None
        flops, elements = pass_work(work, step_pass == "backward")
        old, new = (self._sheet.us(flops, elements, each) for each in (node.traced, precision))
        return None if new is None or not old else (old, new)
