"""Fused kernels and gradient products that a system measured: predictions take them, and no others change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fitting.cli import main
from microbench.provenance import Identity
from microbench.sweep import read_sweep, shapes_of
from microbench.table import Measurement, Status, Writer, table_path
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.blocks.attention import FUSED_ROPE
from predictor.core.blocks.ffn import FUSED_GATE
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import (
    DATA_GRADIENT,
    FP32_WEIGHT_GRADIENT,
    WEIGHT_GRADIENT,
    Direction,
    linear_gradients,
)
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.plan.loading import prepare
from predictor.core.rows import HALF_OF_BACKWARD
from predictor.core.step.breakdown import answers
from predictor.core.step.prediction import predict
from predictor.core.workload.losses import FUSED_LOSS
from predictor.core.workload.measured_kernels import input_gradient, on_system, weight_gradient
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.switches import Loss
from predictor.core.workload.tasks import shaped_task
from predictor.core.workload.transformer import LayerKind
from predictor.core.workload.transformer_step import layer_block
from tests.unit.fitting.test_own_tables import SESSION

ROOT = Path(__file__).resolve().parents[2]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
FUSED_NORM = "fused_rms_norm"
FUSED = (FUSED_NORM, FUSED_ROPE, FUSED_GATE, FUSED_LOSS)
GPU, PRECISION, SMS = "NVIDIAH10080GBHBM3", "bf16", 132
LAUNCH_US, BYTES_PER_US = 3.0, 1.4e6  # slower than a residual addition, so that a prediction must change
FLOP_PER_US = {DATA_GRADIENT: 0.6e9, WEIGHT_GRADIENT: 0.5e9, FP32_WEIGHT_GRADIENT: 0.4e9}
SHAPE = (8192, 4096, 11008)
FFN_UP = catalogue()["ffn_up"]
WHERE_MEASURED = [name for name, operator in catalogue().items() if operator.where_measured]


def made_us(name: str, shape: tuple[int, ...], direction: Direction) -> float:
    work = catalogue()[name].work(shape, direction, SMS)
    return LAUNCH_US + max(work.flops / FLOP_PER_US.get(name, 1.0), work.size_bytes / BYTES_PER_US)


def write(results: Path, name: str) -> None:
    operator = catalogue()[name]
    identity = Identity.model_validate({
        "kind": "operator", "name": name, "precision": PRECISION, "worker": "0of1", "dimensions": operator.dimensions,
        "directions": operator.directions, "device": GPU, "device_kind": "cuda", "driver": None, "versions": {},
        "config_hash": "",
    })  # fmt: skip
    with Writer(table_path(results, "operator", name, PRECISION, "0of1"), identity, SESSION) as table:
        for shape in shapes_of(name, read_sweep("standard"), PRECISION)[::2]:
            times = [(direction, made_us(name, shape, direction)) for direction in operator.directions]
            table.append(
                [Measurement(shape, way, (us, us), "made", Status.OK, (us, us), host_us=5.0) for way, us in times]
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("measured")
    for name in WHERE_MEASURED:
        write(results, name)
    out = results / "published"
    words = ["fit", "--system", str(ROOT / "training/systems/H100.yaml"), "--measurements", str(results)]
    assert main([*words, "--keep", str(REGRESSORS_FOLDER / "H100"), "--name", "H100_own", "--out", str(out)]) == 0
    return out


@pytest.fixture
def before() -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / "H100", PRECISION)


@pytest.fixture
def after(folder: Path) -> PublishedSystem:
    return open_system(folder, PRECISION)


def run_of(model: dict[str, Any] | None = None, **training: Any) -> TrainingRun:
    content: dict[str, Any] = {
        "system": "H100",
        "model": {
            "num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 4096,
            "ffn_hidden_size": 11008, "vocab_size": 32000,
        } | (model or {}),
        "parallelism": {"data_parallel_size": 2},
        "training": {
            "micro_batch_size": 2, "num_micro_batches": 4, "precision": PRECISION, "framework": "pytorch", **training,
        },
    }  # fmt: skip
    return prepare(content, Path()).run


def fused_run(**training: Any) -> TrainingRun:
    run = run_of({"activation": "swiglu"}, compiled=True, **training)
    return replace(run, model=replace(run.model, loss=Loss.TORCH))


def test_a_fused_run_is_timed_by_its_own_kernels(before: PublishedSystem, after: PublishedSystem) -> None:
    run = fused_run()
    old, new = predict(run, before), predict(run, after)
    assert new.run == run
    found = {(answer.operator, answer.direction): answer for answer in answers(new, after)}
    per_step = run.num_micro_batches * run.model.num_layers
    call = run.call()
    tokens, width = call.tokens, call.ffn_width
    for direction in Direction:
        for name in FUSED:
            assert found[name, direction].source is Source.INTERPOLATED, (name, direction)
        expected = per_step * made_us(FUSED_GATE, (tokens, width), direction)
        assert found[FUSED_GATE, direction].step_us == pytest.approx(expected, rel=0.05)
    named = {answer.operator for answer in answers(old, before)}
    assert {"fused_gate (by bytes)", "rope (by bytes)", "layer_norm", f"{FUSED_LOSS} (by bytes)"} <= named
    assert not {FUSED_NORM, FUSED_ROPE, FUSED_GATE} & named
    assert new.step.us > 1.05 * old.step.us


def test_a_system_without_them_is_asked_as_before(before: PublishedSystem, after: PublishedSystem) -> None:
    run = fused_run()
    assert on_system(run, before) is run
    assert on_system(run, after).model.measured_kernels == frozenset(WHERE_MEASURED) == {*FUSED, *FLOP_PER_US}
    for shape in (SHAPE, (64, 512, 512)):
        assert before.cost(FFN_UP, FORWARD, shape) == after.cost(FFN_UP, FORWARD, shape)


def test_an_unfused_forward_pass_stays_as_it_was(before: PublishedSystem, after: PublishedSystem) -> None:
    run = run_of()
    old, new = predict(run, before), predict(run, after)
    assert [stage.whole.forward.cost for stage in old.stages] == [stage.whole.forward.cost for stage in new.stages]
    assert new.stages[0].whole.backward.cost.us != old.stages[0].whole.backward.cost.us


def test_a_derived_backward_pass_is_that_of_its_measured_products(after: PublishedSystem) -> None:
    cost = after.cost(FFN_UP, BACKWARD, SHAPE)
    names = FFN_UP.gradient_operators
    parts = [
        after.cost(catalogue()[name], FORWARD, part) for name, part in zip(names, linear_gradients(SHAPE), strict=True)
    ]
    assert cost.us == pytest.approx(sum(part.us for part in parts))
    made = sum(made_us(name, part, FORWARD) for name, part in zip(names, linear_gradients(SHAPE), strict=True))
    assert cost.us == pytest.approx(made, rel=0.05)
    assert cost.source is Source.INTERPOLATED
    assert after.outside(FFN_UP, BACKWARD, SHAPE) is None


def test_half_of_a_backward_pass_is_the_product_that_was_measured(
    before: PublishedSystem, after: PublishedSystem
) -> None:
    task = shaped_task("ffn_up", SHAPE, BACKWARD)
    for system in (before, after):
        model = on_system(fused_run(), system).model
        halves = [
            system.cost(part.operator, part.direction, part.shape).us * part.times
            for part in (input_gradient(model, task), weight_gradient(model, task))
        ]
        whole = system.cost(task.operator, BACKWARD, SHAPE).us
        assert sum(halves) == pytest.approx(whole)
        if system is before:
            assert halves[0] == HALF_OF_BACKWARD * whole
        else:
            assert halves[1] / halves[0] == pytest.approx(6 / 5, rel=0.05)


def test_products_that_add_to_fp32_sums_take_what_was_measured_and_no_addition_beside(after: PublishedSystem) -> None:
    run = on_system(replace(run_of(), fused_gradient_accumulation=True, fp32_gradients=True), after)
    block = layer_block(run, LayerKind())
    assert not block.accumulation
    (up,) = [task for task in block.backward.tasks if task.name == "ffn_up"]
    assert up.operator.gradient_operators == (DATA_GRADIENT, FP32_WEIGHT_GRADIENT)
    of_data, of_weight = linear_gradients(up.shape)
    made = made_us(DATA_GRADIENT, of_data, FORWARD) + made_us(FP32_WEIGHT_GRADIENT, of_weight, FORWARD)
    assert after.cost(up.operator, BACKWARD, up.shape).us == pytest.approx(made, rel=0.05)
    plain = after.cost(FFN_UP, BACKWARD, up.shape).us
    assert plain < after.cost(up.operator, BACKWARD, up.shape).us, "answers of both are kept apart"
    separate = replace(run, fused_gradient_accumulation=False)
    assert [task.name for task in layer_block(separate, LayerKind()).accumulation] == ["gradient_accumulation"]
