"""Kernels of recommenders compute what their operators say, compared with plain formulas."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from microbench.call import Call, Maker
from microbench.kernels import build_function
from microbench.kernels.embedding_update import BETA1, BETA2, EPSILON, RATE, adagrad, adam, merged, sgd
from microbench.kernels.kjt_permute import by_parts
from microbench.lookups import SPREAD, check_rows, even_offsets, keys
from predictor.core.costs.operator import Shape

CPU = Maker("cpu", "fp32")


def built(name: str, shape: Shape) -> Call:
    torch.manual_seed(0)
    return build_function(name)(shape, CPU)


@pytest.mark.parametrize(("lookups", "rows"), [(1, 1), (100, 1), (100, 37), (100, 100)])
def test_keys_touch_as_many_rows_as_were_asked_for(lookups: int, rows: int) -> None:
    drawn = keys(lookups, rows, CPU)
    assert drawn.shape == (lookups,)
    assert len(drawn.unique()) == rows
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < SPREAD * rows


@pytest.mark.parametrize(("lookups", "rows"), [(3, 4), (3, 0)])
def test_more_rows_than_lookups_are_refused(lookups: int, rows: int) -> None:
    with pytest.raises(ValueError, match=f"rows is {rows}; 3 lookups touch 1 to 3 different rows"):
        check_rows(lookups, rows)


def test_bags_are_as_equal_as_they_can_be() -> None:
    counts = even_offsets(3, 10, CPU).diff().tolist()
    assert sum(counts) == 10
    assert max(counts) - min(counts) == 1


@pytest.mark.parametrize("shape", [(26, 26, 20, 8), (8, 32, 5, 4), (6, 20, 7, 4)])
def test_pooled_lookups_have_a_vector_per_bag(shape: Shape) -> None:
    call = built("embedding_bag", shape)
    pooled = call.forward()
    assert pooled.shape == (shape[0], shape[3])
    assert torch.equal(pooled, call.forward())
    assert bool(pooled.ne(0).any(dim=1).all())


def test_gradients_of_a_row_are_added_up() -> None:
    rows, gradients = torch.tensor([7, 2, 7, 9], dtype=torch.int32), torch.eye(4)
    touched, sums = merged(rows, gradients, different=3)
    assert touched.tolist() == [2, 7, 9]
    assert sums.tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("states", [0, 1, 2])
def test_updates_move_their_rows_alone_as_the_formulas_say(states: int) -> None:
    start, rows, gradients = torch.randn(5, 3), torch.tensor([1, 4]), torch.randn(2, 3)
    kept = [torch.rand(5, 3) for _ in range(states)]
    expected = start.clone()
    if states == 0:
        moved = gradients
    elif states == 1:
        moved = gradients / ((kept[0][rows] + gradients**2).sqrt() + EPSILON)
    else:
        first = BETA1 * kept[0][rows] + (1 - BETA1) * gradients
        moved = first / ((BETA2 * kept[1][rows] + (1 - BETA2) * gradients**2).sqrt() + EPSILON)
    expected[rows] -= RATE * moved
    update: Any = (sgd, adagrad, adam)[states]
    table = start.clone()
    update(table, *kept)(rows, gradients.clone())
    torch.testing.assert_close(table, expected)
    assert torch.equal(table[[0, 2, 3]], start[[0, 2, 3]])


def test_an_optimizer_of_three_states_is_refused() -> None:
    with pytest.raises(ValueError, match="states is 3; SGD keeps 0, AdaGrad 1 and Adam 2"):
        built("embedding_update", (10, 5, 4, 3))


def test_keys_travel_with_their_features() -> None:
    values, lengths = torch.arange(10), torch.tensor([[2, 1], [0, 3], [1, 3]], dtype=torch.int32)
    moved_lengths, moved = by_parts(values, lengths, torch.tensor([2, 0, 1], dtype=torch.int32))()
    assert moved_lengths.tolist() == [[1, 3], [2, 1], [0, 3]]
    assert moved.tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]


def test_fbgemm_orders_keys_as_parts_do() -> None:
    pytest.importorskip("fbgemm_gpu")
    call = built("kjt_permute", (3, 11))
    assert call.kernel.startswith("fbgemm")
    lengths, values = call.forward()
    assert sorted(lengths.sum(dim=1).tolist()) == [3, 4, 4]
    assert values.shape == (11,)


def test_the_interactions_backward_pass_is_its_gradient() -> None:
    """The gradient of a linear function of the output, by autograd over the same formula."""
    call = built("dot_interaction", (4, 5, 3))
    output = call.forward()
    assert output.shape == (4, 3 + 10)
    torch.manual_seed(0)
    dense, others = CPU.constant(4, 3).requires_grad_(), CPU.constant(4, 4, 3).requires_grad_()
    vectors = torch.cat((dense.unsqueeze(1), others), dim=1)
    rows, columns = torch.tril_indices(5, 5, offset=-1)
    plain = torch.cat((dense, (vectors[:, rows] * vectors[:, columns]).sum(-1)), dim=1)
    torch.testing.assert_close(output, plain)
    gradient = CPU.constant(4, 3 + 10)
    assert call.backward is not None
    torch.testing.assert_close(call.backward(), torch.autograd.grad(plain, (dense, others), gradient))


def test_the_cross_layer_is_its_equation() -> None:
    call = built("cross_layer", (6, 4))
    first, x, weight, bias = call.inputs
    torch.testing.assert_close(call.forward(), first * (x * weight).sum(1, keepdim=True) + bias + x)


def test_second_order_is_the_sum_over_pairs() -> None:
    call = built("fm_order2", (6, 5, 3))
    (vectors,) = call.inputs
    pairs = [vectors[:, i] * vectors[:, j] for i in range(5) for j in range(i)]
    torch.testing.assert_close(call.forward(), sum(pairs))


def test_a_batch_is_normalised() -> None:
    call = built("batch_norm", (64, 3))
    x, gamma, beta = call.inputs
    expected = torch.nn.functional.batch_norm(x, None, None, gamma[0], beta[0], training=True)
    torch.testing.assert_close(call.forward(), expected)
