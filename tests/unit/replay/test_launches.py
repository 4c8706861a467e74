"""Kernels that an annotation launches without an operator belong to it: their pass, changes of them, records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.replay.breakdown import FORWARD, OPTIMIZER, OTHER
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.local_graph import TaskKind
from predictor.replay.record import step_records
from predictor.replay.whatif.batch_split import per_sample, scaled_place
from predictor.replay.whatif.mixed import Place
from tests.unit.kineto_traces import EVALUATE, NVIDIA, Event, event, public_trace, write
from tests.unit.replay.test_calls import launch, replay, step

FUSED = "Optimizer.step#FusedAdam.step"


def tie(sequence: int, thread: int) -> dict[str, Any]:
    """Return what ties an operator to its backward."""
    return {"Sequence number": sequence, "Fwd thread id": thread}


def fused_optimizer() -> list[Event]:
    """Return a step whose optimizer launches two kernels itself, and a module one in its forward pass."""
    return [
        step(500),
        event("user_annotation", "block", 0, 60),
        event("cpu_op", "aten::mm", 0, 30, **tie(1, 0)),
        *launch("gemm", 1, (10, 8), (20, 50)),
        *launch("triton_gelu", 2, (40, 8), (71, 20)),
        event("cpu_op", "aten::sum", 62, 8, **tie(2, 0)),
        event("cpu_op", EVALUATE, 90, 8, **tie(2, 1)),
        event("cpu_op", EVALUATE, 100, 50, **tie(1, 1)),
        *launch("gemm_backward", 3, (110, 8), (120, 100)),
        event("user_annotation", FUSED, 200, 100),
        *launch("multi_tensor_apply_kernel", 4, (210, 8), (221, 40)),
        *launch("multi_tensor_apply_kernel", 5, (240, 8), (262, 60)),
        *launch("loose", 6, (350, 8), (360, 5)),
        event("cuda_runtime", "cudaDeviceSynchronize", 390, 10),
    ]


def test_their_pass_is_that_of_the_annotation(tmp_path: Path) -> None:
    (parts,) = replay(tmp_path, fused_optimizer()).before.parts
    assert parts.parts[OPTIMIZER] == pytest.approx(100)
    assert parts.parts[FORWARD] == pytest.approx(70)
    assert parts.parts[OTHER] == pytest.approx(5)


@pytest.mark.parametrize("pattern", ["Optimizer.step*", FUSED, "*FusedAdam*"])
def test_they_are_changed_with_the_annotation(pattern: str, tmp_path: Path) -> None:
    answered = replay(tmp_path, fused_optimizer(), f"operator:{pattern}=remove")
    (applied,) = answered.applied
    assert (applied.touched.before_us, applied.touched.after_us) == pytest.approx((100 + 16, 0))
    assert answered.shown.parts[0].parts[OPTIMIZER] == 0


def test_every_microsecond_is_recorded_once(tmp_path: Path) -> None:
    answered = replay(tmp_path, fused_optimizer())
    (record,) = step_records(answered.before.step)
    passes = {row.name: row.step_pass for row in record.operators}
    recorded = {row.name: list(row.samples_us) for row in record.operators}
    assert (passes["multi_tensor_apply_kernel"], passes["triton_gelu"]) == ("optimizer", "forward")
    assert recorded["multi_tensor_apply_kernel"] == pytest.approx([40, 60])
    assert recorded["triton_gelu"] == pytest.approx([20])
    assert recorded["loose"] == pytest.approx([5])
    assert sum(us for row in record.operators for us in row.samples_us) == pytest.approx(50 + 20 + 100 + 100 + 5)


def test_the_optimizer_does_not_take_longer_with_more_samples(tmp_path: Path) -> None:
    local = local_graph(read_trace(write(tmp_path / "trace.json", fused_optimizer(), **NVIDIA)))
    doubled = scaled_place(Place(global_graph([local]), 0), per_sample(2.0)).local()
    lasts = {task.name: task.duration_us for task in doubled.tasks if task.kind is TaskKind.KERNEL}
    assert lasts["multi_tensor_apply_kernel"] == pytest.approx(60)
    assert lasts["triton_gelu"] == pytest.approx(40)


def test_a_fused_optimizer_of_a_public_trace_is_one() -> None:
    local = local_graph(read_trace(public_trace("hta_trace_diff_control.json.gz")))
    fused = [operator for operator in local.operators if operator.name == FUSED]
    assert {operator.step_pass for operator in fused} == {"optimizer"}
    assert sum(operator.us for operator in fused) == pytest.approx(1266, rel=0.02)
