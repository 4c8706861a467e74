"""Updates of embedding rows: five optimizers, each Local, Global or LazyGlobal.

Every rule moves the rows that a batch looked up, given their gradients. Global rules also move all other rows, whose
momentum goes on without a gradient. LazyGlobal rules make up, when a row is looked up again, for the steps that it
missed. SGD and AdaGrad move nothing without a gradient, so their three updates are one.

Source: HugeCTR, ``update_params_functor.cu``. Its LazyGlobal exists for Adam alone: the weights are moved by the
geometric series of the old first moment, at the rate and second moment of the row's last step, so a gradient moves its
row only when the row is looked up next. For MomentumSGD and Nesterov LazyGlobal is the missed steps' closed form here,
which equals Global for a row from its next look-up on. AdaGrad: Duchi et al. 2011.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hugectr.embedding.missed_steps import MissedSteps, corrected_rate, momentum_series
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, UpdateType

ELEMENTS_AT_ONCE = 1 << 16  # 256 KiB of each operand


class RowStates:
    """Weights of rows with what their optimizer keeps.

    Attributes:
        weights: (rows, width) float32.
        states: per optimizer's state, shaped as ``weights``.
        initial_state: of every state before the first step.
        last_step: (rows,) int64, the step of each row's last update; None where no rule asks for it.
        missed_steps: what rows that wait in files miss; None where all rows are here or miss nothing.
    """

    def __init__(self, optimizer: Optimizer | None, rows: int, width: int, device: torch.device) -> None:
        """Make room for rows; their weights are not set."""
        self.optimizer = optimizer
        self.weights = torch.empty(rows, width, device=device)
        num_states = 0 if optimizer is None else optimizer.kind.num_states
        self.states = [torch.zeros(rows, width, device=device) for _ in range(num_states)]
        is_adagrad = optimizer is not None and optimizer.kind is OptimizerKind.ADAGRAD
        self.initial_state = optimizer.initial if optimizer is not None and is_adagrad else 0.0
        if self.initial_state:
            self.states[0].fill_(self.initial_state)
        self.last_step = torch.zeros(rows, dtype=torch.int64, device=device) if keeps_last_step(optimizer) else None
        self.missed_steps: MissedSteps | None = None


def keeps_last_step(optimizer: Optimizer | None) -> bool:
    """Return whether an optimizer asks for the step of each row's last update."""
    has_momentum = optimizer is not None and optimizer.kind not in (OptimizerKind.SGD, OptimizerKind.ADAGRAD)
    return optimizer is not None and optimizer.update is UpdateType.LAZY_GLOBAL and has_momentum


def update_rows(
    table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, used: list[slice], rate: float, step: int
) -> None:
    """Apply one step.

    Args:
        table: that is updated.
        rows: (n,) int64, that the batch looked up, each once, rising.
        gradients: (n, width) float32 of these rows.
        used: all rows that hold a key, for Global updates.
        rate: learning rate.
        step: counted from 1.
    """
    optimizer = table.optimizer
    assert optimizer is not None
    moves_all = optimizer.update is UpdateType.GLOBAL
    if moves_all and optimizer.kind is OptimizerKind.ADAM:
        _global_adam(table, rows, gradients, used, rate, step)
        return
    if moves_all and optimizer.kind in (OptimizerKind.MOMENTUM_SGD, OptimizerKind.NESTEROV):
        _global_momentum(table, rows, gradients, used, rate)
        return
    at_once = _rows_at_once(table)
    for some_rows, some in zip(rows.split(at_once), gradients.split(at_once), strict=True):
        match optimizer.kind:
            case OptimizerKind.SGD:
                _add(table.weights, some_rows, some, -rate)
            case OptimizerKind.ADAGRAD:
                _adagrad(table, some_rows, some, rate)
            case OptimizerKind.ADAM if optimizer.update is UpdateType.LAZY_GLOBAL:
                _lazy_adam(table, some_rows, some, rate, step)
            case OptimizerKind.ADAM:
                _adam(table, some_rows, some, corrected_rate(optimizer, rate, step))
            case OptimizerKind.MOMENTUM_SGD | OptimizerKind.NESTEROV:
                _momentum(table, some_rows, some, rate, step)


def _rows_at_once(table: RowStates) -> int:
    """Return how many rows a rule takes at once: what it computes from them stays in a core's cache."""
    return max(1, ELEMENTS_AT_ONCE // table.weights.shape[1]) if table.weights.device.type == "cpu" else 1 << 31


def _blocks(
    table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, used: list[slice]
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Return blocks of all used rows, each with those of ``rows``, which rise, and ``gradients`` that lie in it."""
    at_once = _rows_at_once(table)
    blocks = [
        slice(start, min(start + at_once, part.stop))
        for part in used
        for start in range(part.start, part.stop, at_once)
    ]
    ends = torch.tensor([[block.start, block.stop] for block in blocks], dtype=torch.int64, device=rows.device).view(
        -1, 2
    )
    for block, (first, last) in zip(blocks, torch.searchsorted(rows, ends).tolist(), strict=True):
        yield block, rows[first:last], gradients[first:last]


def _add(values: torch.Tensor, rows: torch.Tensor, moved: torch.Tensor, share: float) -> None:
    """Add a share of ``moved`` to rows, each of which is named once: gather and put take half of index_add's time."""
    values.index_copy_(0, rows, values.index_select(0, rows).add_(moved, alpha=share))


def _adagrad(table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, rate: float) -> None:
    """Add g² to the sum s; w -= rate · g / (√s + epsilon)."""
    assert table.optimizer is not None
    squares = table.states[0].index_select(0, rows).addcmul_(gradients, gradients)
    table.states[0].index_copy_(0, rows, squares)
    moved = gradients.div_(squares.sqrt_().add_(table.optimizer.epsilon))
    _add(table.weights, rows, moved, -rate)


def _adam(table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, rate: float) -> None:
    optimizer = table.optimizer
    assert optimizer is not None
    first, second = table.states
    m = first.index_select(0, rows).mul_(optimizer.beta1).add_(gradients, alpha=1.0 - optimizer.beta1)
    v = second.index_select(0, rows).mul_(optimizer.beta2)
    v.addcmul_(gradients, gradients, value=1.0 - optimizer.beta2)
    first.index_copy_(0, rows, m)
    second.index_copy_(0, rows, v)
    _add(table.weights, rows, m.div_(v.sqrt_().add_(optimizer.epsilon)), -rate)


def _global_adam(
    table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, used: list[slice], rate: float, step: int
) -> None:
    optimizer = table.optimizer
    assert optimizer is not None
    first, second = table.states
    for block, some_rows, some in _blocks(table, rows, gradients, used):
        m, v = first[block].mul_(optimizer.beta1), second[block].mul_(optimizer.beta2)
        _add(first, some_rows, some, 1.0 - optimizer.beta1)
        _add(second, some_rows, some.square(), 1.0 - optimizer.beta2)
        denominator = v.sqrt().add_(optimizer.epsilon)
        table.weights[block].addcdiv_(m, denominator, value=-corrected_rate(optimizer, rate, step))


def _lazy_adam(table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, rate: float, step: int) -> None:
    optimizer = table.optimizer
    assert optimizer is not None
    assert table.last_step is not None
    first, second = table.states
    # A row without a last step has moments of zero, and moves nowhere.
    last = table.last_step.index_select(0, rows).clamp_(min=1).to(torch.float64)
    skipped = step - last
    decayed = torch.pow(optimizer.beta1, skipped)
    rates = rate / (1.0 - optimizer.beta1) * (1.0 - optimizer.beta2**last).sqrt() / (1.0 - optimizer.beta1**last)
    rates = (rates * (1.0 - decayed)).to(torch.float32)[:, None]
    m, v = first.index_select(0, rows), second.index_select(0, rows)
    _add(table.weights, rows, m / v.sqrt().add_(optimizer.epsilon) * rates, -1.0)
    m = m.mul_(decayed.to(torch.float32)[:, None]).add_(gradients, alpha=1.0 - optimizer.beta1)
    v = v.mul_(torch.pow(optimizer.beta2, skipped).to(torch.float32)[:, None])
    v.addcmul_(gradients, gradients, value=1.0 - optimizer.beta2)
    first.index_copy_(0, rows, m)
    second.index_copy_(0, rows, v)
    table.last_step[rows] = step


def _momentum(table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, rate: float, step: int) -> None:
    """Let the velocity u = factor · u - rate · g move the weights, Nesterov's one step ahead of it.

    MomentumSGD: w += u. Nesterov: w += (1 + factor) · u - factor · (u before).
    """
    optimizer = table.optimizer
    assert optimizer is not None
    factor, (velocity,) = optimizer.momentum, table.states
    ahead = factor if optimizer.kind is OptimizerKind.NESTEROV else 0.0
    before = velocity.index_select(0, rows)
    if table.last_step is not None:
        last = table.last_step.index_select(0, rows)
        missed = torch.where(last > 0, step - 1 - last, 0).to(torch.float64)[:, None]
        decayed, series = momentum_series(optimizer, missed)
        _add(table.weights, rows, before * series.to(torch.float32), 1.0)
        before = before * decayed.to(torch.float32)
        table.last_step[rows] = step
    after = (before * factor).add_(gradients, alpha=-rate)
    velocity.index_copy_(0, rows, after)
    _add(table.weights, rows, after * (1.0 + ahead) - before * ahead, 1.0)


def _global_momentum(
    table: RowStates, rows: torch.Tensor, gradients: torch.Tensor, used: list[slice], rate: float
) -> None:
    """Let all velocities decay and move, then add the gradients' own part."""
    optimizer = table.optimizer
    assert optimizer is not None
    factor, (velocity,) = optimizer.momentum, table.states
    ahead = factor if optimizer.kind is OptimizerKind.NESTEROV else 0.0
    for block, some_rows, some in _blocks(table, rows, gradients, used):
        decayed = velocity[block].mul_(factor)
        table.weights[block].add_(decayed, alpha=factor if ahead else 1.0)
        _add(velocity, some_rows, some, -rate)
        _add(table.weights, some_rows, some, -rate * (1.0 + ahead))
