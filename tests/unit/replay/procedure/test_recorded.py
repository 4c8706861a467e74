"""A kernel of one's own, recorded by PyTorch's profiler and analysed: its annotation, its autograd function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from predictor.replay.procedure import analysis
from predictor.replay.procedure.command import run
from predictor.replay.procedure.documents import NodeData, read_document

if TYPE_CHECKING:
    import torch

    Function = Any
else:
    torch = pytest.importorskip("torch")
    Function = torch.autograd.Function
CONFIG = """\
ops_to_track: ["qsync::linear_fp32"]
aten_op_to_bwd_mapper: {"qsync::linear_fp32": [linearfp32backward]}
bit_width_changeable_nodes: ["qsync::linear_fp32"]
grad_required_bwds: {linearfp32backward: 2}
special_aten_mapping: {"aten::linear": "qsync::linear_tf32", "qsync::linear_fp32": "qsync::linear_tf32"}
"""
LAYERS, STEPS = 2, 2


def record(path: Path) -> None:
    """Train a perceptron whose products are an autograd function of its own, and write its trace."""

    class LinearFP32(Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, data: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(data, weight)
            with torch.profiler.record_function("qsync::linear_fp32"):
                return torch.addmm(bias, data, weight.t())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            data, weight = ctx.saved_tensors
            return gradient @ weight, gradient.t() @ data, gradient.sum(0)

    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 32, generator=generator).requires_grad_() for _ in range(LAYERS)]
    biases = [torch.zeros(32).requires_grad_() for _ in range(LAYERS)]
    optimizer = torch.optim.SGD([*weights, *biases], lr=0.01)
    data = torch.randn(8, 32, generator=generator)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for _ in range(STEPS + 1):
            optimizer.zero_grad()
            hidden = data
            for weight, bias in zip(weights, biases, strict=True):
                hidden = torch.nn.functional.gelu(LinearFP32.apply(hidden, weight, bias))
            hidden.square().mean().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def test_a_recorded_kernel_of_ones_own_is_tied_to_its_backward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "traces" / "bert" / "fp32_comm_cpu.json"
    trace.parent.mkdir(parents=True)
    record(trace)
    (tmp_path / "config.yaml").write_text(CONFIG)
    line = ["--bit", "32", "--generate_mapping", "--fp32_comm_cpu", "--root", str(tmp_path)]
    assert run(analysis.parser(), analysis.answer, line) == 0, capsys.readouterr().err
    rows = read_document(tmp_path / "tmp_data" / "node_data" / "bert" / "fp32_comm_cpu.json", NodeData).nodes
    kernels = [row for row in rows if row.operator == "qsync::linear_fp32"]
    assert len(kernels) == LAYERS
    assert all(row.shapes[:3] == ((32,), (8, 32), (32, 32)) for row in kernels)
    assert all(row.forward_us > 0.0 and row.backward_us > 0.0 for row in kernels)
