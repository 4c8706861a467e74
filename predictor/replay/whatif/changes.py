"""Changes of a traced step, one for each ``--set``: pure functions from a step to a changed step.

operator:PATTERN*=0.5  operator:PATTERN=remove    operators by name, annotation or module, forward and backward
kernel:PATTERN*=0.5    kernel:PATTERN=remove      kernels by name; a removed one is not launched
host*=0.5              launch_us=3                time of the host; of every call that launches a kernel
communication*=0.5                                time of all collectives
link.bandwidth_GBps=50 link.latency_us=5          the links, α–β of the traced collectives
links=H200                                        collectives over the links of another published system
ranks=16                                          ranks of the whole job
bucket_mb=25           overlap=false              buckets of gradients, and when they are reduced
precision:PATTERN=bf16                            operators in another precision
gpu=H100                                          kernels on another GPU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError, nearest
from predictor.core.costs.published import PublishedSystem
from predictor.core.timeline.graph import GraphError
from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.measured_costs import MeasuredCosts, joined, read_measured_costs
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.plan_time import Costs
from predictor.replay.precision.precision_costs import PrecisionCosts
from predictor.replay.whatif.buckets import change_buckets, change_overlap, no_buckets
from predictor.replay.whatif.devices import Device, change_gpu, device_named, device_traced, opened, opened_in_any
from predictor.replay.whatif.precision_change import CostsOf, change_precision
from predictor.replay.whatif.scaling import (
    change_communication,
    change_host,
    change_kernels,
    change_launch,
    change_operators,
)
from predictor.replay.whatif.setting import Changed, Setting, Touched, parse_setting
from predictor.replay.whatif.traced_step import TracedStep
from predictor.replay.whatif.traffic import change_link, change_ranks, change_system_links


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


PATTERN_KEYS = ("operator", "kernel", "precision")
REORDERING = ("bucket_mb", "overlap")  # the others leave what waits for what


@dataclass(frozen=True, slots=True)
class Means:
    """What changes may ask.

    Attributes:
        system: published system that the trace was recorded on; its collectives and its GPU. None: as the trace says.
        costs: files of measured costs in other precisions.
        traces: files of traces in other precisions.
        costs_of: what knows the costs in other precisions instead of these.
    """

    system: str | None = None
    costs: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    costs_of: CostsOf | None = None

    def in_precisions(self) -> CostsOf:
        """Return what knows the costs of operators in other precisions.

        Raises:
            ConfigError: a file cannot be read.
        """
        return self.costs_of or precision_costs(self.system, self.costs, self.traces)

    def published(self, setting: Setting) -> PublishedSystem | None:
        """Open the system; None where none is named.

        Raises:
            ConfigError: there is no such system.
        """
        return None if self.system is None else opened_in_any(self.system, setting)


AS_THE_TRACE_SAYS = Means()


def _change_links(step: TracedStep, setting: Setting, means: Means) -> Changed:
    by = means.system
    if by is None:
        local = step.ranks[0]
        traced = device_traced(local.device_name) if local.backend != "cpu" else None
        if traced is None or not traced.is_published:
            raise ConfigError(
                f"--set {setting.text}: the trace was recorded on {local.device_name or f'a {local.backend.upper()}'}, "
                f"which no published system has; name the one with its links with --system: {', '.join(systems())}"
            )
        by = traced.name
    return change_system_links(step, setting, opened_in_any(by, setting), opened_in_any(setting.value, setting))


Apply = Callable[[TracedStep, Setting, Means], Changed]
CHANGES: dict[str, Apply] = {
    "operator": lambda step, setting, _: change_operators(step, setting),
    "kernel": lambda step, setting, _: change_kernels(step, setting),
    "host": lambda step, setting, _: change_host(step, setting),
    "launch_us": lambda step, setting, _: change_launch(step, setting),
    "communication": lambda step, setting, _: change_communication(step, setting),
    "link.bandwidth_GBps": lambda step, setting, _: change_link(step, setting),
    "link.latency_us": lambda step, setting, _: change_link(step, setting),
    "links": _change_links,
    "ranks": lambda step, setting, means: change_ranks(step, setting, means.published(setting)),
    "bucket_mb": lambda step, setting, means: change_buckets(step, setting, means.published(setting)),
    "overlap": lambda step, setting, _: change_overlap(step, setting),
    "precision": lambda step, setting, means: change_precision(step, setting, means.in_precisions()),
    "gpu": lambda step, setting, means: change_gpu(step, setting, means.system),
}


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that was made."""

    text: str
    touched: Touched


def settings_of(texts: Sequence[str]) -> list[Setting]:
    """Return what all ``--set`` ask for.

    Raises:
        ConfigError: one has no such form or an unknown key, or two contradict each other.
    """
    settings: list[Setting] = []
    for text in texts:
        setting = parse_setting(text)
        if setting.key not in CHANGES:
            raise ConfigError(
                f"--set {text}: {setting.key} is no change.{nearest(setting.key, CHANGES)} Changes: "
                f"{', '.join(CHANGES)}"
            )
        if bool(setting.pattern) is not (setting.key in PATTERN_KEYS):
            takes_one = setting.key in PATTERN_KEYS
            form = (
                f"{setting.key}:PATTERN, as in operator:aten::mm*=0.5"
                if takes_one
                else f"{setting.key} without a pattern"
            )
            raise ConfigError(f"--set {text}: write {form}")
        for other in settings:
            if _contradict(other, setting):
                raise ConfigError(f"--set {text} contradicts --set {other.text}: {setting.key} is given twice")
        settings.append(setting)
    return settings


def _contradict(first: Setting, second: Setting) -> bool:
    """Return whether two settings give one thing two values, or remove what the other one changes."""
    same = (first.key, first.pattern) == (second.key, second.pattern)
    return same and not (first.multiplies and second.multiplies)


def apply_changes(
    step: TracedStep, settings: Sequence[Setting], means: Means = AS_THE_TRACE_SAYS
) -> tuple[TracedStep, list[Applied]]:
    """Apply changes in their order.

    Raises:
        ConfigError: one touches nothing, cannot be made, or lets tasks wait for each other.
    """
    applied = []
    for setting in settings:
        before = step
        step, touched = CHANGES[setting.key](step, setting, means)
        if setting.key in REORDERING:
            try:
                step.replay()
            except GraphError as error:
                raise ConfigError(f"--set {setting.text} cannot be: {no_buckets(before, setting) or error}") from None
        applied.append(Applied(setting.text, touched))
    return step, applied
