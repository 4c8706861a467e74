"""Every dense layer type against a formula in numpy, its gradients against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hugectr.dense.losses import loss_of
from hugectr.dense.module import Position
from hugectr.dense.network import MODULES, DenseNetwork
from hugectr.dense.parameter_free import Dropout
from hugectr.dense.weighted import BatchNorm
from predictor.recommender.hugectr.dense_layers import dense_layer
from predictor.recommender.workload.embedding import Combiner, EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.layers import LAYER_TYPES, LossLayer, TensorShape
from predictor.recommender.workload.model import Recommender

AT = Position(seed=3, step=1, first_sample=0)
BATCH = 5
Array = np.ndarray[Any, np.dtype[Any]]


def module_of(content: dict[str, Any], shapes: list[TensorShape]) -> Any:
    layer = dense_layer({"name": "layer", "bottom": [f"in{n}" for n in range(len(shapes))], "top": "out", **content})
    weights = [torch.nn.Parameter(torch.empty(shape, dtype=torch.float64)) for shape in layer.weights(shapes)]
    module = MODULES[layer.TYPE](layer, shapes, weights)
    generator = torch.Generator().manual_seed(5)
    for weight in weights:
        torch.nn.init.normal_(weight, generator=generator)
    return module.double()


def inputs_of(shapes: list[TensorShape]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    sizes = [(BATCH, s.rows, s.columns) if s.is_3d else (BATCH * s.rows, s.columns) for s in shapes]
    return [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]


def cross(x: Array, weights: list[Array]) -> Array:
    current = x
    for weight, bias in zip(weights[0::2], weights[1::2], strict=True):
        current = x * np.einsum("bi,i->b", current, weight[0])[:, None] + bias[0] + current
    return current


def cross_v2(x: Array, weights: list[Array]) -> Array:
    current = x
    for down, up, bias in zip(weights[0::3], weights[1::3], weights[2::3], strict=True):
        current = x * (np.einsum("bi,ij,jk->bk", current, down, up) + bias[0]) + current
    return current


def interaction(dense: Array, embedding: Array) -> Array:
    rows = []
    for vector, others in zip(dense, embedding, strict=True):
        vectors = [vector, *others]
        pairs = [float(vectors[i] @ vectors[j]) for i in range(len(vectors)) for j in range(i)]
        rows.append([*vector, *pairs, 0.0])
    return np.array(rows)


def fm(x: Array, width: int) -> Array:
    slots = x.reshape(len(x), -1, width)
    pairs = [(i, j) for i in range(slots.shape[1]) for j in range(i)]
    total: Array = np.stack([slots[:, i] * slots[:, j] for i, j in pairs]).sum(axis=0)
    return total


M23, M6, E34 = TensorShape(2, 3), TensorShape(1, 6), TensorShape(3, 4, is_3d=True)
CASES: list[tuple[dict[str, Any], list[TensorShape], Any]] = [
    ({"type": "Add"}, [M6, M6, M6], lambda i, w: i[0] + i[1] + i[2]),
    ({"type": "DotProduct"}, [M6, M6, M6], lambda i, w: i[0] * i[1] * i[2]),
    ({"type": "Cast"}, [M6], lambda i, w: i[0]),
    ({"type": "Concat"}, [M23, TensorShape(2, 5)], lambda i, w: np.concatenate(i, axis=1)),
    ({"type": "ELU", "elu_param": {"alpha": 0.7}}, [M6], lambda i, w: np.where(i[0] > 0, i[0], 0.7 * np.expm1(i[0]))),
    ({"type": "ReLU"}, [M6], lambda i, w: np.maximum(i[0], 0)),
    ({"type": "Sigmoid"}, [M6], lambda i, w: 1 / (1 + np.exp(-i[0]))),
    ({"type": "FmOrder2", "out_dim": 2}, [M6], lambda i, w: fm(i[0], 2)),
    ({"type": "InnerProduct", "fc_param": {"num_output": 4}}, [M23], lambda i, w: i[0] @ w[0] + w[1]),
    ({"type": "FusedInnerProduct", "fc_param": {"num_output": 4}}, [M6],
     lambda i, w: np.maximum(i[0] @ w[0] + w[1], 0)),
    ({"type": "Interaction"}, [TensorShape(1, 4), E34], lambda i, w: interaction(i[0], i[1])),
    ({"type": "MultiCross", "mc_param": {"num_layers": 3}}, [M6], lambda i, w: cross(i[0], w)),
    ({"type": "MultiCross", "mc_param": {"num_layers": 2, "projection_dim": 3}}, [M6], lambda i, w: cross_v2(i[0], w)),
    ({"type": "ReduceSum", "axis": 1}, [M6], lambda i, w: i[0].sum(axis=1, keepdims=True)),
    ({"type": "ReduceSum", "axis": 2}, [E34], lambda i, w: i[0].sum(axis=2, keepdims=True)),
    ({"type": "Reshape", "leading_dim": 6}, [E34], lambda i, w: i[0].reshape(BATCH * 2, 6)),
    ({"type": "Reshape", "selected": [2, 0]}, [E34], lambda i, w: np.concatenate((i[0][:, 2], i[0][:, 0]), axis=1)),
    ({"type": "WeightMultiply", "weight_dims": [6, 3]}, [M6],
     lambda i, w: np.einsum("bs,sv->bsv", i[0], w[0]).reshape(BATCH, 18)),
]  # fmt: skip


def case_id(case: object) -> str:
    """Return part of a test's name, the same in every process: a function prints with its address."""
    return "formula" if callable(case) else str(case)[:40]


@pytest.mark.parametrize(("content", "shapes", "formula"), CASES, ids=case_id)
def test_layer_equals_its_formula(content: dict[str, Any], shapes: list[TensorShape], formula: Any) -> None:
    module, inputs = module_of(content, shapes), inputs_of(shapes)
    (output,) = module(inputs, AT)
    weights = [weight.detach().numpy() for weight in module.weights]
    expected = formula([tensor.detach().numpy() for tensor in inputs], weights)
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("content", "shapes", "formula"), CASES, ids=case_id)
def test_layer_has_the_gradients_of_finite_differences(content: dict[str, Any], shapes: Any, formula: Any) -> None:
    module, inputs = module_of(content, shapes), inputs_of(shapes)
    every = (*inputs, *module.weights)
    assert torch.autograd.gradcheck(lambda *tensors: module(tensors[: len(inputs)], AT), every)


def test_every_layer_type_has_a_module() -> None:
    tested = {case[0]["type"] for case in CASES} | {"BatchNorm", "Dropout", "Slice"}
    losses = {name for name, kind in LAYER_TYPES.items() if issubclass(kind, LossLayer)}
    assert set(MODULES) == set(LAYER_TYPES) - losses
    assert tested == set(MODULES)
    assert len(LAYER_TYPES) == 21


def test_slice_gives_every_range() -> None:
    layer = dense_layer({"name": "s", "type": "Slice", "bottom": "x", "top": ["a", "b"], "ranges": [[0, 4], [2, 6]]})
    module = MODULES["Slice"](layer, [M6], [])
    (tensor,) = inputs_of([M6])
    first, second = module([tensor], AT)
    assert torch.equal(first, tensor[:, :4])
    assert torch.equal(second, tensor[:, 2:])


def test_batch_norm_in_training_and_after() -> None:
    shapes = [M6]
    module: BatchNorm = module_of({"type": "BatchNorm", "bn_param": {"factor": 0.25, "eps": 0.01}}, shapes).float()
    values = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)) * 3 + 1
    (output,) = module([values], AT)
    x, gamma, beta = values.numpy(), *(weight.detach().numpy() for weight in module.weights)
    expected = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 0.01) * gamma + beta
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(module.mean.numpy(), 0.25 * x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(module.var.numpy(), 0.75 + 0.25 * x.var(axis=0, ddof=1), rtol=1e-5)
    module.eval()
    (output,) = module([values], AT)
    expected = (x - module.mean.numpy()) / np.sqrt(module.var.numpy() + 0.01) * gamma + beta
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def dropout(rate: float) -> Dropout:
    module: Dropout = module_of({"type": "Dropout", "rate": rate}, [TensorShape(1, 50)])
    return module


def test_dropout_keeps_the_mean_and_is_off_in_evaluation() -> None:
    module, values = dropout(0.3), torch.ones(1000, 50)
    (output,) = module([values], AT)
    kept = output != 0
    assert abs(float(kept.float().mean()) - 0.7) < 0.01
    torch.testing.assert_close(output[kept], torch.full_like(output[kept], 1 / 0.7))
    assert torch.equal(module.eval()([values], AT)[0], values)


def test_dropout_of_a_share_is_that_of_the_whole_batch() -> None:
    module, values = dropout(0.5), torch.ones(150, 50)
    (whole,) = module([values], AT)
    for first, end in ((0, 75), (75, 150), (64, 65)):
        (share,) = module([values[first:end]], AT._replace(first_sample=first))
        assert torch.equal(share, whole[first:end])


def test_dropout_differs_by_step_layer_and_seed() -> None:
    values = torch.ones(8, 50)
    module, other = dropout(0.5), dropout(0.5)
    other.stream = 1
    masks = [
        module([values], AT)[0],
        module([values], AT._replace(step=2))[0],
        module([values], AT._replace(seed=4))[0],
    ]
    masks.append(other([values], AT)[0])
    for number, mask in enumerate(masks):
        for another in masks[:number]:
            assert not torch.equal(mask, another)


def loss_layer(kind: str, **options: Any) -> Any:
    return dense_layer({"name": "loss", "type": kind, "bottom": ["x", "label"], "top": "loss", **options})


def test_binary_cross_entropy() -> None:
    logits, label = torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([[1.0], [0.0], [0.0]])
    total, predictions = loss_of(loss_layer("BinaryCrossEntropyLoss"), logits, label)
    p = 1 / (1 + np.exp(-logits.numpy()))
    expected = -(label.numpy() * np.log(p) + (1 - label.numpy()) * np.log(1 - p)).sum()
    assert float(total) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(predictions.numpy(), p, rtol=1e-6)


def test_cross_entropy_of_two_classes() -> None:
    logits, label = torch.tensor([[2.0, 1.0], [-1.0, 0.5]]), torch.tensor([[1.0], [0.0]])
    total, predictions = loss_of(loss_layer("CrossEntropyLoss"), logits, label)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=1, keepdims=True)
    assert float(total) == pytest.approx(-np.log(p[0, 1]) - np.log(p[1, 0]), rel=1e-6)
    np.testing.assert_allclose(predictions.numpy()[:, 0], p[:, 1], rtol=1e-6)


def test_multi_cross_entropy_leaves_out_what_has_no_label() -> None:
    logits, label = torch.tensor([[2.0, 1.0], [-1.0, 0.5]]), torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    total, _ = loss_of(loss_layer("MultiCrossEntropyLoss", target_weight=[0.5, 2.0]), logits, label)
    softplus = np.logaddexp(0, [-2.0, -1.0, -0.5])
    assert float(total) == pytest.approx(
        (0.5 * (softplus[0] + np.logaddexp(0, -1.0)) + 2.0 * softplus[2]) / 2, rel=1e-6
    )


def recommender(layers: list[dict[str, Any]]) -> Recommender:
    embedding = EmbeddingLayer(
        "embedding1", "data1", "emb", EmbeddingKind.DISTRIBUTED, 3, 4, Combiner.SUM, 10, (), (1.0,) * 3
    )
    return Recommender("label", 1, "dense", 4, (embedding,), tuple(map(dense_layer, layers)), None)


def small_network(**options: Any) -> DenseNetwork:
    fc = {"name": "fc1", "type": "InnerProduct", "bottom": "dense", "top": "fc1", "fc_param": {"num_output": 4}}
    pairs = {"name": "pairs", "type": "Interaction", "bottom": ["fc1", "emb"], "top": "pairs"}
    last = {"name": "fc2", "type": "InnerProduct", "bottom": "pairs", "top": "fc2", "fc_param": {"num_output": 1}}
    loss = {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc2", "label"], "top": "loss"}
    network = DenseNetwork(recommender([fc, pairs, last, loss]), **options)
    network.initialise(seed=1)
    return network


def test_embeddings_are_awaited_by_the_first_layer_that_reads_them() -> None:
    network, seen = small_network(), []
    network.steps[0][1].register_forward_hook(lambda *_: seen.append("bottom network"))  # type: ignore[union-attr]

    def wait() -> dict[str, torch.Tensor]:
        seen.append("embeddings")
        return {"emb": torch.ones(2, 3, 4)}

    network(torch.ones(2, 1), torch.ones(2, 4), wait, AT)
    assert seen == ["bottom network", "embeddings"]


def test_initial_weights_are_those_of_the_seed_and_lie_in_one_buffer() -> None:
    first, second = small_network(), small_network()
    assert torch.equal(first.weights.flat, second.weights.flat)
    second.initialise(seed=2)
    assert not torch.equal(first.weights.flat, second.weights.flat)
    assert torch.equal(torch.cat([weight.reshape(-1) for weight in first.weights.every()]), first.weights.flat)
    first.weights.flat.zero_()
    assert all(not weight.detach().any() for weight in first.parameters())


def test_initial_weights_have_glorots_variance() -> None:
    layer = {"name": "fc", "type": "InnerProduct", "bottom": "dense", "top": "fc", "fc_param": {"num_output": 600}}
    network = DenseNetwork(Recommender("label", 1, "dense", 400, (), (dense_layer(layer),), None))
    network.initialise(seed=1)
    kernel, bias = network.weights.every()
    assert float(kernel.detach().var()) == pytest.approx(2 / 1000, rel=0.02)
    assert float(kernel.detach().abs().max()) <= 2 * (2 / 1000) ** 0.5 / 0.8796
    assert float(bias.detach().abs().max()) <= 2 * (1 / 600) ** 0.5


def test_mixed_precision_computes_in_half_and_keeps_float32_weights() -> None:
    network = small_network(half=torch.bfloat16)
    embedding = torch.ones(2, 3, 4, dtype=torch.bfloat16)
    output = network(torch.ones(2, 1), torch.ones(2, 4), lambda: {"emb": embedding}, AT)
    assert output.tensors["fc2"].dtype is torch.bfloat16
    assert output.loss is not None
    assert output.loss.total.dtype is torch.float32
    output.loss.total.backward()
    assert all(weight.grad is not None and weight.grad.dtype is torch.float32 for weight in network.parameters())
