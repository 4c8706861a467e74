"""Attention in the implementation that a run names: as measured, else another's time times a ratio.

``attention_kernels.yaml`` states the ratios per matrix instruction with their source, also those of a backward pass
where only the forward one was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp, hypot, log
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel

from predictor.core.base.errors import PublishedError
from predictor.core.base.read_yaml import read_valid
from predictor.core.costs.attention_precision import at_length, over_16_bits
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape, in_kernel
from predictor.core.costs.operators.flash_attention import BACKWARD_TO_FORWARD_FLOPS
from predictor.core.costs.operators.mla_attention import KEY_WIDTH
from predictor.core.costs.regressors import Outside, Regressor
from predictor.core.hardware.hardware import System

FILE = Path(__file__).with_name("attention_kernels.yaml")
# Heads wider than 128 slow the backward pass down further: it keeps more accumulators than a block's registers hold.
# FlashAttention-2 on an A100 by Perlmutter's table, 256 against 128: 1.20; FlashAttention-4 on H200 and cuDNN on GB200,
# 192 against 128: 1.27, 1.24 (cudnn-frontend, benchmark/attention_training/results/dsv3).
WIDE_HEAD, WIDE_SLOWDOWN, WIDE_LOG_ERROR = 128, 1.2, 0.1


class KernelRate(BaseModel):
    """One implementation's rate; see ``attention_kernels.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    forward: dict[int, float] = Field(min_length=1)
    backward: dict[int, float] | None = Field(default=None, min_length=1)
    log_error: float = Field(ge=0)
    trains_as: str | None = None
    source: str = Field(min_length=1)


class _Rates(RootModel[dict[str, dict[str, KernelRate]]]):
    model_config = ConfigDict(frozen=True)


@cache
def kernel_rates(instruction: str) -> dict[str, KernelRate]:
    """Return the implementations of one kind of matrix instruction; none where it has none."""
    return read_valid(FILE, _Rates, PublishedError).root.get(instruction, {})


def _length_and_width(operator: Operator, shape: Shape) -> tuple[int, int]:
    """Return how many keys a query sees at most, and the width of a head."""
    sizes = dict(zip(operator.dimensions, shape, strict=True))
    length = sizes["sequence"]
    return min(length, sizes.get("window", 0) or length), sizes.get("head_dim", KEY_WIDTH)


@dataclass(frozen=True, slots=True)
class AttentionRegressor:
    """Times one direction of attention in whichever implementation is named for.

    Attributes:
        regressor: of the direction itself, or of the forward pass.
        from_forward: ``regressor`` is of the forward pass, and this is the backward pass.
        measured: implementation that ``regressor`` was measured with; empty: it is not known.
        instruction: matrix instruction of the GPU that measured it; empty: it is not known, and neither are ratios.
        others: the same direction as measured with other implementations, by their names.
        unnamed: implementation of a run that names none; empty: ``measured``, or what that trains as.
    """

    regressor: Regressor
    from_forward: bool
    measured: str
    instruction: str
    others: Mapping[str, AttentionRegressor] = field(default_factory=dict)
    unnamed: str = ""

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call, in few bits that in 16 times a ratio.

        Raises:
            PublishedError: no rate of the implementation or the precision that the run names is known on such GPUs.
        """
        cost = self._in_16_bits(operator, direction, shape)
        if not operator.computed_in:
            return cost
        _, width = _length_and_width(operator, shape)
        return _scaled(cost, *over_16_bits(operator, direction, shape, self.instruction, width))

    def _in_16_bits(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call in the step's precision."""
        name = self._implementation(operator)
        if name in self.others:
            return self.others[name]._in_16_bits(in_kernel(operator, name), direction, shape)
        cost = self.regressor.answer(operator, self._direction(direction), shape)
        if name == self.measured and not self.from_forward:
            return cost
        own, named = self._rates(name)
        length, width = _length_and_width(operator, shape)
        factor = at_length(named.forward, length) / at_length(own.forward, length)
        error = hypot(own.log_error, named.log_error) if named is not own else named.log_error
        if direction is Direction.BACKWARD:
            factor *= self._slowdown(named, length)
            if not self.from_forward:
                factor /= self._slowdown(own, length)
            elif width > WIDE_HEAD:
                factor *= WIDE_SLOWDOWN
                error = hypot(error, WIDE_LOG_ERROR)
        return _scaled(cost, factor, error)

    def _implementation(self, operator: Operator) -> str:
        """Return the implementation that a run names, else the one that it has without."""
        own = kernel_rates(self.instruction).get(self.measured)
        return operator.kernel or self.unnamed or (own and own.trains_as) or self.measured

    def _rates(self, name: str) -> tuple[KernelRate, KernelRate]:
        """Return the rates of the measured implementation and of another.

        Raises:
            PublishedError: one of them is not known; the message lists the implementations that are.
        """
        rates = kernel_rates(self.instruction)
        own, named = rates.get(self.measured), rates.get(name)
        if own is None or named is None:
            trained = [known for known, rate in rates.items() if rate.backward is not None] or [self.measured]
            known, units = (
                ", ".join(dict.fromkeys([*trained, *self.others])),
                self.instruction or "unknown matrix units",
            )
            raise PublishedError(
                f"training.attention_kernel is {name}; its rate on GPUs with {units} is not known; "
                f"known are {known}; choose one, or leave it out"
            )
        return own, named

    def _answering(self, operator: Operator) -> AttentionRegressor:
        """Return the regressor of the implementation that a run names, where that was measured; else this one."""
        return self.others.get(self._implementation(operator), self)

    def changed(self, change: Callable[[Regressor], Regressor]) -> AttentionRegressor:
        """Return this with every measured regressor changed."""
        others = {kernel: other.changed(change) for kernel, other in self.others.items()}
        return replace(self, regressor=change(self.regressor), others=others)

    def _slowdown(self, rate: KernelRate, length: int) -> float:
        """Return the backward time over the forward time of one implementation."""
        assert rate.backward is not None, rate.source
        return BACKWARD_TO_FORWARD_FLOPS * at_length(rate.backward, length)

    def _direction(self, direction: Direction) -> Direction:
        return Direction.FORWARD if self.from_forward else direction

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        answering = self._answering(operator)
        return answering.regressor.outside(operator, answering._direction(direction), shape)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return self._answering(operator).regressor.widest(operator, shape)


def _scaled(cost: Cost, factor: float, error: float) -> Cost:
    """Return a cost times a ratio that is itself known within an error, as a log."""
    us = cost.us * factor
    low, high = (hypot(log(cost.us / cost.low_us), error), hypot(log(cost.high_us / cost.us), error))
    return Cost(us, us * exp(-low), us * exp(high), Source.ANALYTIC)


def _measured_with(
    kernel: str, regressors: Mapping[Direction, Regressor], instruction: str
) -> dict[Direction, AttentionRegressor]:
    """Return the regressors of one implementation, the backward pass from the forward one where it lacks."""
    result = {
        direction: AttentionRegressor(regressor, False, kernel, instruction)
        for direction, regressor in regressors.items()
    }
    forward = regressors.get(Direction.FORWARD)
    if forward is not None and Direction.BACKWARD not in result and kernel in kernel_rates(instruction):
        result[Direction.BACKWARD] = AttentionRegressor(forward, True, kernel, instruction)
    return result


def with_kernels(
    operator: Operator,
    regressors: Mapping[Direction, Regressor],
    measured: System,
    others: Mapping[str, Mapping[Direction, Regressor]],
) -> dict[Direction, Regressor]:
    """Return attention's regressors in every implementation; other operators stay as they are.

    Args:
        operator: of the regressors.
        regressors: as measured with the system's own implementation.
        measured: the system; where it names neither implementation nor matrix instruction, there are no ratios.
        others: as measured with further implementations, by their names.
    """
    kernel, instruction = measured.attention_kernel or "", measured.gpu.matrix_instruction or ""
    known = bool(regressors and kernel and instruction)
    if not operator.fused_attention or not (known or others):
        return dict(regressors)
    if known and kernel not in kernel_rates(instruction):
        raise PublishedError(f"{measured.name}: attention_kernel is {kernel}; {FILE.name} has none for {instruction}")
    own = _measured_with(kernel, regressors, instruction)
    apart = {
        name: _measured_with(name, table, instruction) for name, table in others.items() if name != kernel or not own
    }
    result: dict[Direction, Regressor] = {}
    for direction in operator.directions:
        there = {name: table[direction] for name, table in apart.items() if direction in table}
        if direction in own:
            result[direction] = replace(own[direction], others=there)
        elif there:
            result[direction] = replace(next(iter(there.values())), others=there, unnamed=kernel)
    return result


def in_few_bits(regressors: dict[Direction, Regressor], name: str) -> dict[Direction, Regressor]:
    """Return attention's regressors, which answer in few bits too.

    Args:
        regressors: of a system.
        name: of the system.

    Raises:
        PublishedError: they are those of a system that does not say its implementation.
    """
    if all(isinstance(regressor, AttentionRegressor) for regressor in regressors.values()):
        return regressors
    raise PublishedError(f"training.fp8_attention: the rate of attention in fp8 on {name} is not known; leave it out")
