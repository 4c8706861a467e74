"""Steps that rows missed while they waited in files, made up for when they return.

Global rules of Adam, MomentumSGD and Nesterov move all rows in every step, those without a gradient too. A row in a
file gets these updates later, of every step that it missed and at that step's learning rate.

Adam divides by √v + epsilon of every element, so its steps are taken one by one, for all rows at once. A step's move
shrinks at least by β1 / √β2 from that of the step before it, at equal rates: what is left after ``lasting_steps`` is
below 2^-48 of the first missed step's, so further steps only let the moments decay, a power of β1 and of β2. With the
usual β1 0.9 and β2 0.999 these are 340 steps. A row costs at most what it would have cost in memory, and 8 bytes a step
keep the rates.

The velocity of MomentumSGD and Nesterov decays by the momentum factor whatever the rates are; the sum of what it moves
is a geometric series.
"""

from __future__ import annotations

from array import array
from math import ceil, inf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, UpdateType

NEGLIGIBLE = 2.0**-48
ELEMENTS_AT_ONCE = 1 << 16  # 256 KiB of each operand


def moves_all_rows(optimizer: Optimizer | None) -> bool:
    """Return whether a step moves rows that it did not look up."""
    has_momentum = optimizer is not None and optimizer.kind not in (OptimizerKind.SGD, OptimizerKind.ADAGRAD)
    return optimizer is not None and optimizer.update is UpdateType.GLOBAL and has_momentum


def corrected_rate(optimizer: Optimizer, rate: float, step: int) -> float:
    """Return Adam's rate with the bias corrections of a step (Kingma and Ba 2015, end of section 2)."""
    return float(rate * sqrt(1.0 - optimizer.beta2**step) / (1.0 - optimizer.beta1**step))


def lasting_steps(optimizer: Optimizer) -> float:
    """Return after how many steps without a gradient the rest of Adam's moves is negligible."""
    ratio = optimizer.beta1 / sqrt(optimizer.beta2) if optimizer.beta2 > 0.0 else inf
    if ratio >= 1.0:
        return inf
    return 0 if ratio == 0.0 else ceil(log(NEGLIGIBLE * (1.0 - ratio)) / log(ratio))


class MissedSteps:
    """The steps that a store's rows took, for those that waited meanwhile.

    Attributes:
        count: steps so far; a record's field ``reached`` is the count up to which its row was updated.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Begin without steps; ``optimizer`` is one that moves all rows."""
        self._optimizer = optimizer
        self._rates = array("d")
        self.count = 0

    def add(self, rate: float, step: int) -> None:
        """Note a step that loaded rows took."""
        self.count += 1
        if self._optimizer.kind is OptimizerKind.ADAM:
            self._rates.append(corrected_rate(self._optimizer, rate, step))

    def make_up(self, records: npt.NDArray[Any]) -> None:
        """Apply to stored rows, in place, the steps that they missed."""
        behind = np.flatnonzero(records["reached"] < self.count)
        behind = behind[np.argsort(records["reached"][behind], kind="stable")]  # the longest behind first
        at_once = max(1, ELEMENTS_AT_ONCE // records["vector"].shape[1])
        for start in range(0, len(behind), at_once):
            numbers = behind[start : start + at_once]
            some = records[numbers]
            names = [name for name in ("vector", "state0", "state1") if name in (records.dtype.names or ())]
            columns = [torch.from_numpy(np.ascontiguousarray(some[name])) for name in names]
            if self._optimizer.kind is OptimizerKind.ADAM:
                self._adam(columns, some["reached"])
            else:
                self._momentum(columns, some["reached"])
            for name, column in zip(names, columns, strict=True):
                some[name] = column.numpy()
            some["reached"] = self.count
            records[numbers] = some

    def _adam(self, columns: list[torch.Tensor], reached: npt.NDArray[np.int64]) -> None:
        weights, first, second = columns
        rule, missed = self._optimizer, self.count - reached
        longest = int(min(missed[0], lasting_steps(rule)))
        rates = -np.frombuffer(self._rates).astype(np.float32)
        rows_behind = np.searchsorted(-missed, -np.arange(longest))  # how many rows missed more steps than these
        for step, rows in enumerate(rows_behind.tolist()):
            m, v = first[:rows].mul_(rule.beta1), second[:rows].mul_(rule.beta2)
            rate = torch.from_numpy(rates[reached[:rows] + step])[:, None]
            weights[:rows].addcdiv_(m * rate, v.sqrt().add_(rule.epsilon))
        left = torch.from_numpy(missed - longest).clamp_(min=0).to(torch.float64)[:, None]
        first.mul_(torch.pow(rule.beta1, left).to(torch.float32))
        second.mul_(torch.pow(rule.beta2, left).to(torch.float32))

    def _momentum(self, columns: list[torch.Tensor], reached: npt.NDArray[np.int64]) -> None:
        weights, velocity = columns
        missed = torch.from_numpy(self.count - reached).to(torch.float64)[:, None]
        decayed, series = momentum_series(self._optimizer, missed)
        weights.addcmul_(velocity, series.to(torch.float32))
        velocity.mul_(decayed.to(torch.float32))


def momentum_series(optimizer: Optimizer, missed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return to what share a velocity decays in so many steps without a gradient, and how often it moves the weights.

    MomentumSGD's weights move by factor + factor² + …, a term per missed step, Nesterov's by factor times that.
    """
    factor = optimizer.momentum
    decayed = torch.pow(factor, missed)
    series = missed if factor == 1.0 else factor * (1.0 - decayed) / (1.0 - factor)
    return decayed, series * factor if optimizer.kind is OptimizerKind.NESTEROV else series
