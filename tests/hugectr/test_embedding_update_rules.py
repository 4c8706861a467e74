"""Updates of rows beside their formulas, written out for one row at a time, and beside torch's Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from hugectr.embedding.missed_steps import MissedSteps, lasting_steps
from hugectr.embedding.records import stored_type
from hugectr.embedding.update_rules import RowStates, update_rows
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, Schedule, UpdateType

ROWS, WIDTH, STEPS, RATE = 5, 3, 9, 0.05
CPU = torch.device("cpu")


def _optimizer(kind: OptimizerKind, update: UpdateType) -> Optimizer:
    return Optimizer(kind, Schedule(RATE), update, beta1=0.8, beta2=0.95, epsilon=1e-6, momentum=0.6, initial=0.2)


def _gradients() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return steps with the rows that they look up; row 4 is looked up by the last step alone with all others."""
    random = torch.Generator().manual_seed(3)
    for step in range(1, STEPS + 1):
        rows = torch.tensor([row for row in range(4) if step % (row + 1) == 0])
        if step == STEPS:
            rows = torch.arange(ROWS)
        yield step, rows, torch.randn(len(rows), WIDTH, generator=random)


def _trained(optimizer: Optimizer, steps: int = STEPS) -> torch.Tensor:
    table = RowStates(optimizer, ROWS, WIDTH, CPU)
    table.weights.copy_(torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH))
    for step, rows, gradients in _gradients():
        if step <= steps:
            update_rows(table, rows, gradients.clone(), [slice(0, ROWS)], RATE, step)
    return table.weights


class _Element:
    """One weight under one rule, in Python's floats."""

    def __init__(self, weight: float, optimizer: Optimizer) -> None:
        self.w, self.rule = weight, optimizer
        self.m = self.v = self.u = 0.0
        self.s = optimizer.initial
        self.last = 1

    def _adam_rate(self, step: int) -> float:
        return RATE * math.sqrt(1 - self.rule.beta2**step) / (1 - self.rule.beta1**step)

    def step(self, g: float, step: int) -> None:
        rule = self.rule
        match rule.kind:
            case OptimizerKind.SGD:
                self.w -= RATE * g
            case OptimizerKind.ADAGRAD:
                self.s += g * g
                self.w -= RATE * g / (math.sqrt(self.s) + rule.epsilon)
            case OptimizerKind.MOMENTUM_SGD:
                self.u = rule.momentum * self.u - RATE * g
                self.w += self.u
            case OptimizerKind.NESTEROV:
                before = self.u
                self.u = rule.momentum * before - RATE * g
                self.w += -rule.momentum * before + (1 + rule.momentum) * self.u
            case OptimizerKind.ADAM:
                self.m = rule.beta1 * self.m + (1 - rule.beta1) * g
                self.v = rule.beta2 * self.v + (1 - rule.beta2) * g * g
                self.w -= self._adam_rate(step) * self.m / (math.sqrt(self.v) + rule.epsilon)

    def lazy_adam(self, g: float, step: int) -> None:
        rule, skipped = self.rule, step - self.last
        for missed in range(skipped):  # the old first moment goes on, at the rate of the last step
            moved = self.m * rule.beta1**missed
            self.w -= self._adam_rate(self.last) * moved / (math.sqrt(self.v) + rule.epsilon)
        self.m = rule.beta1**skipped * self.m + (1 - rule.beta1) * g
        self.v = rule.beta2**skipped * self.v + (1 - rule.beta2) * g * g
        self.last = step


def _expected(optimizer: Optimizer, steps: int = STEPS) -> torch.Tensor:
    start = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)
    elements = [[_Element(float(start[row, column]), optimizer) for column in range(WIDTH)] for row in range(ROWS)]
    for step, rows, gradients in _gradients():
        if step > steps:
            break
        looked_up = {int(row): number for number, row in enumerate(rows)}
        for row in range(ROWS):
            for column in range(WIDTH):
                element, number = elements[row][column], looked_up.get(row)
                if optimizer.update is UpdateType.LAZY_GLOBAL and optimizer.kind is OptimizerKind.ADAM:
                    if number is not None:
                        element.lazy_adam(float(gradients[number, column]), step)
                elif number is not None:
                    element.step(float(gradients[number, column]), step)
                elif optimizer.update is not UpdateType.LOCAL:
                    element.step(0.0, step)
    return torch.tensor([[element.w for element in row] for row in elements])


@pytest.mark.parametrize("update", [UpdateType.LOCAL, UpdateType.GLOBAL])
@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_rows_move_by_the_formulas(kind: OptimizerKind, update: UpdateType) -> None:
    optimizer = _optimizer(kind, update)
    for steps in (1, 4, STEPS):
        torch.testing.assert_close(_trained(optimizer, steps), _expected(optimizer, steps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_lazy_updates_have_made_up_once_a_row_is_looked_up(kind: OptimizerKind) -> None:
    """The last step looks up every row; for all but Adam the rows are then where Global has them."""
    optimizer = _optimizer(kind, UpdateType.LAZY_GLOBAL)
    torch.testing.assert_close(_trained(optimizer), _expected(optimizer), rtol=1e-5, atol=1e-6)
    if kind is not OptimizerKind.ADAM:
        globally = _trained(_optimizer(kind, UpdateType.GLOBAL))
        torch.testing.assert_close(_trained(optimizer), globally, rtol=1e-5, atol=1e-6)


def test_global_adam_is_the_adam_of_torch() -> None:
    """Epsilon is so small that it does not matter on which side of the bias correction it is added."""
    optimizer = Optimizer(OptimizerKind.ADAM, Schedule(RATE), UpdateType.GLOBAL, epsilon=1e-12)
    plain = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
    with torch.no_grad():
        plain.weight.copy_(torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH))
    adam = torch.optim.Adam(plain.parameters(), lr=RATE, eps=1e-12)
    for _, rows, gradients in _gradients():
        adam.zero_grad()
        (plain(rows[:, None]) * gradients).sum().backward()
        adam.step()
    # A row without any gradient yet is 0 / epsilon: it stays.
    torch.testing.assert_close(_trained(optimizer), plain.weight.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [OptimizerKind.ADAM, OptimizerKind.MOMENTUM_SGD, OptimizerKind.NESTEROV])
def test_the_three_updates_differ_where_rows_are_skipped(kind: OptimizerKind) -> None:
    local, everywhere, lazy = (_trained(_optimizer(kind, update), STEPS - 1)[2] for update in UpdateType)
    assert not torch.allclose(local, everywhere)
    assert not torch.allclose(local, lazy)
    assert not torch.allclose(everywhere, lazy)


@pytest.mark.parametrize("kind", [OptimizerKind.ADAM, OptimizerKind.MOMENTUM_SGD, OptimizerKind.NESTEROV])
def test_missed_steps_are_those_of_rows_in_memory(kind: OptimizerKind) -> None:
    """Each row takes a gradient in a step of its own, and waits for up to 600, more than Adam's moves last."""
    optimizer, rows, steps = _optimizer(kind, UpdateType.GLOBAL), 40, 600
    assert lasting_steps(optimizer) < steps
    table, missed = RowStates(optimizer, rows, WIDTH, CPU), MissedSteps(optimizer)
    table.weights.fill_(1.0)
    stored = np.zeros(rows, stored_type(optimizer, WIDTH))
    random = torch.Generator().manual_seed(3)
    names = ["vector", *(f"state{number}" for number in range(kind.num_states))]
    for step in range(1, steps + 1):
        touched = torch.tensor([step % rows] if step <= rows else [], dtype=torch.int64)
        rate = RATE * min(1.0, step / 100)  # as in a warm-up
        gradients = torch.randn(len(touched), WIDTH, generator=random)
        update_rows(table, touched, gradients, [slice(0, rows)], rate, step)
        missed.add(rate, step)
        for name, column in zip(names, [table.weights, *table.states], strict=True):
            stored[name][touched] = column[touched]
        stored["reached"][touched] = step
    missed.make_up(stored)
    assert set(stored["reached"]) == {steps}
    for name, column in zip(names, [table.weights, *table.states], strict=True):
        np.testing.assert_allclose(stored[name], column.numpy(), rtol=2e-5, atol=1e-12, err_msg=name)
    again = stored.copy()
    missed.make_up(again)
    assert np.array_equal(again, stored)
    assert float((table.weights - 1.0).abs().min()) > 0.0


def test_moves_without_a_gradient_last_as_long_as_they_can_be_seen() -> None:
    usual = Optimizer(OptimizerKind.ADAM, Schedule(RATE), UpdateType.GLOBAL)
    assert lasting_steps(usual) == 340
    assert lasting_steps(replace(usual, beta1=0.0)) == 0
    assert lasting_steps(replace(usual, beta1=0.9, beta2=0.5)) == math.inf
