"""Another GPU: durations of traced kernels on it.

A kernel of an operator that the predictor knows takes its measured time × the regressor's time on the other GPU ÷ the
one on the GPU of the trace, where both are published systems. Any other one takes the ratio of the data sheets: of the
longer of FLOPs ÷ peak and bytes ÷ memory bandwidth where the operator's inputs are known (roofline; Williams et al.
2009, doi:10.1145/1498765.1498785), of the memory bandwidths otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp, hypot, log
from typing import NamedTuple

from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.base.errors import ConfigError, PublishedError, nearest
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.folder import read_hardware, read_manifest
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.hardware.hardware import System
from predictor.core.plan.loading import open_measured
from predictor.core.schema.finding import find_folder
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TaskKind, TracedOperator
from predictor.replay.precision.device_sheets import DeviceSheet, device_sheet, sheet_of
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.whatif.known_operators import KnownCall, known_around, known_call, precision_of, traced_work
from predictor.replay.whatif.setting import Changed, Setting, Touched
from predictor.replay.whatif.traced_step import ADDED, TracedStep, product
from predictor.replay.whatif.traffic import with_costs

MODEL = re.compile(r"[A-Z]{1,3}\d{2,4}[A-Z]?")
REGRESSORS, ROOFLINE, BANDWIDTH = "regressors of both GPUs", "roofline of the data sheets", "memory bandwidths"
SAME_GPU = "the same GPU"


class Device(NamedTuple):
    """A GPU.

    Attributes:
        name: of its published system, or its own.
        is_published: it has regressors.
        sheet: peaks and memory bandwidth.
    """

    name: str
    is_published: bool
    sheet: DeviceSheet


def _published(name: str) -> Device:
    return Device(name, True, sheet_of(hardware_of(name).gpu))


def device_named(name: str) -> Device | None:
    """Return a published system's GPU by the system's name, or one that a data sheet is known of; None: neither."""
    if name in systems():
        return _published(name)
    sheet = device_sheet(name)
    return None if sheet is None else Device(name, False, sheet)


def _model(gpu: str) -> str:
    """Return the model in the name of a GPU: A100 of NVIDIA A100-SXM4-80GB; empty where it has none."""
    model = MODEL.search(gpu.replace(" ", "").removeprefix("NVIDIA"))
    return "" if model is None else model[0]


def same_gpu(by: Device, to: Device) -> bool:
    """Return whether two devices are one model of GPU, with the same peaks and memory bandwidth."""
    limits = [(_model(sheet.name), sheet.memory_bandwidth_gb_per_s, sheet.peak_tflop_per_s) for _, _, sheet in (by, to)]
    return limits[0] == limits[1]


def device_traced(device_name: str) -> Device | None:
    """Return the GPU that a trace names: of a published system, else with a known data sheet.

    A name that differs in its form factor only stands for the same model: « NVIDIA A100-PG509-200 » is an A100, with
    the regressors of a published one and the data sheet of its own. Of several systems with a GPU, one whose operators
    were all measured on it comes first.
    """
    spelt = device_name.replace(" ", "")
    model = _model(device_name)
    by_model = None
    for name in sorted(systems(), key=lambda name: hardware_of(name).transfer is not None):
        gpu = hardware_of(name).gpu.name
        if gpu == spelt:
            return _published(name)
        if by_model is None and model and _model(gpu) == model:
            by_model = name
    sheet = device_sheet(device_name)
    if by_model is None:
        return None if sheet is None else Device(device_name, False, sheet)
    return _published(by_model) if sheet is None else _published(by_model)._replace(sheet=sheet)


@cache
def hardware_of(name: str) -> System:
    """Return the hardware of a published system.

    Raises:
        ConfigError: there is no such system.
        PublishedError: a file of it is damaged.
    """
    folder = find_folder(name, REGRESSORS_FOLDER)
    return read_hardware(folder, read_manifest(folder))


def opened(name: str, precision: str) -> PublishedSystem | None:
    """Open a published system in a precision; None where it has none that runs at its rate."""
    folder = find_folder(name, REGRESSORS_FOLDER)
    try:
        return open_measured(folder, precision)
    except ConfigError:
        return None


def opened_in_any(name: str, setting: Setting) -> PublishedSystem:
    """Open a published system for its collectives, which are the same in every precision.

    Raises:
        ConfigError: there is no such system.
    """
    known = systems()
    if name in known:
        for precision in Precision:
            system = opened(name, precision)
            if system is not None:
                return system
    raise ConfigError(
        f"--set {setting.text}: {name} is not a published system.{nearest(name, known)} Published: {', '.join(known)}"
    )


class Ratio(NamedTuple):
    """How much longer a kernel takes: the factor, its 90 % interval as a log, and what it rests on."""

    factor: float
    log_error: float
    source: Source
    basis: str

    @property
    def cost(self) -> Cost:
        """Return the factor with its interval, to multiply times with."""
        spread = exp(self.log_error)
        source = self.source if self.basis == SAME_GPU else max(self.source, Source.INTERPOLATED)
        return Cost(self.factor, self.factor / spread, self.factor * spread, source)


UNCHANGED = Ratio(1.0, 0.0, Source.MEASURED, SAME_GPU)


@dataclass(slots=True)
class DeviceRatios:
    """Ratios of kernels' times between two GPUs; asked once for every call's shape."""

    by: Device
    to: Device
    _known: dict[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]], Ratio] = field(default_factory=dict)
    _open: dict[tuple[str, str], PublishedSystem | None] = field(default_factory=dict)
    _same: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compare both."""
        self._same = same_gpu(self.by, self.to)

    def of(self, traced: TracedOperator | None) -> Ratio:
        """Return the ratio of the kernels of an operator; None: of a kernel that belongs to none."""
        if self._same:
            return UNCHANGED
        if traced is None:
            return self._by_bandwidth()
        key = (traced.name, traced.shapes, traced.dtypes)
        if key not in self._known:
            self._known[key] = self._ratio(traced)
        return self._known[key]

    def _ratio(self, traced: TracedOperator) -> Ratio:
        precision = precision_of(traced)
        call = known_call(traced)
        by_regressors = None if call is None else self._by_regressors(call, precision)
        return by_regressors or self._by_roofline(traced, precision) or self._by_bandwidth()

    def _system(self, device: Device, precision: str) -> PublishedSystem | None:
        if not device.is_published:
            return None
        if (device.name, precision) not in self._open:
            self._open[device.name, precision] = opened(device.name, precision)
        return self._open[device.name, precision]

    def _by_regressors(self, call: KnownCall, precision: Precision) -> Ratio | None:
        costs = []
        for device in (self.by, self.to):
            system = self._system(device, precision)
            if system is None:
                return None
            try:
                costs.append(system.cost(call.operator, call.direction, call.shape))
            except PublishedError:  # no regressor, and no donor operator: the data sheets answer
                return None
        before, after = costs
        error = hypot(*(log(cost.high_us / cost.low_us) / 2 for cost in costs))
        return Ratio(after.us / before.us, error, max(before.source, after.source), REGRESSORS)

    def _by_roofline(self, traced: TracedOperator, precision: Precision) -> Ratio | None:
        work = traced_work(traced)
        if work is None or not work[1]:
            return None
        before, after = (device.sheet.us(*work, precision) for device in (self.by, self.to))
        if before is None or after is None:  # no such peak
            return None
        kind = "compute" if after > (self.to.sheet.us(0.0, work[1], precision) or 0.0) else "stream"
        return Ratio(after / before, transfer_errors().kinds[kind], Source.ANALYTIC, ROOFLINE)

    def _by_bandwidth(self) -> Ratio:
        before, after = (device.sheet.memory_bandwidth_gb_per_s for device in (self.by, self.to))
        return Ratio(before / after, transfer_errors().kinds["stream"], Source.ANALYTIC, BANDWIDTH)

    def told(self, traced_on: str, us_by_basis: Mapping[str, float]) -> str:
        """Return what was moved where, and the shares of what the new times rest on.

        Args:
            traced_on: the GPU as the trace names it; empty where it does not.
            us_by_basis: measured time of the kernels by what their ratio rests on.
        """
        if self._same:
            return f"{self.to.name} is the GPU that was traced ({traced_on or self.by.name}): all stays as measured."
        whole = sum(us_by_basis.values())
        shares = ", ".join(f"{us / whole:.0%} by {basis}" for basis, us in us_by_basis.items())
        whose = f" (regressors of {self.by.name})" if REGRESSORS in us_by_basis and traced_on else ""
        moved = f"{traced_on or self.by.name}{whose} to {self.to.name}"
        return f"Kernel time moved from {moved}: {shares}; host, copies and collectives stay."


def known_device(name: str, told: str) -> Device:
    """Return a published system's GPU, or one with a known data sheet.

    Args:
        name: of either.
        told: what asks for it, with which the message begins.

    Raises:
        ConfigError: it is neither.
    """
    device = device_named(name)
    if device is None:
        known = systems()
        raise ConfigError(
            f"{told}: {name} is not a published system, nor a GPU with a known data sheet.{nearest(name, known)} "
            f"Published: {', '.join(known)}"
        )
    return device


def source_device(local: LocalGraph, told: str, named: str | None = None) -> Device:
    """Return the GPU that a step was traced on: that of the named system, else by the trace.

    Args:
        local: the step of a rank.
        told: what asks for it, with which the message begins.
        named: the system.

    Raises:
        ConfigError: it is a CPU's trace, or nothing is known of the GPU.
    """
    if local.backend == "cpu":
        raise ConfigError(f"{told}: the trace is of a CPU; kernels of a GPU are needed to move to another")
    known = device_named(named) if named is not None else device_traced(local.device_name)
    if known is None:
        raise ConfigError(
            f"{told}: the trace was recorded on {local.device_name or 'an unnamed device'}, of which nothing is known; "
            f"replay --system names the published system with that GPU: {', '.join(systems())}"
        )
    return known


def innermost_known(local: LocalGraph, operator: int) -> TracedOperator | None:
    """Return the innermost operator around a position that the predictor knows, else that one; None: of NO_OPERATOR."""
    return None if operator == NO_OPERATOR else local.operators[known_around(local, operator)]


def _kernels(step: TracedStep) -> Iterator[tuple[int, TracedOperator | None]]:
    """Yield every kernel, without collectives and copies, with the innermost operator that the predictor knows."""
    for position, role in enumerate(step.roles):
        if role.kind is not TaskKind.KERNEL or role.task == ADDED:
            continue
        local = step.ranks[role.rank]
        yield position, innermost_known(local, local.tasks[role.task].operator)


def change_gpu(step: TracedStep, setting: Setting, named: str | None) -> Changed:
    """Move the kernels to another GPU; host time, launches, copies and collectives stay as they are.

    Raises:
        ConfigError: nothing is known of that GPU, or of the one of the trace.
    """
    told, first = f"--set {setting.text}", step.ranks[0]
    to = known_device(setting.value, told)
    ratios = DeviceRatios(source_device(first, told, named), to)
    costs: dict[int, Cost] = {}
    before: dict[str, float] = {}
    for position, traced in _kernels(step):
        ratio, now = ratios.of(traced), step.cost(position)
        before[ratio.basis] = before.get(ratio.basis, 0.0) + now.us
        costs[position] = product(ratio.cost, now)
    whole = sum(before.values())
    if not whole:
        raise ConfigError(f"{told}: no kernel ran in the step")
    after = with_costs(step, costs)
    total_us = sum(cost.us for cost in costs.values())
    note = ratios.told("" if named is not None else first.device_name, before)
    return Changed(after, Touched(counted(len(costs), "kernel"), whole, total_us, (note,)))
