"""Optimizers of the dense network, its files, and its gradients over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn

from hugectr.dense.files import Progress, load_network, load_optimizer, save_network, save_optimizer
from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.dense.reduction import GradientReduction
from hugectr.exceptions import DataError
from hugectr.rank_engine import Regularizer
from predictor.recommender.hugectr.dense_layers import dense_layer
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, Schedule

RATES = (0.1, 0.1, 0.05)


def optimizer_of(kind: OptimizerKind, **options: Any) -> Optimizer:
    return Optimizer(kind, Schedule(0.1), **options)


def adam(g: float, s: list[float], rate: float, step: int, o: Optimizer) -> float:
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * g
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * g * g
    corrected = rate * (1 - o.beta2**step) ** 0.5 / (1 - o.beta1**step)
    return float(-corrected * s[0] / (s[1] ** 0.5 + o.epsilon))


def momentum(g: float, s: list[float], rate: float, step: int, o: Optimizer) -> float:
    s[0] = o.momentum * s[0] - rate * g
    return s[0]


def nesterov(g: float, s: list[float], rate: float, step: int, o: Optimizer) -> float:
    before, s[0] = s[0], o.momentum * s[0] - rate * g
    return -o.momentum * before + (1 + o.momentum) * s[0]


def adagrad(g: float, s: list[float], rate: float, step: int, o: Optimizer) -> float:
    s[0] += g * g
    return float(-rate * g / (s[0] ** 0.5 + o.epsilon))


def sgd(g: float, s: list[float], rate: float, step: int, o: Optimizer) -> float:
    return -rate * g


RULES = [
    (optimizer_of(OptimizerKind.SGD), sgd),
    (optimizer_of(OptimizerKind.ADAM, beta1=0.8, beta2=0.9, epsilon=0.01), adam),
    (optimizer_of(OptimizerKind.MOMENTUM_SGD, momentum=0.7), momentum),
    (optimizer_of(OptimizerKind.NESTEROV, momentum=0.7), nesterov),
    (optimizer_of(OptimizerKind.ADAGRAD, initial=0.3, epsilon=0.01), adagrad),
]


@pytest.mark.parametrize("scale", [1.0, 128.0])
@pytest.mark.parametrize(("given", "rule"), RULES, ids=lambda case: getattr(case, "__name__", ""))
def test_updates_follow_hugectrs_rules(given: Optimizer, rule: Any, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(2, 3, generator=generator), torch.randn(1, 3, generator=generator)]
    expected = [float(value) for weight in weights for value in weight.flatten()]
    states = [[given.initial if given.kind is OptimizerKind.ADAGRAD else 0.0] * 2 for _ in expected]
    optimizer = DenseOptimizer(given, weights)
    for step, rate in enumerate(RATES, start=1):
        gradients = [torch.randn(weight.shape, generator=generator) for weight in weights]
        for number, gradient in enumerate(torch.cat([gradient.flatten() for gradient in gradients]).tolist()):
            expected[number] += rule(gradient, states[number], rate, step, given)
        optimizer.step([gradient * scale for gradient in gradients], rate, step, scale)
    np.testing.assert_allclose(torch.cat([weight.flatten() for weight in weights]).numpy(), expected, rtol=1e-4)


def test_l2_penalty_has_the_gradient_of_its_term() -> None:
    loss = dense_layer(
        {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["x", "label"], "top": "loss",
         "regularizer": "L2", "lambda": 0.5}
    )  # fmt: skip
    regularizer = Regularizer(loss, 10)  # type: ignore[arg-type]
    weights = torch.tensor([1.0, -2.0])
    assert float(regularizer.term(weights)) == pytest.approx(0.5 / 20 * 5)
    gradient = torch.zeros(2)
    regularizer.add_gradient([gradient], [weights], scale=4.0)
    assert gradient.tolist() == pytest.approx([0.2, -0.4])


def network() -> DenseNetwork:
    fc = {"name": "fc1", "type": "InnerProduct", "bottom": "dense", "top": "fc1", "fc_param": {"num_output": 4}}
    norm = {"name": "norm", "type": "BatchNorm", "bottom": "fc1", "top": "norm"}
    return DenseNetwork(Recommender("label", 1, "dense", 3, (), (dense_layer(fc), dense_layer(norm)), None))


def test_dense_model_file_is_raw_float32_in_layer_order(tmp_path: Path) -> None:
    written, read = network(), network()
    written.initialise(1)
    norm: Any = written.steps[1][1]
    norm.mean.fill_(0.25)
    norm.var.fill_(4.0)
    path = tmp_path / "_dense_5.model"
    save_network(written, path)
    kernel, bias, gamma, beta = (weight.detach().numpy() for weight in written.weights.every())
    np.testing.assert_array_equal(
        np.fromfile(path, "<f4"), np.concatenate([kernel.ravel(), bias.ravel(), gamma.ravel(), beta.ravel()])
    )
    assert (tmp_path / "_dense_5.model.ntp.json").read_text() == (
        '{"layers": [{"type": "BatchNorm", "mean": [0.25, 0.25, 0.25, 0.25], "var": [4.0, 4.0, 4.0, 4.0]}]}'
    )
    load_network(read, path)
    assert torch.equal(read.weights.flat, written.weights.flat)
    assert all(torch.equal(own, other) for own, other in zip(read.buffers(), written.buffers(), strict=True))


def test_dense_model_file_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "_dense_5.model"
    path.write_bytes(b"\0" * 12)
    with pytest.raises(DataError, match="has 12 bytes; the dense weights of this configuration take 96"):
        load_network(network(), path)
    with pytest.raises(DataError, match=r"none\.model does not exist"):
        load_network(network(), tmp_path / "none.model")


def test_running_values_that_are_missing_or_torn_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "_dense_5.model"
    save_network(network(), path)
    beside = tmp_path / "_dense_5.model.ntp.json"
    beside.write_text('{"layers": [{"type": "BatchNorm", "mean": [1.0], "var": [1.0]}]}')
    with pytest.raises(DataError, match=r"layers of \[1\] values; expected \[4\]"):
        load_network(network(), path)
    beside.write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        load_network(network(), path)
    beside.unlink()
    with pytest.raises(DataError, match=r"ntp\.json does not exist"):
        load_network(network(), path)


def test_optimizer_states_come_back_with_their_steps(tmp_path: Path) -> None:
    weights = [torch.ones(3)]
    written = DenseOptimizer(optimizer_of(OptimizerKind.ADAM), weights)
    written.step([torch.tensor([1.0, 2.0, 3.0])], 0.1, 1)
    path = tmp_path / "_opt_dense_5.model"
    save_optimizer(written, path, Progress(optimizer="Adam", steps=7))
    np.testing.assert_array_equal(np.fromfile(path, "<f4"), written.states.numpy().ravel())
    read = DenseOptimizer(optimizer_of(OptimizerKind.ADAM), weights)
    assert load_optimizer(read, path).steps == 7
    assert torch.equal(read.states, written.states)
    with pytest.raises(DataError, match="holds the states of Adam; the configuration's optimizer is Nesterov"):
        load_optimizer(DenseOptimizer(optimizer_of(OptimizerKind.NESTEROV), weights), path)
    (tmp_path / "_opt_dense_5.model.json").unlink()
    assert load_optimizer(read, path).steps == 0


def test_an_optimizer_without_states_has_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "_opt_dense_1.model"
    save_optimizer(
        DenseOptimizer(optimizer_of(OptimizerKind.SGD), [torch.ones(3)]), path, Progress(optimizer="SGD", steps=1)
    )
    assert path.stat().st_size == 0


def test_gradients_of_one_rank_are_autograds_own() -> None:
    weight, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    reduction = GradientReduction([weight, unused])
    loss = (weight * torch.tensor([1.0, 2.0, 3.0])).sum()
    loss.backward()
    gradients, extras = reduction.finish(loss, torch.tensor(1.0))
    assert [gradient.tolist() for gradient in gradients] == [[1.0, 2.0, 3.0], [0.0, 0.0]]
    assert extras.tolist() == [6.0, 1.0]
    assert weight.grad is None


@pytest.fixture
def group() -> Any:
    """A process group of one rank, over which sums are a rank's own."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    return distributed.group.WORLD


@pytest.mark.parametrize("bucket_elements", [1, 4, 100])
def test_buckets_hold_every_gradient_at_its_place(group: Any, bucket_elements: int) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in ((2, 3), (1, 3), (3, 2), (1, 2))]
    unused = nn.Parameter(torch.ones(1, 2))
    every = [weights[0], unused, *weights[1:]]
    reduction = GradientReduction(every, group=group, num_ranks=2, bucket_elements=bucket_elements)
    for factor in (1.0, 3.0):  # twice, since buckets are used again
        hidden = torch.addmm(weights[1], torch.ones(4, 2), weights[0])
        loss = factor * torch.addmm(weights[3], hidden, weights[2]).square().sum()
        expected = torch.autograd.grad(loss, weights, retain_graph=True)
        loss.backward()
        gradients, extras = reduction.finish(loss, None)
        assert not gradients[1].any()
        for gradient, own in zip([gradients[0], *gradients[2:]], expected, strict=True):
            torch.testing.assert_close(gradient, own)
        assert extras.tolist() == [float(loss.detach()), 0.0]
