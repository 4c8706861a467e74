"""Costs of one rank's operators per precision, from all sources of its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from predictor.core.base.errors import ConfigError
from predictor.core.base.lazy import lazy
from predictor.core.costs.cost import Cost, Source
from predictor.replay.files.execution_trace import ExecutionTrace, read_execution_trace
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.precision.cost_sources import Pass, TracedTimes
from predictor.replay.precision.device_sheets import DeviceSheet, device_sheet
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.measured_costs import MeasuredCosts
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.precision_costs import PrecisionCosts
from predictor.replay.procedure.casting import measured_costs
from predictor.replay.procedure.folders import Folders


class TolerantCosts:
    """Costs in which operators without a choice keep their traced time where no source knows another one.

    Attributes:
        kept_us: time of those that did, by label and pass.
    """

    def __init__(self, costs: PrecisionCosts, times: TracedTimes) -> None:
        """Take the costs, and the times as traced."""
        self._costs, self._times = costs, times
        self.kept_us: dict[tuple[str, Pass], float] = {}

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of an operator's forward pass; raises as ``PrecisionCosts`` for one with a choice."""
        return self._cost(node, precision, "forward")

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of its backward pass; raises likewise."""
        return self._cost(node, precision, "backward")

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        """Return the cost of a cast; raises as ``PrecisionCosts``."""
        return self._costs.cast(cast_from, cast_to, numel)

    def _cost(self, node: OperatorNode, precision: Precision, step_pass: Pass) -> Cost:
        try:
            return self._costs.look_up(node, precision, step_pass).cost
        except ConfigError:
            if len(node.choices) > 1:
                raise
        us = self._times.us(node.label, step_pass)
        self.kept_us[node.label, step_pass] = us
        by_bytes = us * precision.bytes / node.traced.bytes
        return Cost(us, min(us, by_bytes), max(us, by_bytes), Source.ANALYTIC)


@dataclass(frozen=True)
class RankCosts:
    """One rank's operators and their costs.

    Attributes:
        graph: of the forward pass.
        times: of its operators as traced.
        measured: on the device; None where nothing was.
        sheet: of the device; None where none is known.
        config: what is known of operators.
        others: times of the same model in other precisions, on the same device.
    """

    graph: OperatorGraph
    times: TracedTimes
    measured: MeasuredCosts | None
    sheet: DeviceSheet | None
    config: OperatorConfig
    others: tuple[TracedTimes, ...] = ()

    @lazy
    def costs(self) -> TolerantCosts:
        """Return the costs of operators in precisions and of casts."""
        known = PrecisionCosts(self.times, self.others, self.measured, None, self.sheet, self.config)
        return TolerantCosts(known, self.times)

    def knowing(self, others: Sequence[TracedTimes]) -> RankCosts:
        """Return costs that traces in other precisions tell."""
        return replace(self, others=tuple(others))

    def sources(self) -> str:
        """Return what times in other precisions rest on, as a sentence; empty where nothing is known."""
        sources = [
            *(["operators of traces in them"] if self.others else []),
            *([f"costs measured on {self.measured.device}"] if self.measured is not None else []),
            *([f"the data sheet of {self.sheet.name}"] if self.sheet is not None else []),
        ]
        return f"Times in other precisions are from {', '.join(sources)}." if sources else ""

    @lazy
    def known_graph(self) -> OperatorGraph:
        """Return the graph with operators that choose between precisions of known cost only."""
        nodes = [
            replace(node, choices=tuple(self._known(node))) if len(node.choices) > 1 else node
            for node in self.graph.nodes
        ]
        return replace(self.graph, nodes=nodes)

    def unknown_us(self, precision: Precision) -> float:
        """Return the time of operators that could compute in a precision, but whose cost in it is not known."""
        return sum(
            self.times.us(node.label, "forward") + self.times.us(node.label, "backward")
            for node, known in zip(self.graph.nodes, self.known_graph.nodes, strict=True)
            if precision in node.choices and precision not in known.choices
        )

    def _known(self, node: OperatorNode) -> Iterator[Precision]:
        for precision in node.choices:
            try:
                self.costs.forward(node, precision)
                self.costs.backward(node, precision)
            except ConfigError:
                continue
            yield precision


def graph_of(folders: Folders, model: str, name: str, local: LocalGraph, config: OperatorConfig) -> OperatorGraph:
    """Return the graph of a step's operators, with the dataflow of the model's execution trace where there is one."""
    return operator_graph(local, execution_trace_of(folders, model, name), config)


def execution_trace_of(folders: Folders, model: str, name: str) -> ExecutionTrace | None:
    """Return the execution trace beside a trace, or of the model; None where there is none."""
    path = folders.execution_trace(model, name) or folders.execution_trace(model)
    return None if path is None else read_execution_trace(path)


def rank_costs(
    folders: Folders,
    local: LocalGraph,
    graph: OperatorGraph,
    config: OperatorConfig,
    device_name: str,
    others: Sequence[TracedTimes] = (),
    is_sample: bool = False,
) -> RankCosts:
    """Return the costs of a rank's operators.

    Args:
        folders: with the costs that were measured.
        local: the step of the rank.
        graph: of its operators.
        config: what is known of operators.
        device_name: names measured costs that come first.
        others: of traces of the same model in other precisions, on the same device.
        is_sample: the trace is one of the samples.
    """
    measured = measured_costs(folders, device_name, local.device_name, local.backend, is_sample)
    sheet = device_sheet(local.device_name)
    return RankCosts(graph, traced_times(local, graph), measured, sheet, config, tuple(others))
