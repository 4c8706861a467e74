"""Costs of operators in precisions, by source; casts; measured tables; work of shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import open_system
from predictor.replay.files.record_model import RecordError
from predictor.replay.precision.casts import CastCosts, fit_cast
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.device_sheets import DeviceSheet, device_sheet, sheet_of
from predictor.replay.precision.measured_costs import (
    CastSample,
    MeasuredCast,
    MeasuredCosts,
    MeasuredOperator,
    joined,
    read_measured_costs,
    write_measured_costs,
)
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.precision_costs import CostOrigin, PrecisionCosts
from predictor.replay.precision.work_of_shapes import WorkKind, output_numel, shape_work
from tests.unit.precision_graphs import BF16, FP16, FP32, INT8

SHAPES = ((4, 8), (16, 8), (16,))
SHEET = DeviceSheet("a device", 100.0, {FP32: 1.0, FP16: 4.0})


def linear(traced: Precision = FP32, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> OperatorNode:
    return OperatorNode("aten::linear", "linear", 0, shapes, 144, 64, 32, (FP32, FP16), traced=traced)


def times(node: OperatorNode, forward: float, backward: float = 0.0) -> TracedTimes:
    return TracedTimes(OperatorGraph([node], []), {node.label: forward}, {node.label: backward})


def table(**changes: object) -> MeasuredCosts:
    fields = {"device": "a device", "device_kind": "cpu", "threads": 1, "torch": "2.13"} | changes
    return MeasuredCosts.model_validate(fields)


def row(
    precision: Precision, *samples: float, step_pass: str = "forward", dtypes: tuple[str, ...] = ()
) -> dict[str, object]:
    return {
        "operator": "aten::linear", "shapes": SHAPES, "precision": precision, "step_pass": step_pass,
        "samples_us": samples, "dtypes": dtypes,
    }  # fmt: skip


def test_in_its_traced_precision_an_operator_costs_what_was_traced() -> None:
    node = linear()
    costs = PrecisionCosts(times(node, 30.0, 60.0))
    assert costs.forward(node, FP32).us == 30.0
    assert costs.look_up(node, FP32, "backward").origin is CostOrigin.TRACED
    assert costs.backward(node, FP32).source is Source.MEASURED


def test_an_operator_without_a_traced_backward_has_none_in_any_precision() -> None:
    node = linear()
    assert PrecisionCosts(times(node, 30.0)).backward(node, FP16) == ZERO


def test_a_trace_in_the_precision_comes_before_a_table_and_a_data_sheet() -> None:
    node, other = linear(), linear(FP16)
    measured = table(operators=[row(FP16, 9.0)])
    costs = PrecisionCosts(times(node, 30.0), [times(other, 12.0), times(other, 14.0)], measured, sheet=SHEET)
    answer = costs.look_up(node, FP16, "forward")
    assert (answer.cost.us, answer.origin) == (13.0, CostOrigin.TRACE)
    assert (answer.cost.low_us, answer.cost.high_us, answer.cost.source) == (12.0, 14.0, Source.MEASURED)


def test_a_trace_of_other_shapes_does_not_answer() -> None:
    node, other = linear(), linear(FP16, ((4, 8), (32, 8), (32,)))
    costs = PrecisionCosts(times(node, 30.0), [times(other, 12.0)])
    with pytest.raises(
        ConfigError, match=r"linear \(aten::linear, \[4, 8\] × \[16, 8\] × \[16\]\): its forward pass in"
    ):
        costs.forward(node, FP16)


def test_a_table_with_both_precisions_scales_the_traced_time() -> None:
    node = linear()
    measured = table(operators=[row(FP16, 9.0, 10.0, 11.0), row(FP32, 20.0, 20.0, 20.0)])
    answer = PrecisionCosts(times(node, 30.0), measured=measured).look_up(node, FP16, "forward")
    assert (answer.cost.us, answer.origin) == (15.0, CostOrigin.MEASURED)
    assert answer.cost.low_us < 15.0 < answer.cost.high_us
    alone = PrecisionCosts(times(node, 30.0), measured=table(operators=[row(FP16, 9.0)]))
    assert alone.forward(node, FP16).us == 9.0


@pytest.mark.parametrize(
    ("device_kind", "traced_us", "expected_us"),
    [("cpu", 30.0, 20.0), ("cpu", 20.0, 10.0), ("cpu", 16.0, 8.0), ("cuda", 30.0, 15.0)],
)
def test_what_a_cpu_ran_beside_a_backward_stays(device_kind: str, traced_us: float, expected_us: float) -> None:
    node = linear()
    rows = [row(precision, us, step_pass="backward") for precision, us in ((FP16, 10.0), (FP32, 20.0))]
    measured = table(operators=rows, device_kind=device_kind)
    costs = PrecisionCosts(times(node, 1.0, traced_us), measured=measured)
    assert costs.backward(node, FP16).us == pytest.approx(expected_us)


def test_of_rows_with_other_types_of_inputs_the_first_answers() -> None:
    node = linear()
    rows = [row(FP16, 9.0, dtypes=("c10::Half", "c10::Half")), row(FP16, 90.0, dtypes=("float", "c10::Half"))]
    assert PrecisionCosts(times(node, 30.0), measured=table(operators=rows)).forward(node, FP16).us == 9.0


class Regressors:
    """Regressors of a system in one precision, that answer FLOP over a rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        us = operator.work(shape, direction, 1).flops / self.rate
        return Cost(us, 0.9 * us, 1.1 * us, Source.EXTRAPOLATED)


def test_published_regressors_answer_as_a_ratio() -> None:
    node = linear(BF16, ((64, 256), (128, 256), (128,)))
    systems = {BF16: Regressors(1e6), Precision.FP8: Regressors(2e6)}
    costs = PrecisionCosts(times(node, 200.0, 400.0), systems=systems, sheet=SHEET)
    answer = costs.look_up(node, Precision.FP8, "forward")
    assert (answer.cost.us, answer.origin, answer.cost.source) == (100.0, CostOrigin.REGRESSORS, Source.EXTRAPOLATED)
    assert answer.cost.low_us == pytest.approx(100.0 * 0.9 / 1.1)
    assert costs.backward(node, Precision.FP8).us == 200.0
    odd = linear(BF16, ((63, 255), (127, 255), (127,)))  # no kernel in fp8 takes it
    with pytest.raises(ConfigError, match="fp8 is not known"):
        PrecisionCosts(times(odd, 200.0), systems=systems).forward(odd, Precision.FP8)


def test_physics_scales_by_the_roofline_and_says_that_it_is_analytic() -> None:
    shapes = ((512, 512), (512, 512), (512,))
    node = linear(FP32, shapes)
    answer = PrecisionCosts(times(node, 400.0), sheet=SHEET).look_up(node, FP16, "forward")
    assert (answer.cost.us, answer.origin, answer.cost.source) == (100.0, CostOrigin.PHYSICS, Source.ANALYTIC)
    assert (answer.cost.low_us, answer.cost.high_us) == (100.0, 400.0)
    relu = replace(node, name="aten::relu", shapes=())
    assert PrecisionCosts(times(relu, 4.0), sheet=SHEET).forward(relu, FP16).us == 2.0  # by bytes, without shapes
    with pytest.raises(ConfigError, match="int8 is not known"):
        PrecisionCosts(times(node, 400.0), sheet=SHEET).forward(node, INT8)


def test_a_small_kernel_does_not_follow_the_roofline() -> None:
    node = linear(FP32, ((50, 100), (100, 100)))  # 1 MFLOP: 1 µs at the peak of fp32, 0.4 µs of fp16 by bytes
    answer = PrecisionCosts(times(node, 40.0), sheet=SHEET).look_up(node, FP16, "forward")
    assert answer.cost.us == pytest.approx(30.0 + 10.0 / 2.5)
    assert answer.cost.low_us == pytest.approx(16.0)
    assert answer.cost.high_us == 40.0


def test_casts_are_fitted_with_terms_that_are_not_negative() -> None:
    samples = [CastSample(numel=numel, us=2e-3 * numel + 5.0) for numel in (100, 10_000, 1_000_000)]
    cast = fit_cast(FP32, FP16, samples)
    assert cast.alpha_us_per_element == pytest.approx(2e-3)
    assert cast.beta_us == pytest.approx(5.0)
    assert cast.relative_error == pytest.approx(0.0, abs=1e-9)
    through_zero = fit_cast(FP32, FP16, [CastSample(numel=10, us=1.0), CastSample(numel=100, us=20.0)])
    assert through_zero.beta_us == 0.0
    assert through_zero.alpha_us_per_element > 0.0
    assert through_zero.relative_error > 0.1
    flat = fit_cast(FP32, FP16, [CastSample(numel=10, us=3.0), CastSample(numel=100, us=2.0)])
    assert flat.alpha_us_per_element == 0.0
    with pytest.raises(ConfigError, match="two sizes are needed"):
        fit_cast(FP32, FP16, samples[:1])


def test_a_cast_that_was_not_measured_is_by_bytes_or_refused() -> None:
    measured = table(casts=[{"cast_from": "fp32", "cast_to": "fp16", "alpha_us_per_element": 0.01, "beta_us": 1.0}])
    casts = CastCosts(measured, bandwidth_gb_per_s=1.0)
    assert casts.cost(FP32, FP16, 100).us == 2.0
    assert casts.cost(Precision.TF32, FP16, 100).us == 2.0
    back = casts.cost(FP16, FP32, 1000)
    assert (back.us, back.source) == (6.0, Source.ANALYTIC)  # 6 bytes an element at 1 GB/s
    assert casts.cost(FP32, INT8, 1000).us == 9.0  # read twice, for the scale
    assert casts.cost(FP32, Precision.TF32, 1000) == ZERO
    with pytest.raises(ConfigError, match="cast from fp16 to fp32 was not measured"):
        CastCosts(measured).cost(FP16, FP32, 10)


def test_a_table_of_measured_costs_is_read_as_it_was_written(tmp_path: Path) -> None:
    measured = table(operators=[row(FP16, 9.0, 10.0, step_pass="backward")])
    write_measured_costs(tmp_path / "costs.json", measured)
    assert read_measured_costs(tmp_path / "costs.json") == measured
    both = joined([measured, measured])
    assert len(both.operators) == 2
    with pytest.raises(RecordError, match="give tables of one device"):
        joined([measured, table(threads=2)])
    with pytest.raises(RecordError, match="no table of measured costs to join"):
        joined([])
    (tmp_path / "costs.json").write_text('{"format": "other"}')
    with pytest.raises(RecordError, match="is no table of measured costs"):
        read_measured_costs(tmp_path / "costs.json")
    with pytest.raises(RecordError, match="No such file"):
        read_measured_costs(tmp_path / "missing.json")


def test_a_measured_table_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="a cast is between two precisions"):
        MeasuredCast(cast_from=FP32, cast_to=FP32, alpha_us_per_element=0.0, beta_us=0.0)
    with pytest.raises(ValueError, match="samples_us"):
        MeasuredOperator(operator="aten::mm", shapes=(), precision=FP32, samples_us=())


@pytest.mark.parametrize(
    ("kind", "shapes", "flops", "elements"),
    [
        (WorkKind.LINEAR, ((2, 3, 8), (16, 8), (16,)), 2 * 6 * 8 * 16, 6 * 8 + 8 * 16 + 6 * 16),
        (WorkKind.ADDMM, ((16,), (6, 8), (8, 16)), 2 * 6 * 8 * 16, 6 * 8 + 8 * 16 + 6 * 16),
        (WorkKind.MATMUL, ((5, 6, 8), (5, 8, 16)), 2 * 5 * 6 * 8 * 16, 5 * (6 * 8 + 8 * 16 + 6 * 16)),
        (WorkKind.MATMUL, ((6, 8), (8,)), 2 * 6 * 8, 6 * 8 + 8 + 6),
        (WorkKind.ELEMENTWISE, ((4, 5), (4, 5)), 0, 60),
        (WorkKind.NORMALISATION, ((4, 5), (5,), (5,)), 0, 40),
        (WorkKind.EMBEDDING, ((100, 8), (2, 3)), 0, 2 * 48),
        (WorkKind.VIEW, ((4, 5),), 0, 0),
    ],
)
def test_work_of_shapes(kind: WorkKind, shapes: tuple[tuple[int, ...], ...], flops: float, elements: float) -> None:
    work = shape_work(kind, shapes)
    assert work is not None
    assert (work.flops, work.elements) == (flops, elements)


def test_a_convolutions_work_follows_its_output() -> None:
    shapes = ((2, 3, 64, 64), (16, 3, 7, 7), ())
    strided = shape_work(WorkKind.CONVOLUTION, shapes, output_numel=2 * 16 * 32 * 32)
    padded = shape_work(WorkKind.CONVOLUTION, shapes)
    assert strided is not None
    assert padded is not None
    assert strided.flops == 2 * (2 * 16 * 32 * 32) * (3 * 7 * 7)
    assert padded.flops == 4 * strided.flops
    assert strided.backward_flops == 2 * strided.flops


def test_shapes_that_do_not_fit_have_no_work() -> None:
    assert shape_work(WorkKind.LINEAR, ((4, 8), (16, 9))) is None
    assert shape_work(WorkKind.CONVOLUTION, ((4, 8),)) is None
    assert shape_work(WorkKind.ELEMENTWISE, ((), ())) is None
    assert output_numel(WorkKind.LINEAR, ((2, 3, 8), (16, 8))) == 96
    assert output_numel(WorkKind.ATTENTION, ((2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8))) == 640
    assert output_numel(WorkKind.CONVOLUTION, ((2, 3, 8, 8), (4, 3, 3, 3))) == 0


def test_data_sheets_are_chosen_by_the_longest_fitting_name() -> None:
    names = {
        "NVIDIA GH200 480GB": 4000,
        "NVIDIA H200": 4800,
        "NVIDIA A100-SXM4-80GB": 2039,
        "NVIDIA A100-PCIE-40GB": 1555,
    }
    for name, bandwidth in names.items():
        sheet = device_sheet(name)
        assert sheet is not None
        assert sheet.memory_bandwidth_gb_per_s == bandwidth
    assert device_sheet("AMD EPYC 7763") is None
    hardware = open_system(REGRESSORS_FOLDER / "H100", "fp16").hardware.gpu
    sheet = sheet_of(hardware)
    assert sheet.memory_bandwidth_gb_per_s == hardware.memory_bandwidth_gb_per_s.value
    assert sheet.peak_tflop_per_s[BF16] == hardware.peak_tflop_per_s["bf16"].value
    assert sheet.peak_tflop_per_s[FP32] < sheet.peak_tflop_per_s[Precision.TF32] < sheet.peak_tflop_per_s[BF16]
