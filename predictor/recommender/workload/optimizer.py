"""Optimizers of a recommender, with HugeCTR's names and hyperparameters.

AdaGrad is of later versions of HugeCTR; MLPerf's DLRM-DCNv2 trains with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OptimizerKind(StrEnum):
    """What updates weights; the values are HugeCTR's types."""

    ADAM = "Adam"
    MOMENTUM_SGD = "MomentumSGD"
    NESTEROV = "Nesterov"
    SGD = "SGD"
    ADAGRAD = "AdaGrad"

    @property
    def num_states(self) -> int:
        """Return the values that it keeps per weight."""
        return {OptimizerKind.ADAM: 2, OptimizerKind.SGD: 0}.get(self, 1)


class UpdateType(StrEnum):
    """Which rows of an embedding a step updates.

    LOCAL: rows that the batch looked up. GLOBAL: all rows; moments decay where no gradient came. LAZY_GLOBAL: rows that
    the batch looked up, which make up for the steps that they missed.
    """

    LOCAL = "Local"
    GLOBAL = "Global"
    LAZY_GLOBAL = "LazyGlobal"


@dataclass(frozen=True, slots=True)
class Schedule:
    """HugeCTR's learning-rate schedule of SGD, in steps; ``decay_start`` 0: no decay.

    Source: HugeCTR, "SGD Optimizer and Learning Rate Scheduling".
    """

    base: float
    warmup_steps: int = 1
    decay_start: int = 0
    decay_steps: int = 1
    decay_power: float = 2.0
    end: float = 0.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            return self.base * step / self.warmup_steps
        if self.decay_start == 0 or step <= self.decay_start:
            return self.base
        last = self.decay_start + self.decay_steps
        if step <= last:
            return max(self.end, self.base * float(pow((last - step) / self.decay_steps, self.decay_power)))
        return self.end


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer with its hyperparameters.

    Attributes:
        schedule: of the learning rate; constant for all but SGD.
        beta1, beta2, epsilon: of Adam; epsilon of AdaGrad too.
        momentum: of MomentumSGD and Nesterov.
        initial: value of AdaGrad's sums of squares before the first step.
    """

    kind: OptimizerKind
    schedule: Schedule
    update: UpdateType = UpdateType.LOCAL
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7
    momentum: float = 0.0
    initial: float = 0.0
