"""fp32 on a system that was measured in 16 bits."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from predictor import predict
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.fp32 import Fp32System, peak_ratio
from predictor.core.costs.operator import Direction, Shape
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.costs.regressors import DirectionRegressor
from predictor.core.hardware.device_sheets import sheet_named
from tests.unit.examples import full_form
from tests.unit.recommender_examples import dcn, loaded

PERLMUTTER = REGRESSORS_FOLDER / "Perlmutter"
LARGE_PRODUCT = (8192, 4096, 4096)
LARGE_STREAM = (8192, 8192)


def cost(system: PublishedSystem, operator: str, shape: Shape) -> Cost:
    return system.cost(catalogue()[operator], Direction.FORWARD, shape)


def test_products_slow_down_with_the_peak() -> None:
    half = cost(open_system(PERLMUTTER, "fp16"), "mlp_linear", LARGE_PRODUCT)
    single, tensor = (cost(Fp32System(PERLMUTTER, "fp16", tf32), "mlp_linear", LARGE_PRODUCT) for tf32 in (False, True))
    assert single.us / half.us == pytest.approx(312 / 19.5, rel=0.15)
    assert tensor.us / half.us == pytest.approx(2.0, rel=0.1)
    assert single.source is tensor.source is Source.ANALYTIC
    assert log(single.high_us / single.us) > log(half.high_us / half.us)


def test_streams_of_elements_double() -> None:
    half, single = open_system(PERLMUTTER, "fp16"), Fp32System(PERLMUTTER, "fp16", tf32=False)
    ratio = cost(single, "residual_add", LARGE_STREAM).us / cost(half, "residual_add", LARGE_STREAM).us
    assert ratio == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("operator", "shape"),
    [("optimizer_step", (10**8, 10)), ("embedding_bag", (10**5, 10**5, 10**5, 64)), ("host_to_device", (10**6,))],
)
def test_what_is_fp32_in_every_precision_stays(operator: str, shape: Shape) -> None:
    half, single = open_system(PERLMUTTER, "fp16"), Fp32System(PERLMUTTER, "fp16", tf32=False)
    assert cost(single, operator, shape) == cost(half, operator, shape)


def test_transferred_operators_have_an_fp32_too() -> None:
    half, single = (system(REGRESSORS_FOLDER / "H100", "fp16") for system in (open_system, _tf32))
    ratio = cost(single, "mlp_linear", LARGE_PRODUCT).us / cost(half, "mlp_linear", LARGE_PRODUCT).us
    assert ratio == pytest.approx(2.0, rel=0.1)


def _tf32(folder: Path, precision: str) -> Fp32System:
    return Fp32System(folder, precision, tf32=True)


def test_unchanged_terms_keep_their_regressor() -> None:
    half, single = open_system(PERLMUTTER, "fp16"), Fp32System(PERLMUTTER, "fp16", tf32=False)
    kept, changed = catalogue()["optimizer_step"], catalogue()["gelu"]
    forward = Direction.FORWARD
    for operator, same in ((kept, True), (changed, False)):
        regressors = (half.regressor(operator, forward), single.regressor(operator, forward))
        models = [regressor.model for regressor in regressors if isinstance(regressor, DirectionRegressor)]
        assert (models[0] == models[1]) is same


@pytest.mark.parametrize(("name", "fp32", "tf32"), [("L40S", 91.6, 183.0), ("RTX_PRO_6000", 120.0, 250.0)])
def test_every_published_gpu_has_a_data_sheet_that_agrees_with_its_own_file(
    name: str, fp32: float, tf32: float
) -> None:
    gpu = open_system(REGRESSORS_FOLDER / name, "bf16").hardware.gpu
    sheet = sheet_named(gpu.name)
    assert sheet is not None
    assert sheet.memory_bandwidth_gb_per_s == gpu.memory_bandwidth_gb_per_s.value
    for precision, peak in gpu.peak_tflop_per_s.items():
        assert sheet.peak_tflop_per_s.get(precision, peak.value) == pytest.approx(peak.value, rel=1e-3)
    bf16 = gpu.peak_tflop_per_s["bf16"].value
    assert peak_ratio(gpu, "bf16", tf32=False) == pytest.approx(bf16 / fp32)
    assert peak_ratio(gpu, "bf16", tf32=True) == pytest.approx(bf16 / tf32)
    operator, shape = catalogue()["ffn_up"], (4096, 4096, 4096)
    in_fp32, in_tf32 = (Fp32System(REGRESSORS_FOLDER / name, "bf16", tf32=fast) for fast in (False, True))
    rates = [s.cost(operator, Direction.FORWARD, shape) for s in (in_fp32, in_tf32)]
    assert 2 * 4096**3 / (rates[0].low_us * 1e6) <= fp32 * (1 + 1e-9)
    assert rates[1].us < rates[0].us


def test_gpu_without_a_data_sheet_is_refused() -> None:
    gpu = open_system(PERLMUTTER, "fp16").hardware.gpu.model_copy(update={"name": "SomeGPU"})
    with pytest.raises(PublishedError, match="no data sheet says its fp32 peak"):
        peak_ratio(gpu, "fp16", tf32=False)


def test_a_gpu_without_tf32_computes_in_fp32_and_the_report_says_so() -> None:
    assert not Fp32System(REGRESSORS_FOLDER / "V100", "fp16", tf32=True).tf32
    asked = loaded(dcn(solver={"enable_tf32_compute": True}), system="V100")
    plain = loaded(dcn(), system="V100")
    assert not asked.run.tf32
    assert asked.run == plain.run
    assert any("has no TF32" in assumption for assumption in asked.assumptions)
    assert not any("TF32" in assumption for assumption in plain.assumptions)


def test_the_note_does_not_say_that_fp32_has_the_peak_of_16_bits() -> None:
    content = full_form()
    said = predict({**content, "training": {**content["training"], "precision": "fp32"}}).notes
    note = next(note for note in said if note.startswith("fp32 was not measured"))
    assert "same peak" not in note
    assert "peaks of the data sheet" in note
