"""fp8: what is quantised keeps its value, products are what they say, and torch's own rules take the layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from microbench import cli
from microbench.call import Maker
from microbench.device import Device, find_device
from microbench.kernels import build_function
from microbench.profile import Job, timed
from microbench.provenance import read_provenance
from microbench.sweep import read_sweep, shapes_of
from microbench.system import described
from microbench.table import Status, read_tables
from microbench.timing import clock_for
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.work import FP8_PRECISIONS, SIZE_MULTIPLES
from tests.unit.microbench.test_profile import tiny_sweep

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
fp8 = pytest.importorskip("microbench.fp8")

SHAPE = (256, 384, 640)  # three and five blocks: neither is a multiple of the four that scales are padded to
# Half a step of three bits of mantissa, and of two; products of two such matrices err by about as much.
ROUNDING = {torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}
EXISTING = {name for name, one in catalogue().items() if "fp8" in one.precisions}


def matrices(m: int, k: int, n: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(torch.randn(sizes).bfloat16() for sizes in ((m, k), (n, k), (m, n)))


def layer(precision: str, shape: tuple[int, int, int] = SHAPE) -> Any:
    x, weight, gradient = matrices(*shape)
    values, gradients = fp8.formats(precision)
    return fp8.Linear(
        fp8.quantise(x, values, precision),
        fp8.quantise_weight(weight, values, precision),
        fp8.quantise(gradient, gradients, precision),
    )


def number(operand: Any) -> Any:
    """What an operand stands for, by the layout that cuBLASLt reads."""
    values = operand.values.float()
    if operand.block is None:
        return values * operand.scale
    rows, columns = values.shape
    scale = operand.scale if operand.block == (1, 128) else operand.scale.t()[:, : columns // 128]
    assert scale.shape == (rows // operand.block[0], columns // 128)
    return values * scale.repeat_interleave(operand.block[0], 0).repeat_interleave(128, 1)


def gap(found: Any, expected: Any) -> float:
    """Return ‖found − expected‖ / ‖expected‖."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("precision", FP8_PRECISIONS)
def test_what_is_quantised_keeps_its_value_both_ways(precision: str) -> None:
    quantised = layer(precision)
    for original, both in zip(matrices(*SHAPE), (quantised.x, quantised.weight, quantised.gradient), strict=True):
        for operand, expected in ((both.straight, original), (both.transposed, original.t())):
            found = number(operand)
            assert operand.values.is_contiguous(), "the summed size is last and contiguous, as Hopper wants"
            large = expected.float().abs() > 0.05  # far above what has no more steps
            error = ((found - expected.float()).abs() / expected.float().abs())[large].max()
            assert 0.0 < error <= ROUNDING[operand.values.dtype] * 1.01


def test_formats_are_those_of_transformer_engine_and_deepseek() -> None:
    for precision, gradients in (("fp8", torch.float8_e5m2), ("fp8_block", torch.float8_e4m3fn)):
        quantised = layer(precision)
        assert {quantised.x.straight.values.dtype, quantised.weight.transposed.values.dtype} == {torch.float8_e4m3fn}
        assert quantised.gradient.straight.values.dtype == gradients


def test_a_large_number_costs_only_its_own_group_precision() -> None:
    x, _, _ = matrices(*SHAPE)
    x[0, 0] = 1e6
    grouped, whole = (number(fp8.quantise(x, torch.float8_e4m3fn, p).straight) for p in ("fp8_block", "fp8"))
    assert gap(grouped[1:], x[1:]) < 0.03
    assert gap(whole[1:], x[1:]) > 0.2


def test_zeros_stay_zeros() -> None:
    for precision in FP8_PRECISIONS:
        both = fp8.quantise(torch.zeros(128, 256).bfloat16(), torch.float8_e4m3fn, precision)
        assert number(both.straight).abs().max() == 0.0


def test_a_scale_a_tensor_multiplies_as_its_numbers_do() -> None:
    quantised = layer("fp8")
    x, weight, gradient = (number(both.straight) for both in quantised)
    found = (quantised.forward(), *quantised.backward())
    exact = (x @ weight.t(), gradient @ weight, gradient.t() @ x)
    x, weight, gradient = (matrix.float() for matrix in matrices(*SHAPE))
    unrounded = (x @ weight.t(), gradient @ weight, gradient.t() @ x)
    for product, expected, original in zip(found, exact, unrounded, strict=True):
        assert product.dtype == torch.bfloat16
        assert gap(product, expected) < 0.01
        assert 0.01 < gap(product, original) < 0.1


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch.nn.functional.scaled_mm is of 2.10 on")
@pytest.mark.parametrize("shape", [SHAPE, (128, 128, 128), (128, 512, 1024)])
def test_block_scales_are_laid_out_as_torch_wants_them(shape: tuple[int, int, int]) -> None:
    def as_described(operand: Any) -> Any:
        tensors = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in operand[:2])
        return fp8.Operand(*tensors, operand.block)

    quantised = fp8.Linear(*(fp8.BothWays(*map(as_described, both)) for both in layer("fp8_block", shape)))
    m, k, n = shape
    assert quantised.forward().shape == (m, n)
    assert [product.shape for product in quantised.backward()] == [(m, k), (n, k)]


def test_block_products_sum_what_belongs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(a: Any, b: Any, fast_accumulation: bool = False) -> Any:
        assert not fast_accumulation
        return number(a) @ number(b).t()

    monkeypatch.setattr(fp8, "product", plain)
    quantised = layer("fp8_block")
    x, weight, gradient = (matrix.float() for matrix in matrices(*SHAPE))
    for product, expected in zip(
        (quantised.forward(), *quantised.backward()), (x @ weight.t(), gradient @ weight, gradient.t() @ x), strict=True
    ):
        assert 0.01 < gap(product, expected) < 0.06


@pytest.mark.parametrize(("precision", "shape"), [("fp8", (256, 100, 64)), ("fp8_block", (256, 128, 192))])
def test_sizes_that_fp8_cannot_have_are_refused_with_the_rule(precision: str, shape: tuple[int, int, int]) -> None:
    rule = f"{precision} needs multiples of {SIZE_MULTIPLES[precision]}"
    with pytest.raises(ValueError, match=rule):
        build_function("ffn_up")(shape, Maker("cpu", precision))
    with pytest.raises(ValueError, match=rule):
        build_function("fp8_quantize")(shape[1:], Maker("cpu", precision))


@pytest.mark.parametrize("sweep", ["smoke", "standard"])
@pytest.mark.parametrize("precision", FP8_PRECISIONS)
def test_a_sweep_has_only_shapes_that_fp8_takes_and_as_many_as_ever(sweep: str, precision: str) -> None:
    chosen = read_sweep(sweep)
    for name in EXISTING:
        shapes = shapes_of(name, chosen, precision)
        assert all(size % SIZE_MULTIPLES[precision] == 0 for shape in shapes for size in shape)
        wanted = chosen.shapes_per_operator if name == "fp8_quantize" else chosen.shapes_per_linear
        assert len(shapes) == wanted, f"{name}: {len(shapes)} of {wanted}"


def on_cpu(*precisions: str) -> Device:
    return replace(find_device("cpu"), precisions=precisions)


def test_all_in_fp8_is_what_exists_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_device", lambda kind, threads: on_cpu("fp32", "fp8"))
    sweep = tiny_sweep(tmp_path)
    words = ["--device", "cpu", "--sweep", sweep, "--out", str(tmp_path / "r")]
    assert cli.main(["operator", "all", *words, "--precision", "fp8"]) == 0
    tables = read_tables(tmp_path / "r", "operator")
    assert {table.provenance.identity.name for table in tables} == EXISTING
    assert {read_provenance(table.path).identity.precision for table in tables} == {"fp8"}
    for table in tables:
        assert {row.status for row in table.rows} == {Status.OK}
        assert all("e4m3" in row.kernel and "e5m2" in row.kernel for row in table.rows)
    capsys.readouterr()
    assert cli.main(["operator", "gelu", *words, "--precision", "fp8"]) == 2
    assert "gelu: nothing to measure in fp8, in which there are attention_output" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch.nn.functional.scaled_mm is of 2.10 on")
def test_what_torch_refuses_is_a_row_with_its_reason(tmp_path: Path) -> None:
    sweep = read_sweep(tiny_sweep(tmp_path))
    job = Job(tmp_path, on_cpu("fp8_block"), "fp8_block", sweep)
    clock = clock_for(job.device, sweep.timing)
    for row in timed(job, catalogue()["ffn_up"], (128, 128, 128), clock).finish():
        assert row.status is Status.ERROR
        assert "scaling" in row.kernel  # torch: Invalid scaling configuration
    assert {row.status for row in timed(job, catalogue()["fp8_quantize"], (128, 128), clock).finish()} == {Status.OK}


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch.nn.functional.scaled_mm is of 2.10 on")
def test_a_refused_peak_leaves_its_precision_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microbench.system.PRODUCT_SIZES", {"cpu": (128,)})
    said: list[str] = []
    device = replace(on_cpu("fp32", "fp8", "fp8_block"), cache_bytes=2**16)
    *_, document = described(device, "here", said.append)
    assert set(document["hardware"]["gpu"]["peak_tflop_per_s"]) == {"fp32", "fp8"}
    assert said == ["the peak in fp8_block is not measured here and is left out: Invalid scaling configuration."]


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), []), ((8, 9), ["fp8"]), ((9, 0), ["fp8", "fp8_block"]), ((10, 0), ["fp8"])]
)
def test_a_gpu_has_fp8_after_what_it_is_measured_in_by_itself(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: list[str]
) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", print, raising=False)
    major, minor = capability
    properties = SimpleNamespace(major=major, minor=minor, L2_cache_size=2**20, multi_processor_count=1)
    for name, answer in {
        "is_available": True,
        "get_device_properties": properties,
        "mem_get_info": (2**30, 2**30),
        "is_bf16_supported": True,
        "get_device_name": "NVIDIA X",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    assert list(find_device("cuda").precisions) == ["bf16", "fp16", "fp32", *expected]
