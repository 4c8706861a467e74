"""A sweep's shapes are real models' with the corners among them, and shards have all; a bad sweep is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from microbench.errors import MeasureError
from microbench.kernels import kernel_names
from microbench.sweep import SWEEPS, farthest_first, read_sweep, shapes_of, sweep_names
from predictor.core.costs.catalogue import catalogue

SMOKE = read_sweep("smoke")


def test_every_operator_has_a_kernel_and_every_kernel_an_operator() -> None:
    assert kernel_names() == list(catalogue()), (
        "predictor/core/costs/operators and microbench/kernels have the same file names"
    )


def test_four_sweeps_come_with_the_project() -> None:
    assert sweep_names() == ["full", "recommender", "smoke", "standard"]


@pytest.mark.parametrize("name", kernel_names())
def test_shapes_are_enough_distinct_and_within_the_limits(name: str) -> None:
    operator, shapes = catalogue()[name], shapes_of(name, SMOKE, "fp32")
    wanted = SMOKE.shapes_per_linear if operator.family == "linear" else SMOKE.shapes_per_operator
    assert len(shapes) == len(set(shapes)) == wanted
    works = [operator.work(shape, direction, 1) for shape in shapes for direction in operator.directions]
    assert max(work.flops for work in works) <= SMOKE.largest_call_gflop * 1e9
    assert max(work.size_bytes for work in works) * operator.byte_scale("fp32") <= SMOKE.largest_call_mb * 1e6
    assert all(len(shape) == len(operator.dimensions) and min(shape) >= 0 for shape in shapes)
    assert shapes == shapes_of(name, SMOKE, "fp32")


def test_precision_decides_what_fits() -> None:
    largest = {p: max(map(max, shapes_of("residual_add", SMOKE, p))) for p in ("fp16", "fp32")}
    assert largest["fp16"] >= largest["fp32"]


def test_shards_have_every_shape_once() -> None:
    shapes = shapes_of("gelu", SMOKE, "fp32")
    shards = [shapes[i::3] for i in range(3)]
    assert sorted(shape for shard in shards for shape in shard) == sorted(shapes)


def test_corners_come_first() -> None:
    points: list[tuple[float, ...]] = [(float(x), float(y)) for x in range(5) for y in range(5)]
    assert {points[i] for i in farthest_first(points, 4)} == {(0.0, 0.0), (4.0, 4.0), (0.0, 4.0), (4.0, 0.0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes_per_operator": 0}, "shapes_per_operator is 0: input should be greater than 0"),
        ({"shape": 3}, "shape is not a known key"),
        ({"models": {"hidden_size": {"low": 9, "high": 1}}}, "models.hidden_size: low is 9, above high, 1"),
        ({"models": {"hidden_size": {"low": 1, "high": 10**19}}}, "more than 1,000,000 overflows or is a slip"),
        ({"models": {"parameters": {"low": 1, "high": 10**19}}}, "models.parameters.high is"),
    ],
)
def test_a_bad_sweep_is_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    content = yaml.safe_load((SWEEPS / "smoke.yaml").read_text())
    models = content["models"] | change.get("models", {})
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content | change | {"models": models}))
    with pytest.raises(MeasureError, match=message):
        read_sweep(str(path))


def test_limits_that_no_shape_meets_are_said() -> None:
    with pytest.raises(MeasureError, match="gelu: no shape of the sweep is below"):
        shapes_of("gelu", SMOKE.model_copy(update={"largest_call_mb": 1e-6}), "fp32")


@pytest.mark.parametrize("name", [name for name in sweep_names() if name != "smoke"])
def test_every_other_sweep_has_shapes_for_every_operator(name: str) -> None:
    sweep = read_sweep(name).model_copy(update={"shapes_per_operator": 20, "shapes_per_linear": 20})
    assert all(len(shapes_of(operator, sweep, "fp16")) >= 20 for operator in kernel_names())
