"""Another GPU: what a traced kernel would take on it.

A kernel of an operator that the predictor knows takes its measured time × the regressor's time on the other GPU ÷ the
one on the GPU of the trace. Any other one takes the ratio of the data sheets: of the longer of FLOPs ÷ peak and
bytes ÷ memory bandwidth where the operator's inputs are known (roofline; Williams et al. 2009,
doi:10.1145/1498765.1498785), of the memory bandwidths otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from math import exp, hypot, log
from typing import NamedTuple

from predictor.base.bundled import REGRESSORS_FOLDER, systems
from predictor.base.errors import ConfigError, PublishedError, nearest
from predictor.configuration.loading import find_folder, open_measured
from predictor.costs.cost import Cost, Source
from predictor.costs.folder import read_hardware, read_manifest
from predictor.costs.hardware import System
from predictor.costs.published import PublishedSystem
from predictor.costs.transfer_errors import transfer_errors
from predictor.replay.known_operators import KnownCall, dtype_of, known_around, known_call, least_work
from predictor.replay.setting import Changed, Setting, Touched, counted
from predictor.replay.traced_step import ADDED, TracedStep
from predictor.replay.traffic import with_costs
from predictor.traces.local_graph import NO_OPERATOR, TaskKind, TracedOperator

MODEL = re.compile(r"[A-Z]{1,3}\d{2,4}[A-Z]?")
REGRESSORS, ROOFLINE, BANDWIDTH = "regressors of both GPUs", "roofline of the data sheets", "memory bandwidths"
SIXTEEN_BITS = ("bf16", "fp16")


def system_of_device(device_name: str) -> str | None:
    """Return the published system with the GPU that a trace names; None where no one is known.

    A name that differs in form factor only stands for the same model: « NVIDIA A100-PG509-200 » is an A100.
    """
    spelt = device_name.replace(" ", "")
    model = MODEL.search(spelt.removeprefix("NVIDIA"))
    by_model = None
    for name in systems():
        gpu = hardware_of(name).gpu.name
        if gpu == spelt:
            return name
        of_gpu = MODEL.search(gpu.removeprefix("NVIDIA"))
        if by_model is None and model is not None and of_gpu is not None and of_gpu[0] == model[0]:
            by_model = name
    return by_model


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


class Ratio(NamedTuple):
    """How much longer a kernel takes: the factor, its 90 % interval as a log, and what it rests on."""

    factor: float
    log_error: float
    source: Source
    basis: str


@dataclass(slots=True)
class DeviceRatios:
    """Ratios of kernels' times between the GPUs of two published systems; asked once for every call's shape."""

    by: str
    to: str
    _known: dict[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]], Ratio] = field(default_factory=dict)
    _open: dict[tuple[str, str], PublishedSystem | None] = field(default_factory=dict)

    def of(self, traced: TracedOperator | None) -> Ratio:
        """Return the ratio of the kernels of an operator; None: of a kernel that belongs to none."""
        if traced is None:
            return self._by_bandwidth()
        key = (traced.name, traced.shapes, traced.dtypes)
        if key not in self._known:
            self._known[key] = self._ratio(traced)
        return self._known[key]

    def _ratio(self, traced: TracedOperator) -> Ratio:
        call = known_call(traced)
        by_regressors = None if call is None else self._by_regressors(call, dtype_of(traced)[0])
        if by_regressors is not None:
            return by_regressors
        flops, size_bytes = least_work(traced)
        return self._by_roofline(flops, size_bytes, dtype_of(traced)[0]) if size_bytes else self._by_bandwidth()

    def _system(self, name: str, precision: str) -> PublishedSystem | None:
        if (name, precision) not in self._open:
            self._open[name, precision] = opened(name, precision)
        return self._open[name, precision]

    def _by_regressors(self, call: KnownCall, precision: str) -> Ratio | None:
        pair = [self._system(name, precision) for name in (self.by, self.to)]
        costs = []
        for system in pair:
            if system is None:
                return None
            try:
                costs.append(system.cost(call.operator, call.direction, call.shape))
            except PublishedError:  # no regressor, and no donor operator: the data sheets answer
                return None
        before, after = costs
        error = hypot(*(log(cost.high_us / cost.low_us) / 2 for cost in costs)) if self.by != self.to else 0.0
        return Ratio(after.us / before.us, error, max(before.source, after.source), REGRESSORS)

    def _by_roofline(self, flops: float, size_bytes: float, precision: str) -> Ratio:
        times = []
        for name in (self.by, self.to):
            gpu = hardware_of(name).gpu
            peaks = gpu.peak_tflop_per_s
            peak = peaks.get(precision) or next(peaks[usual] for usual in SIXTEEN_BITS if usual in peaks)
            flops_us = flops / (peak.value * 1e6)
            times.append((max(flops_us, size_bytes / (gpu.memory_bandwidth_gb_per_s.value * 1e3)), flops_us))
        (before, _), (after, flops_us) = times
        kind = "compute" if flops_us == after else "stream"
        return Ratio(after / before, self._error(kind), Source.ANALYTIC, ROOFLINE)

    def _by_bandwidth(self) -> Ratio:
        before, after = (hardware_of(name).gpu.memory_bandwidth_gb_per_s.value for name in (self.by, self.to))
        return Ratio(before / after, self._error("stream"), Source.ANALYTIC, BANDWIDTH)

    def _error(self, kind: str) -> float:
        return 0.0 if self.by == self.to else transfer_errors().kinds[kind]


def source_system(step: TracedStep, setting: Setting, named: str | None) -> str:
    """Return the published system of the GPU that a step was traced on: the one that was named, else by its device.

    Raises:
        ConfigError: it is a CPU's trace, or the device is no published GPU.
    """
    first = step.ranks[0]
    if first.backend == "cpu":
        raise ConfigError(
            f"--set {setting.text}: the trace is of a CPU; kernels of a GPU are needed to move to another"
        )
    known = named or system_of_device(first.device_name)
    if known is None:
        raise ConfigError(
            f"--set {setting.text}: the trace was recorded on {first.device_name or 'an unnamed device'}; name the "
            f"published system with that GPU with --system: {', '.join(systems())}"
        )
    return known


def _kernels(step: TracedStep) -> Iterator[tuple[int, TracedOperator | None]]:
    """Yield every kernel, without collectives and copies, with the innermost operator that the predictor knows.

    Where it knows none of those around the kernel, it is the innermost.
    """
    for position, role in enumerate(step.roles):
        if role.kind is not TaskKind.KERNEL or role.task == ADDED:
            continue
        local = step.ranks[role.rank]
        innermost = local.tasks[role.task].operator
        yield position, None if innermost == NO_OPERATOR else local.operators[known_around(local, innermost)]


def change_gpu(step: TracedStep, setting: Setting, named: str | None) -> Changed:
    """Move the kernels to another GPU; host time, launches, copies and collectives stay as they are.

    Raises:
        ConfigError: no such published system, or the GPU of the trace is none.
    """
    to = setting.value
    if to not in systems():
        known = systems()
        raise ConfigError(
            f"--set {setting.text}: {to} is not a published system.{nearest(to, known)} Published: {', '.join(known)}"
        )
    ratios = DeviceRatios(source_system(step, setting, named), to)
    costs: dict[int, Cost] = {}
    before: dict[str, float] = {}
    for position, traced in _kernels(step):
        ratio = ratios.of(traced)
        us = step.tasks[position].duration_us
        before[ratio.basis] = before.get(ratio.basis, 0.0) + us
        new, spread = us * ratio.factor, exp(ratio.log_error)
        costs[position] = Cost(new, new / spread, new * spread, max(ratio.source, Source.INTERPOLATED))
    whole = sum(before.values())
    if not whole:
        raise ConfigError(f"--set {setting.text}: no kernel ran in the step")
    shares = ", ".join(f"{us / whole:.0%} by {name}" for name, us in before.items())
    note = f"Kernel time moved from {ratios.by} to {to}: {shares}; host, copies and collectives stay."
    after = with_costs(step, costs)
    total_us = sum(cost.us for cost in costs.values())
    return Changed(after, Touched(counted(len(costs), "kernel"), whole, total_us, (note,)))
