"""On a GPU: fp8 products are those of the numbers that were quantised, forward and backward, in both scalings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.call import Maker
from microbench.device import find_device
from microbench.table import Status, read_tables
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.work import FP8_PRECISIONS
from tests.unit.microbench.test_profile import tiny_sweep

# The last: K / 128 is no multiple of four, forward and for the gradient of x, so that scales are padded.
SHAPES = [(512, 1024, 2048), (256, 128, 128), (384, 640, 896)]


def device_with(precision: str) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    if precision not in find_device("cuda").precisions:
        pytest.skip(f"{torch.cuda.get_device_name(0)} or torch {torch.__version__} has no {precision}")
    return torch


@pytest.mark.gpu
@pytest.mark.parametrize("precision", FP8_PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_quantised_numbers(precision: str, shape: tuple[int, int, int]) -> None:
    torch = device_with(precision)
    from microbench import fp8
    from tests.unit.microbench.test_fp8 import gap, number

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    m, k, n = shape
    make = Maker("cuda", precision)
    values, gradients = fp8.formats(precision)
    originals = make.constant(m, k), make.constant(n, k), make.constant(m, n)
    layer = fp8.Linear(
        fp8.quantise(originals[0], values, precision),
        fp8.quantise_weight(originals[1], values, precision),
        fp8.quantise(originals[2], gradients, precision),
    )
    found = (layer.forward(), *layer.backward())
    x, weight, gradient = (number(both.straight) for both in layer)
    # Groups lie along the summed size, so the transposed copies hold other numbers than the straight ones.
    x_t, weight_t, gradient_t = (number(both.transposed) for both in layer)
    exact = (x @ weight.t(), gradient @ weight_t.t(), gradient_t @ x_t.t())
    x, weight, gradient = (matrix.float() for matrix in originals)
    unrounded = (x @ weight.t(), gradient @ weight, gradient.t() @ x)
    for product, expected, original in zip(found, exact, unrounded, strict=True):
        assert product.dtype == torch.bfloat16
        assert gap(product, expected) < 0.02  # bf16, and fast accumulation in 14 bits forward
        assert gap(product, original) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", FP8_PRECISIONS)
def test_every_fp8_operator_is_measured(precision: str, tmp_path: Path) -> None:
    device_with(precision)
    words = [
        "--device",
        "cuda",
        "--sweep",
        tiny_sweep(tmp_path),
        "--out",
        str(tmp_path / "r"),
        "--precision",
        precision,
    ]
    assert cli.main(["operator", "all", *words]) == 0
    tables = read_tables(tmp_path / "r", "operator")
    assert {t.provenance.identity.name for t in tables} == {
        n for n, o in catalogue().items() if precision in o.precisions
    }
    for table in tables:
        for row in table.rows:
            assert row.status is Status.OK, f"{table.path.name} {row.shape}: {row.kernel}"
            assert row.kernel_samples_us, f"{table.path.name} {row.shape}: the host was never ahead of the device"
