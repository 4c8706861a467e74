"""Memory of plans and the indicator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from predictor.replay.files.record_model import RecordError
from predictor.replay.precision.indicator import (
    OperatorStatistics,
    Statistics,
    TensorStatistics,
    indicator,
    indicator_without_statistics,
    read_statistics,
    rounding_variance,
    sensitivity,
    write_statistics,
)
from predictor.replay.precision.memory import MemoryModel
from predictor.replay.precision.operator_graph import Precision
from tests.unit.precision_graphs import BF16, FP16, FP32, INT8, chain, node


def test_memory_of_a_plan_by_part() -> None:
    graph = chain(node("a", weights=50), node("b", name="aten::relu", choices=()))
    model = MemoryModel(optimizer_states=2, other_weights=10)
    fp32 = model.of_plan(graph, {})
    assert fp32 == (60 * 4, 0, 60 * 4, 60 * 8, 100 * 4 + 100 * 4)
    fp16 = model.of_plan(graph, {"a": FP16})
    assert fp16 == (60 * 4, 50 * 2, 60 * 4, 60 * 8, 100 * 2 + 100 * 2)
    assert fp16.peak == sum(fp16)
    changing = sum(map(model.bytes_of, graph.nodes, (FP16, FP16)))
    assert fp16.peak == model.fixed_bytes(graph) + changing


def test_int8_keeps_int8_inputs_only_where_there_is_a_kernel() -> None:
    model = MemoryModel()
    assert model.saved_bytes(node("a"), INT8) == 100
    assert model.saved_bytes(node("a", name="aten::matmul"), INT8) == 200  # QSync's implement_limit_ops
    assert model.saved_bytes(node("a", name="aten::softmax"), INT8) == 400  # its output is fp32
    assert model.saved_bytes(node("a", name="aten::dropout"), FP32) == 100  # a mask of bytes
    assert model.copy_bytes(node("a", weights=50), Precision.TF32) == 0


def statistics(numel: int, value: float) -> TensorStatistics:
    return TensorStatistics(numel=numel, norm=value * numel**0.5, largest=value)


def test_the_indicator_is_the_published_sum() -> None:
    operator = OperatorStatistics(
        label="a",
        input=statistics(100, 127.0),
        weight=statistics(50, 1.27),
        weight_gradient=TensorStatistics(numel=50, norm=3.0, largest=1.0),
        output_gradient=statistics(80, 1.0),
    )
    forward = (1.27**2 * 50) * (1.0**2 * 100 / 6) + (127.0**2 * 100) * (0.01**2 * 50 / 6)
    backward = 3.0**2 * (1.0**2 * 100 / 6) + (127.0**2 * 100) * (2.0**-20 * 80 / 6)  # the gradient is in fp16
    assert sensitivity(operator, INT8, depth=2, model_depth=5) == pytest.approx(3 * forward + 2 * backward)
    assert sensitivity(operator, INT8, 2, 5, gamma=0.5) == pytest.approx(1.5 * forward + 2 * backward)
    assert sensitivity(operator, FP32, 2, 5) == 0.0
    assert sensitivity(operator, BF16, 2, 5) == pytest.approx(64 * sensitivity(operator, FP16, 2, 5))


def test_an_operator_without_weights_has_the_term_of_its_input() -> None:
    operator = OperatorStatistics(label="a", input=statistics(60, 127.0))
    assert sensitivity(operator, INT8, depth=1, model_depth=4) == pytest.approx(3 * 10.0)


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_stochastic_rounding_has_the_variance_of_the_formula(step: float) -> None:
    draw = random.Random(0)
    numel = 40_000
    total = 0.0
    for _ in range(numel):
        value = draw.uniform(-127 * step, 127 * step)
        below = value // step * step
        rounded = below + step if draw.random() < (value - below) / step else below
        total += (rounded - value) ** 2
    tensor = TensorStatistics(numel=numel, norm=1.0, largest=127 * step)
    assert rounding_variance(tensor, INT8) == pytest.approx(total, rel=0.02)


def test_statistics_are_read_as_they_were_written(tmp_path: Path) -> None:
    operator = OperatorStatistics(label="a", input=statistics(10, 1.0), weight=statistics(5, 1.0))
    kept = Statistics(model="a model", steps=3, operators=(operator,))
    write_statistics(tmp_path / "statistics.json", kept)
    assert read_statistics(tmp_path / "statistics.json") == kept
    graph = chain(node("a"), node("b"))
    assert set(indicator(graph, kept)) == {"a"}
    (tmp_path / "statistics.json").write_text("{}")
    with pytest.raises(RecordError, match="holds no statistics of operators: operators"):
        read_statistics(tmp_path / "statistics.json")


def test_without_statistics_size_and_depth_order_the_operators() -> None:
    graph = chain(node("small", weights=10), node("large", weights=1000, numel=1000), node("fixed", ()))
    stand_in = indicator_without_statistics(graph)
    assert set(stand_in) == {"small", "large"}
    assert stand_in["large"][INT8] > stand_in["small"][INT8] > stand_in["small"][FP16] > 0.0
    assert stand_in["large"][FP32] == 0.0
