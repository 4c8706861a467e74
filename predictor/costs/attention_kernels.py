"""Attention in another implementation than the one measured, and its backward pass where only forward was measured.

Both are the measured time, times a ratio that ``attention_kernels.yaml`` states per matrix instruction with its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel

from predictor.base.errors import PublishedError
from predictor.base.read_yaml import read_valid
from predictor.costs.attention_precision import at_length, over_16_bits
from predictor.costs.cost import Cost, Source
from predictor.costs.hardware import System
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.operators.flash_attention import BACKWARD_TO_FORWARD_FLOPS
from predictor.costs.operators.mla_attention import KEY_WIDTH
from predictor.costs.regressors import Outside, Regressor

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
    """Times one direction of attention in whichever implementation is asked for.

    Attributes:
        regressor: of the direction itself, or of the forward pass.
        from_forward: ``regressor`` is of the forward pass, and this is the backward pass.
        measured: implementation that ``regressor`` was measured with.
        instruction: matrix instruction of the GPU that measured it.
    """

    regressor: Regressor
    from_forward: bool
    measured: str
    instruction: str

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
        rates = kernel_rates(self.instruction)
        own = rates[self.measured]
        asked_name = operator.kernel or own.trains_as or self.measured
        asked = rates.get(asked_name)
        if asked is None:
            trained = ", ".join(name for name, rate in rates.items() if rate.backward is not None)
            raise PublishedError(
                f"training.attention_kernel is {asked_name}; its rate on GPUs with {self.instruction} is not known; "
                f"known are {trained}; choose one, or leave it out"
            )
        cost = self.regressor.answer(operator, self._direction(direction), shape)
        if asked is own and not self.from_forward:
            return cost
        length, width = _length_and_width(operator, shape)
        factor = at_length(asked.forward, length) / at_length(own.forward, length)
        error = hypot(own.log_error, asked.log_error) if asked is not own else asked.log_error
        if direction is Direction.BACKWARD:
            factor *= self._slowdown(asked, length)
            if not self.from_forward:
                factor /= self._slowdown(own, length)
            elif width > WIDE_HEAD:
                factor *= WIDE_SLOWDOWN
                error = hypot(error, WIDE_LOG_ERROR)
        return _scaled(cost, factor, error)

    def _slowdown(self, rate: KernelRate, length: int) -> float:
        """Return the backward time over the forward time of one implementation."""
        assert rate.backward is not None, rate.source
        return BACKWARD_TO_FORWARD_FLOPS * at_length(rate.backward, length)

    def _direction(self, direction: Direction) -> Direction:
        return Direction.FORWARD if self.from_forward else direction

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        return self.regressor.outside(operator, self._direction(direction), shape)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return self.regressor.widest(operator, shape)


def _scaled(cost: Cost, factor: float, error: float) -> Cost:
    """Return a cost times a ratio that is itself known within an error, as a log."""
    us = cost.us * factor
    low, high = (hypot(log(cost.us / cost.low_us), error), hypot(log(cost.high_us / cost.us), error))
    return Cost(us, us * exp(-low), us * exp(high), Source.ANALYTIC)


def with_kernels(
    operator: Operator, regressors: dict[Direction, Regressor], measured: System
) -> dict[Direction, Regressor]:
    """Return attention's regressors in every implementation, the backward pass from the forward one where it lacks.

    Other operators, and attention of a system that does not say its implementation, stay as they are.
    """
    kernel, instruction = measured.attention_kernel, measured.gpu.matrix_instruction
    if not operator.fused_attention or not regressors or kernel is None or instruction is None:
        return regressors
    if kernel not in kernel_rates(instruction):
        raise PublishedError(f"{measured.name}: attention_kernel is {kernel}; {FILE.name} has none for {instruction}")
    result: dict[Direction, Regressor] = {
        direction: AttentionRegressor(regressor, False, kernel, instruction)
        for direction, regressor in regressors.items()
    }
    forward = regressors.get(Direction.FORWARD)
    if forward is not None and Direction.BACKWARD not in result:
        result[Direction.BACKWARD] = AttentionRegressor(forward, True, kernel, instruction)
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
