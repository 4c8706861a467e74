"""What the operators of one rank's step cost in precisions: from all that is known of its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from predictor.base.errors import ConfigError
from predictor.base.lazy import lazy
from predictor.precision.cost_sources import TracedTimes
from predictor.precision.device_sheets import DeviceSheet, device_sheet
from predictor.precision.forward_graph import operator_graph, traced_times
from predictor.precision.measured_costs import MeasuredCosts
from predictor.precision.operator_config import OperatorConfig
from predictor.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.precision.precision_costs import PrecisionCosts
from predictor.replay.procedure.casting import measured_costs
from predictor.replay.procedure.folders import Folders
from predictor.traces.execution_trace import ExecutionTrace, read_execution_trace
from predictor.traces.local_graph import LocalGraph


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
    def costs(self) -> PrecisionCosts:
        """Return the costs of operators in precisions and of casts."""
        return PrecisionCosts(self.times, self.others, self.measured, None, self.sheet, self.config)

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

    def with_known_choices(self) -> RankCosts:
        """Return the costs with a graph whose operators choose between precisions of known cost only."""
        nodes = [replace(node, choices=tuple(self._known(node))) for node in self.graph.nodes]
        return replace(self, graph=replace(self.graph, nodes=nodes))

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
) -> RankCosts:
    """Return the costs of a rank's operators.

    Args:
        folders: with the costs that were measured.
        local: the step of the rank.
        graph: of its operators.
        config: what is known of operators.
        device_name: names measured costs that come first.
        others: of traces of the same model in other precisions, on the same device.
    """
    measured = measured_costs(folders, device_name, local.device_name, local.backend)
    sheet = device_sheet(local.device_name)
    return RankCosts(graph, traced_times(local, graph), measured, sheet, config, tuple(others))
