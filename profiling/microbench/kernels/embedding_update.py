"""Merge of the lookups' gradients by row, and the update of these rows, as the trainer runs them.

No states are SGD, one AdaGrad, two Adam, each on the rows that were looked up alone.
"""

from __future__ import annotations

from collections.abc import Callable

from microbench.call import Call, Maker, Tensor
from microbench.lookups import SPREAD, keys
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-7

Update = Callable[[Tensor, Tensor], Tensor]


def merged(rows: Tensor, gradients: Tensor, different: int) -> tuple[Tensor, Tensor]:
    """Return the different rows in rising order, and the sum of the gradients of each one's lookups.

    The trainer has to ask the GPU how many differ. Here that is known, so that no timed pass waits for the host.
    """
    import torch
    from torch.nn.functional import embedding_bag

    ordered, source = torch.sort(rows, stable=True)
    is_first = torch.ones(len(ordered), dtype=torch.bool, device=rows.device)
    torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
    starts = torch.nonzero_static(is_first, size=different).squeeze(1)
    touched = ordered.index_select(0, starts).to(torch.int64)
    return touched, embedding_bag(source.to(torch.int32), gradients, starts.to(torch.int32), mode="sum")


def _move(table: Tensor, rows: Tensor, moved: Tensor) -> Tensor:
    """Subtract from rows, each named once."""
    return table.index_copy_(0, rows, table.index_select(0, rows).add_(moved, alpha=-RATE))


def sgd(table: Tensor) -> Update:
    """Return w -= rate · g on some rows of a table."""
    return lambda rows, gradients: _move(table, rows, gradients)


def adagrad(table: Tensor, sums: Tensor) -> Update:
    """Return s += g², w -= rate · g / (√s + epsilon) on some rows of a table and its sums of squares."""

    def update(rows: Tensor, gradients: Tensor) -> Tensor:
        squares = sums.index_select(0, rows).addcmul_(gradients, gradients)
        sums.index_copy_(0, rows, squares)
        return _move(table, rows, gradients.div_(squares.sqrt_().add_(EPSILON)))

    return update


def adam(table: Tensor, first: Tensor, second: Tensor) -> Update:
    """Return Adam's step on some rows of a table and its moments. Kingma and Ba 2014, arXiv:1412.6980."""

    def update(rows: Tensor, gradients: Tensor) -> Tensor:
        m = first.index_select(0, rows).mul_(BETA1).add_(gradients, alpha=1.0 - BETA1)
        v = second.index_select(0, rows).mul_(BETA2)
        v.addcmul_(gradients, gradients, value=1.0 - BETA2)
        first.index_copy_(0, rows, m)
        second.index_copy_(0, rows, v)
        return _move(table, rows, m.div_(v.sqrt_().add_(EPSILON)))

    return update


BY_STATES: tuple[Callable[..., Update], ...] = (sgd, adagrad, adam)


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.lookups, call.rows, call.width, call.states


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (lookups, rows, width, states); a bag per lookup, all numbers fp32.

    Raises:
        ValueError: so many lookups cannot touch so many rows, or no optimizer keeps so many states.
    """
    import torch

    lookups, rows, width, states = shape
    if not 0 <= states < len(BY_STATES):
        raise ValueError(f"states is {states}; SGD keeps 0, AdaGrad 1 and Adam 2")
    table = make.constant(SPREAD * rows, width, dtype=torch.float32)
    update = BY_STATES[states](table, *(torch.zeros_like(table) for _ in range(states)))
    looked_up = keys(lookups, rows, make).to(torch.int32)
    gradients = make.constant(lookups, width, dtype=torch.float32)
    kernel = "torch sort and embedding_bag of gradients, index_select and index_copy_ of rows"
    return Call(lambda: update(*merged(looked_up, gradients, rows)), (), kernel)
