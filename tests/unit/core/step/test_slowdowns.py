"""What slows a GPU down: a power limit, misaligned heads, an unfused softmax, launches; and what a compiler saves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.blocks.core import softmax_is_fused
from predictor.core.costs.alignment import is_misaligned, without_tensor_cores
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import open_system, with_hardware
from predictor.core.hardware.hardware import Gpu, Quantity
from predictor.core.hardware.power import clock_log_error, clock_ratio
from predictor.core.transforms.compilation import compiled_model
from predictor.core.workload.edges import edge_block
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.tasks import PassTasks
from predictor.core.workload.transformer import Attention, LayerKind, Loss, Normalization
from predictor.core.workload.transformer_step import layer_block
from tests.unit.core.workload.test_recompute import DENSE, RUN

FORWARD = Direction.FORWARD


def limited(watts: float) -> Gpu:
    gpu = open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16").hardware.gpu
    return gpu.model_copy(update={"power_limit_w": Quantity(value=watts, source="a test")})


def test_a_lower_limit_lowers_the_clock_less_than_in_proportion() -> None:
    assert clock_ratio(limited(400)) == 1.0
    assert clock_ratio(limited(800)) == 1.0
    assert clock_ratio(limited(200)) < clock_ratio(limited(300)) < 1.0
    assert clock_ratio(limited(300)) > 300 / 400
    assert 0.0 == clock_log_error(limited(400)) < clock_log_error(limited(300)) < clock_log_error(limited(200))


def test_a_limit_slows_products_and_leaves_streams() -> None:
    system = open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    other = with_hardware(system, system.hardware.model_copy(update={"gpu": limited(300)}))
    product, stream = catalogue()["ffn_up"], catalogue()["residual_add"]
    shape = (8192, 8192, 8192)
    ratio = other.cost(product, FORWARD, shape).us / system.cost(product, FORWARD, shape).us
    assert ratio == pytest.approx(1.0 / clock_ratio(limited(300)), rel=0.02)
    assert other.cost(stream, FORWARD, (8192, 8192)) == system.cost(stream, FORWARD, (8192, 8192))


def test_heads_of_whole_16_bytes_are_aligned() -> None:
    scores = catalogue()["attention_scores"]
    assert not is_misaligned(scores, (64, 2048, 104, 2048), 2)
    assert is_misaligned(scores, (64, 2048, 108, 2048), 2)
    assert not is_misaligned(scores, (64, 2048, 108, 2048), 4)
    assert not is_misaligned(catalogue()["ffn_up"], (2048, 108, 108), 2)


def test_misaligned_heads_run_at_the_rate_of_the_cuda_cores() -> None:
    system = open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    aligned, off = (
        system.cost(catalogue()["attention_scores"], FORWARD, (64, 2048, width, 2048)) for width in (104, 108)
    )
    assert off.us == pytest.approx(2 * 64 * 2048 * 108 * 2048 / 19.5e6)
    assert off.us > 3 * aligned.us
    assert off.low_us < 2 * aligned.us < off.us < off.high_us


def test_a_device_without_a_sheet_keeps_its_cost() -> None:
    cost = Cost(1.0, 0.5, 2.0, Source.MEASURED)
    gpu = limited(400).model_copy(update={"name": "another device"})
    assert without_tensor_cores(cost, 1e12, gpu) is cost


def test_softmax_is_fused_for_whole_groups_of_heads() -> None:
    model = replace(RUN.model, attention=Attention.FUSED_SOFTMAX, num_attention_heads=16, num_key_value_heads=0)
    runs = [replace(RUN, model=model, layout=replace(RUN.layout, tensor_parallel_size=tp)) for tp in (4, 8)]
    assert [softmax_is_fused(run.call()) for run in runs] == [True, False]  # 4 and 2 heads on a rank
    fused, single = (names(layer_block(run, DENSE).forward) for run in runs)
    assert "causal_softmax" in fused
    assert {"attention_mask", "softmax", "softmax_in_fp32"} <= single
    assert "causal_softmax" not in single


def names(tasks: PassTasks) -> set[str]:
    return {task.name for task in tasks.tasks}


def streamed(tasks: PassTasks, name: str) -> float:
    return sum(task.times for task in tasks.tasks if task.name == name)


def test_a_compiler_fuses_additions_into_norms_and_saves_launches() -> None:
    eager = replace(RUN, model=replace(RUN.model, normalization=Normalization.RMS_NORM, loss=Loss.TORCH))
    compiled = replace(eager, compiled=True, model=compiled_model(eager.model))
    plain, fused = layer_block(eager, DENSE), layer_block(compiled, DENSE)
    assert streamed(fused.forward, "residual_add") == pytest.approx(2 * 5 / 6)
    assert streamed(fused.backward, "residual_add") == pytest.approx(2 / 3)
    assert {"rms_norm", "swiglu"} <= names(plain.forward)
    assert {"layer_norm", "fused_gate", "rope"} <= names(fused.forward)
    assert fused.host is not None
    assert plain.host is not None
    assert fused.host.forward < plain.host.forward
    assert fused.host.backward < plain.host.backward


def test_a_compiled_loss_has_no_wide_logits() -> None:
    run = replace(RUN, model=replace(RUN.model, loss=Loss.TORCH))
    plain = names(edge_block(run, False, True).forward)
    compiled = names(edge_block(replace(run, compiled=True), False, True).forward)
    assert "logits_to_fp32" in plain
    assert "fused_cross_entropy" in compiled
    assert not {"logits_to_fp32", "torch_cross_entropy"} & compiled


def test_graphs_need_no_host_and_blocking_launches_take_turns() -> None:
    kind, run = LayerKind(), replace(RUN, recompute=Recompute.NONE)
    assert layer_block(replace(run, cuda_graphs=True), kind).host is None
    blocking = layer_block(replace(run, blocking_launches=True), kind).host
    assert blocking is not None
    assert blocking.takes_turns
