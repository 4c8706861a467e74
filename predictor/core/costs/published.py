"""A published system: the cost of an operator or a collective on it, with its source.

In this order: its own regressor; a donor's, transferred to this hardware; for a collective, its bytes over the links;
for a copy from the host, its bytes over the host's; for an operator, a donor operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from math import hypot, inf
from pathlib import Path

from predictor.core.base.errors import PublishedError
from predictor.core.base.lazy import lazy
from predictor.core.costs import bounds, host_copy, low_precision, scalar_kernels
from predictor.core.costs.alignment import is_misaligned, without_tensor_cores
from predictor.core.costs.attention_kernels import in_few_bits, with_kernels
from predictor.core.costs.backward_ratio import with_backward_ratio
from predictor.core.costs.calibration import calibrated
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.core.costs.dropped import why_missing
from predictor.core.costs.folder import (
    CARD,
    COLLECTIVE_FOLDER,
    OPERATOR_FOLDER,
    RegressorFiles,
    answering_files,
    donor_folder,
    measured_precisions,
    own_precisions,
    read_hardware,
    read_manifest,
    read_verified,
)
from predictor.core.costs.gradient_products import regressors_of
from predictor.core.costs.host_adam import HOST_ADAMS, HostAdamRegressor
from predictor.core.costs.link_lookup import collective_regressors, half_of_all_reduce
from predictor.core.costs.operator import KERNEL_MARK, Direction, Operator, Shape, as_attention_of
from predictor.core.costs.regressors import Outside, Regressor
from predictor.core.costs.slowdown import NO_SLOWDOWN
from predictor.core.costs.stand_ins import LEAST_KERNEL_US, Call, bounded
from predictor.core.costs.stream_stand_ins import DONOR, with_stream_stand_in
from predictor.core.costs.transfer import computes, of_files
from predictor.core.costs.work import PRECISION_BYTES, SAME_RATE
from predictor.core.hardware.hardware import System
from predictor.core.hardware.host_memory import host_memory_gb_per_s

__all__ = [
    "CARD",
    "OPERATOR_FOLDER",
    "PublishedSystem",
    "measured_precisions",
    "open_system",
    "read_hardware",
    "read_manifest",
    "with_hardware",
]

Asked = tuple[str, str, Direction, Shape]
MOST_ANSWERS = 100_000  # that a system keeps, some 50 MB: a server is asked about ever other shapes


class PublishedSystem:
    """Times operators and collectives on one published system in one precision; caches every answer.

    Attributes:
        uncalibrated: the published system that a calibration's factors multiply; None without a calibration.
        in_graphs: collectives are launched inside CUDA graphs.
        slowdown: of the step whose calls are timed.
        is_as_tabled: backward passes take what their tables hold, whatever gradients they were fed.
    """

    def __init__(self, folder: Path, precision: str) -> None:
        """Open a published folder; regressors are read on first use.

        Raises:
            FileNotFoundError: the folder is not a published system.
            PublishedError: a file is damaged, or this precision was not measured.
        """
        self.folder = folder
        self.precision = precision
        manifest = read_manifest(folder)
        self.hardware = read_hardware(folder, manifest)
        calibration = self.hardware.calibration
        self.uncalibrated = None if calibration is None else self.opened_alike(donor_folder(folder, calibration.base))
        own = answering_files(folder, manifest, self.hardware, precision)
        self.files: RegressorFiles = own if self.uncalibrated is None else self.uncalibrated.files
        read_verified(folder, CARD, manifest)
        measured = measured_precisions(folder)
        if precision not in measured:
            known = ", ".join(measured) or "none"
            raise PublishedError(f"precision is {precision}; {self.name} was measured in {known}")
        self._regressors: dict[str, dict[Direction, Regressor]] = {}
        self._answers: dict[Asked, Cost] = {}  # at most MOST_ANSWERS, then from anew
        self._alone: dict[Asked, Cost] = {}  # the same calls outside a step
        self.in_graphs = False
        self.slowdown = NO_SLOWDOWN
        self.is_as_tabled = False

    def unanswered(self, keeps_regressors: bool = True) -> PublishedSystem:
        """Return a copy that has answered nothing, to be changed; it opens regressors again unless it keeps them."""
        other = copy(self)
        other._answers, other._alone = {}, {}
        other.__dict__.pop("measured_kernels", None)
        if not keeps_regressors:
            other._regressors = {}
        return other

    def opened_alike(self, folder: Path) -> PublishedSystem:
        """Return another published folder, opened like this one."""
        return open_system(folder, self.precision)

    @property
    def name(self) -> str:
        """Return the system's name."""
        return self.hardware.name

    @property
    def gpu(self) -> str:
        """Return the GPU's name as the files spell it."""
        return self.hardware.gpu.name

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call, of the operator itself or of its donor operator.

        Raises:
            PublishedError: neither the operator nor a donor operator has a regressor here for this direction.
        """
        key = (operator.name, operator.computed_in + operator.kernel, direction, shape)
        answer = self._answers.get(key)
        if answer is None and max(len(self._answers), len(self._alone)) >= MOST_ANSWERS:
            self.forget()
        if answer is None and self.uncalibrated is not None:
            cost = self.uncalibrated.cost(operator, direction, shape)
            answer = self._answers[key] = calibrated(cost, operator, shape, self.hardware.calibration)
        if answer is None:
            alone = self._alone[key] = self._alone.get(key) or self._of_call(operator, direction, shape)
            answer = self._answers[key] = self._slowed(operator, direction, shape, alone)
        return answer

    def _of_call(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of a call alone, outside a step."""
        call = self._call(operator, direction, shape)
        cost = call.cost(direction)
        if call.stands_in and operator.name not in COLLECTIVES:
            cost = self._bounded(operator, direction, shape, cost)
        if is_misaligned(operator, shape, PRECISION_BYTES[self.answered_precision]):
            sms = int(self.hardware.gpu.num_multiprocessors.value)
            cost = without_tensor_cores(cost, operator.work(shape, direction, sms).flops, self.hardware.gpu)
        return self._possible(operator, direction, shape, cost)

    def _slowed(self, operator: Operator, direction: Direction, shape: Shape, cost: Cost) -> Cost:
        flops = operator.work(shape, direction, int(self.hardware.gpu.num_multiprocessors.value)).flops
        reached = flops / (cost.us * 1e6 * self.peak_of(operator)) if computes(operator) and cost.us else 0.0
        return self.slowdown.applied(cost, operator, direction, shape, reached)

    @property
    def answered_precision(self) -> str:
        """Return the precision of the elements that costs are of."""
        return self.precision

    def _peak_tflop_per_s(self) -> float | None:
        """Return the data sheet's peak of matrix products in the precision that is answered; None if unknown."""
        peak = self.hardware.gpu.peak_tflop_per_s.get(self.precision)
        return None if peak is None else peak.value

    def peak_of(self, operator: Operator) -> float:
        """Return the peak of an operator's products, TFLOP/s, in the precision that it is computed in."""
        if operator.computed_in:
            return low_precision.peak_tflop_per_s(self.hardware.gpu, operator.computed_in)
        return self._peak_tflop_per_s() or inf

    def _bounded(self, operator: Operator, direction: Direction, shape: Shape, cost: Cost) -> Cost:
        """Return the cost of a donor operator, no shorter than the call's own bytes, FLOPs and kernels take.

        A product reads and writes its matrices no faster than a stream of as many bytes; bytes that the cache may hold
        have no limit. Launches are those of PyTorch's operators. Inside a graph run HugeCTR's kernels, one per call:
        what precedes the update of rows there, the sorting of keys, is a task of its own.
        """
        least_us = self._least_us(operator, direction, shape)
        likely_us = least_us
        if self.hardware.links.engine == "dedicated":
            launches = 1 if self.in_graphs else operator.launches[direction is Direction.BACKWARD]
            likely_us = max(likely_us, launches * LEAST_KERNEL_US)
        if computes(operator) and self._lookup(catalogue()[DONOR], direction) is not None:
            likely_us = max(likely_us, self._call(with_stream_stand_in(operator), direction, shape).cost(direction).us)
        return bounded(cost, least_us, likely_us)

    def _least_us(self, operator: Operator, direction: Direction, shape: Shape) -> float:
        gpu, peak = self.hardware.gpu, self.peak_of(operator)
        return bounds.least_us(operator, direction, shape, gpu, self.answered_precision, peak)

    def _possible(self, operator: Operator, direction: Direction, shape: Shape, cost: Cost) -> Cost:
        """Return a cost within the peaks of the GPU; measured rows passed the gate of the fit."""
        if cost.source <= Source.INTERPOLATED or not computes(operator):
            return cost
        return bounds.possible(cost, self._least_us(operator, direction, shape))

    @property
    def has_own_operators(self) -> bool:
        """Return whether operators were measured on this system, so that it is known from more than a data sheet."""
        if self.hardware.like is not None:
            return self.files.hardware.gpu.chip == self.hardware.gpu.chip
        return self.hardware.transfer is None or bool(self.files.names(OPERATOR_FOLDER))

    def operator_donor(self) -> System | None:
        """Return the hardware of the donor of the operators of a GPU that was not measured; None if it was."""
        if self.hardware.like is not None:
            return None if self.has_own_operators else self.files.hardware
        if self.has_own_operators or self.hardware.transfer is None:
            return None
        folder = donor_folder(self.files.folder, self.hardware.transfer.operators)
        donor = read_hardware(folder, read_manifest(folder))
        return None if donor.gpu.name == self.gpu else donor

    def forget(self) -> None:
        """Clear the cache of answers; regressors stay loaded."""
        self._answers.clear()
        self._alone.clear()

    def collective(self, name: str, size_bytes: float, topology: Topology) -> Cost:
        """Return the cost of one collective; a group of one rank, or nothing to send, costs nothing."""
        if topology.ranks < 2 or size_bytes <= 0:
            return ZERO
        shape = (int(size_bytes), topology.nodes, topology.gpus_per_node)
        return self.cost(COLLECTIVES[name], Direction.FORWARD, shape)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        call = self._call(operator, direction, shape)
        if call.stands_in:
            return Outside("operator", None, call.operator.name)
        return call.regressor.outside(operator, direction, shape)

    def measured(self, operator: Operator) -> bool:
        """Return whether an operator has a regressor in each of its directions, here or at the donor."""
        return all(self._lookup(operator, direction) is not None for direction in operator.directions)

    @lazy
    def measured_kernels(self) -> frozenset[str]:
        """Names of the kernels that only some systems measured by themselves, and that this one did."""
        known = catalogue().items()
        return frozenset(name for name, operator in known if operator.where_measured and self.measured(operator))

    def _call(self, operator: Operator, direction: Direction, shape: Shape) -> Call:
        """Return the call that has a regressor: of the operator itself, else of its donor operator.

        Raises:
            PublishedError: no donor operator has a regressor, or donor operators name each other in a circle.
        """
        half = half_of_all_reduce(self._lookup, operator, direction, shape)
        if half is not None:
            return half
        precision = operator.computed_in or self.precision
        known_in = (*operator.precisions, *operator.tabled_in)
        if precision not in known_in and operator.name not in COLLECTIVES:
            known = ", ".join(known_in)
            raise PublishedError(f"{operator.name} does not exist in {precision}; it is measured in {known}")
        missing: list[str] = []
        times, log_error, is_analytic = 1.0, 0.0, False
        while (regressor := self._lookup(operator, direction)) is None:
            if operator.stand_in is None:
                raise self._missing(operator, direction)
            if operator.name in missing:
                raise PublishedError(f"{self.name}: {', '.join(missing)} stand in for each other and none was measured")
            missing.append(operator.name)
            sms = int(self.hardware.gpu.num_multiprocessors.value)
            name, shape, factor, unknown, by_rate = operator.stand_in(shape, direction, sms)
            is_analytic = is_analytic or by_rate
            donor = as_attention_of(catalogue()[name], operator)
            # Bytes as they are counted are equal; those of elements have the width of the precision.
            factor *= operator.byte_scale(self.precision) / donor.byte_scale(self.precision)
            operator, times, log_error = donor, times * factor, hypot(log_error, unknown)
        return Call(operator, shape, times, regressor, bool(missing), log_error, is_analytic)

    def regressor(self, operator: Operator, direction: Direction) -> Regressor:
        """Return the regressor of an operator itself, never that of a donor operator.

        Raises:
            PublishedError: there is none, or its file is damaged.
        """
        regressor = self._lookup(operator, direction)
        if regressor is None:
            raise self._missing(operator, direction)
        return regressor

    def _missing(self, operator: Operator, direction: Direction) -> PublishedError:
        """Return the error of an operator without a regressor; it lists those that there are."""
        name = operator.regressor_name
        if self._regressors.get(name):
            return PublishedError(f"{self.name} has no {direction} regressor for {operator.name}")
        names = self.regressor_names(COLLECTIVE_FOLDER if name in COLLECTIVES else OPERATOR_FOLDER)
        why = why_missing(self.files.folder, self.files.manifest, name, self.precision) or f"it has {', '.join(names)}"
        return PublishedError(f"{self.name} has no {self.precision} regressor for {name}; {why}")

    def _lookup(self, operator: Operator, direction: Direction) -> Regressor | None:
        """Return an operator's regressor, None where neither this system nor its donor has one."""
        name = operator.regressor_name
        key = f"{name} in {operator.computed_in}" if operator.computed_in else name
        if key not in self._regressors:
            lookup = self._in_few_bits if operator.computed_in else self._operator
            self._regressors[key] = self._collective(operator) if name in COLLECTIVES else lookup(operator)
        return self._regressors[key].get(direction)

    def _donor(self, role: str, precisions: Sequence[str] = ()) -> RegressorFiles | None:
        """Return the donor's files for a role; None where it has none in an accepted precision.

        Args:
            role: field of ``Transfer``.
            precisions: accepted besides this system's.
        """
        if self.hardware.transfer is None:
            return None
        folder = donor_folder(self.files.folder, getattr(self.hardware.transfer, role))
        there = own_precisions(read_manifest(folder))
        usable = [precision for precision in (self.precision, *precisions) if precision in there]
        return open_donor(folder, usable[0]) if usable else None

    def _operator(self, operator: Operator) -> dict[Direction, Regressor]:
        """Return an operator's regressors on this hardware, from this folder, else transferred from the donor."""
        regressors: dict[Direction, Regressor] = {}
        for files in (self._donor("operators", SAME_RATE.get(self.precision, ())), self.files):
            if files is not None:
                read = partial(of_files, files, self.hardware.gpu, self.precision)
                is_constant = files.hardware.gradients == "constant" and not self.is_as_tabled
                found = regressors_of(operator, read, is_constant)
                found = with_backward_ratio(operator, found)
                others = {kernel: read(operator, kernel) for kernel in files.kernels(operator)}
                regressors |= with_kernels(operator, found, files.hardware, others)
        memory = host_memory_gb_per_s(self.hardware) if operator.name in HOST_ADAMS else None
        if memory is not None:
            regressors[Direction.FORWARD] = HostAdamRegressor(memory.value)
        link = self.hardware.links.host_gb_per_s
        if not regressors and operator.name in host_copy.NAMES and link is not None:
            regressors[Direction.FORWARD] = host_copy.HostCopyRegressor(link.value)
        if operator is scalar_kernels.OPERATOR and (known := scalar_kernels.scalar_kernels_of(self.hardware.gpu)):
            regressors[Direction.FORWARD] = known
        return regressors

    def _in_few_bits(self, operator: Operator) -> dict[Direction, Regressor]:
        """Return the regressors of products in another precision than the step: as measured, else from the step's.

        Raises:
            PublishedError: attention does not run in few bits here.
        """
        if operator.fused_attention:
            return in_few_bits(self._operator(operator), self.name)
        wanted, product, measured = operator.computed_in, replace(operator, computed_in=""), None
        if wanted in measured_precisions(self.folder):
            measured = PublishedSystem(self.folder, wanted)
            measured.hardware = self.hardware
        table = {} if measured is None else measured._operator(product)
        return low_precision.products(table, self._operator(product), product, self.hardware.gpu, wanted)

    def _collective(self, collective: Operator) -> dict[Direction, Regressor]:
        """Return a collective's regressor over these links: its own, or one by bytes."""
        return collective_regressors(collective, self.hardware, self.files, self._donor, self.in_graphs)

    def regressor_names(self, kind: str) -> list[str]:
        """Return the regressors of one kind (operator or nccl) in this precision, the donor's included."""
        names = set(self.files.names(kind))
        precisions = SAME_RATE.get(self.precision, ())
        if kind == OPERATOR_FOLDER and (donor := self._donor("operators", precisions)) is not None:
            names |= set(donor.names(kind))
        return sorted({name.partition(KERNEL_MARK)[0] for name in names})


@lru_cache(maxsize=32)
def open_donor(folder: Path, precision: str) -> RegressorFiles:
    """Open a donor's regressors once per process.

    Raises:
        FileNotFoundError: the folder is not a published system.
        PublishedError: its manifest or its hardware is damaged.
    """
    manifest = read_manifest(folder)
    return RegressorFiles(folder, manifest, read_hardware(folder, manifest), precision)


@lru_cache(maxsize=32)
def open_system(folder: Path, precision: str) -> PublishedSystem:
    """Open a published system once per process."""
    return PublishedSystem(folder, precision)


def with_hardware(system: PublishedSystem, changed: System) -> PublishedSystem:
    """Return a published system on changed hardware.

    Costs that depend on no changed number keep time and source; the others are scaled as in ``transfer``, and analytic.
    """
    other = system.unanswered(keeps_regressors=False)
    other.hardware = changed
    if system.uncalibrated is not None:
        other.uncalibrated = with_hardware(system.uncalibrated, changed.model_copy(update={"calibration": None}))
    return other
