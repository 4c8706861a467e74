"""What is known of operators in other precisions: traces in them, tables of measured costs, regressors, data sheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.measured_costs import MeasuredCosts, joined, read_measured_costs
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.plan_time import Costs
from predictor.replay.precision.precision_costs import PrecisionCosts
from predictor.replay.whatif.devices import Device, device_named, device_traced, opened
from predictor.replay.whatif.precision_change import CostsOf


def precision_costs(system: str | None, tables: Sequence[str] = (), traces: Sequence[str] = ()) -> CostsOf:
    """Return the costs that a rank's operators have in precisions, for ``change_precision``.

    Args:
        system: published system that the trace was recorded on; None: as the trace says.
        tables: files of measured costs of the same device.
        traces: of the same model on the same device in other precisions.

    Raises:
        ConfigError: a file cannot be read.
    """
    measured = joined(read_measured_costs(Path(table)) for table in tables) if tables else None
    others = [_times(local_graph(trace)) for trace in read_traces(traces, partial=True)] if traces else []

    def costs_of(local: LocalGraph, times: TracedTimes) -> Costs:
        device = device_named(system) if system is not None else device_traced(local.device_name)
        return _costs(None if local.backend == "cpu" else device, times, others, measured)

    return costs_of


def _times(local: LocalGraph) -> TracedTimes:
    return traced_times(local, operator_graph(local))


def _costs(
    device: Device | None, times: TracedTimes, others: Sequence[TracedTimes], measured: MeasuredCosts | None
) -> Costs:
    systems = {}
    if device is not None and device.is_published:
        opening = ((precision, opened(device.name, precision)) for precision in Precision)
        systems = {precision: system for precision, system in opening if system is not None}
    sheet = None if device is None else device.sheet
    return PrecisionCosts(times, others, measured, systems, sheet)
