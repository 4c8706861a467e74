"""Fused kernels and gradient products compute what the plain operations do, are compiled once, and say why not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from microbench import cli
from microbench.call import Call, Maker
from microbench.compiled import fused
from microbench.kernels import build_function
from microbench.survey.stages import ranked
from microbench.sweep import SWEEPS
from microbench.table import Status, read_table
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import linear_gradients

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
FUSED = ("fused_cross_entropy", "fused_rms_norm", "fused_rope", "fused_swiglu")
PRODUCTS = ("linear_dgrad", "linear_wgrad", "linear_wgrad_fp32")
# Shapes of unlike sizes, so that a kernel compiled for the first is not right by chance for the second.
SHAPES = {
    "fused_cross_entropy": ((48, 200), (31, 130)),
    "fused_rms_norm": ((48, 200), (31, 130)),
    "fused_rope": ((48, 3, 16), (31, 5, 24)),
    "fused_swiglu": ((48, 200), (31, 130)),
}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: install g++")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            raise torch._dynamo.exc.TorchDynamoException("no working C++ compiler found\nand a trace")

        return run

    monkeypatch.setattr(torch, "compile", fail)


@pytest.fixture
def compiled_before() -> Callable[[], int]:
    """How many graphs were compiled since the test began."""
    import torch._dynamo.utils as counted

    torch._dynamo.reset()
    start = counted.counters["stats"]["unique_graphs"]
    return lambda: int(counted.counters["stats"]["unique_graphs"] - start)


def plain(name: str, call: Call, shape: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients in fp64, written without the kernel's own function."""
    leaves = [x.detach().double().requires_grad_() for x in call.inputs]
    if name == "fused_rms_norm":
        x, weight = leaves
        outputs = [x / torch.sqrt((x * x).sum(-1, keepdim=True) / shape[1] + 1e-6) * weight]
    elif name == "fused_swiglu":
        gate, up = leaves
        outputs = [gate / (1 + torch.exp(-gate)) * up]
    elif name == "fused_rope":
        tokens, _, width = shape
        turns = torch.exp(1j * torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(width // 2) * 2.0 / width))
        outputs = []
        for leaf in leaves:
            rotated = torch.complex(leaf[..., : width // 2], leaf[..., width // 2 :]) * turns[:, None, :]
            outputs.append(torch.cat((rotated.real, rotated.imag), dim=-1))
    else:
        (logits,) = leaves
        targets = torch.tensor(_targets(call))
        outputs = [(logits.exp().sum(-1).log() - logits[torch.arange(shape[0]), targets]).mean()]
    return outputs, leaves


def _targets(call: Call) -> list[int]:
    """The targets that a call of the loss was built with."""
    cells = call.forward.__closure__ or ()
    (found,) = [c.cell_contents for c in cells if getattr(c.cell_contents, "dtype", None) is torch.int64]
    return [int(target) for target in found]


@needs_compiler
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_kernel_computes_what_plain_operations_do_and_is_compiled_once(
    name: str, compiled_before: Callable[[], int]
) -> None:
    torch.manual_seed(0)
    for shape in SHAPES[name]:
        call = build_function(name)(shape, Maker("cpu", "fp32"))
        assert call.kernel == "torch.compile, C++, dynamic sizes"
        found = call.forward()
        outputs = found if isinstance(found, tuple) else (found,)
        wanted, leaves = plain(name, call, shape)
        seeds = [torch.randn_like(tensor) for tensor in outputs]
        for _ in range(2):  # as it is timed: the graph is kept
            gradients = torch.autograd.grad(outputs, call.inputs, seeds, retain_graph=True)
        expected = torch.autograd.grad(wanted, leaves, [seed.double() for seed in seeds])
        for ours, theirs in zip((*outputs, *gradients), (*wanted, *expected), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-4)
    assert compiled_before() == 1, "dynamic sizes: one graph for all shapes"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_products_are_those_of_autograd(precision: str) -> None:
    """A layer of 40 tokens, 24 inputs and 56 outputs; each kernel's own operands give autograd's gradients."""
    torch.manual_seed(0)
    make = Maker("cpu", precision)
    of_data, of_weight = linear_gradients((40, 24, 56))
    for name, shape in zip(PRODUCTS[:2], (of_data, of_weight), strict=True):
        operands: list[Any] = []
        call = build_function(name)(shape, recording(make, operands))
        gradient, other = operands
        x = other if name == "linear_wgrad" else torch.randn(40, 24, dtype=make.dtype)
        weight = torch.randn(56, 24, dtype=make.dtype) if name == "linear_wgrad" else other.detach()
        x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
        by_autograd = torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), gradient)
        torch.testing.assert_close(call.forward(), by_autograd[name == "linear_wgrad"])


def recording(make: Maker, operands: list[Any]) -> Any:
    """A maker that notes what it makes."""

    class Noting:
        device, precision, dtype = make.device, make.precision, make.dtype

        def constant(self, *sizes: int, dtype: Any = None) -> Any:
            operands.append(make.constant(*sizes, dtype=dtype))
            return operands[-1]

        def weight(self, *sizes: int) -> Any:
            operands.append(make.weight(*sizes))
            return operands[-1]

    return Noting()


def test_weight_gradients_add_up_in_fp32() -> None:
    operands: list[Any] = []
    _, shape = linear_gradients((40, 24, 56))
    call = build_function("linear_wgrad_fp32")(shape, recording(Maker("cpu", "bf16"), operands))
    gradient, x = operands[:2]
    for _ in range(3):
        total = call.forward()
    assert total.dtype is torch.float32
    torch.testing.assert_close(total, 3 * (gradient.float().t() @ x.float()), rtol=0.02, atol=0.2)
    assert call.kernel == "torch mm, then add_ to the fp32 sum", "a processor has no product with a wider sum"
    assert catalogue()["linear_wgrad_fp32"].precisions == ("fp16", "bf16")


def test_without_a_compiler_an_operator_costs_itself_and_is_compiled_no_second_time(
    uncompiled: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load((SWEEPS / "smoke.yaml").read_text()) | {"shapes_per_operator": 4}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    words = ["operator", "fused_swiglu", "residual_add", "--device", "cpu", "--precision", "fp32"]
    assert cli.main([*words, "--sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "r")]) == 1
    said = capsys.readouterr().err
    assert "error: fused_swiglu: no call could be timed: no working C++ compiler found" in said
    statuses = {
        name: {row.status for row in read_table(tmp_path / f"r/operator/{name}_fp32.0of1.csv").rows}
        for name in ("fused_swiglu", "residual_add")
    }
    assert statuses == {"fused_swiglu": {Status.ERROR}, "residual_add": {Status.OK}}


def test_a_fault_is_kept_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            tried.append(len(tried))
            raise torch._dynamo.exc.TorchDynamoException("no compiler")

        return run

    monkeypatch.setattr(torch, "compile", fail)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no compiler"):
            fused(plain)()
    assert tried == [0]


def test_a_survey_measures_them_among_the_operators_of_a_transformer() -> None:
    assert set(FUSED + PRODUCTS) <= set(ranked("bf16").transformer)
    assert not set(FUSED + PRODUCTS) & set(ranked("fp8").transformer)
