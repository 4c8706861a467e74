"""What idle time of a changed step is explained by, and for whom ranks wait in collectives, from traces' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from predictor.replay.collectives import waits_between
from predictor.replay.graph.gaps import GapKind
from predictor.replay.idle import busiest_gaps
from predictor.replay.question import ReplayQuestion, answer
from tests.unit.kineto_traces import EVALUATE, NVIDIA, Event, event, write
from tests.unit.replay.test_calls import Span, launch, replay, step
from tests.unit.replay.test_launches import tie

NCCL = 20
GRADIENT = "torch::autograd::AccumulateGrad"
WEIGHT: dict[str, Any] = {"Input Dims": [[512, 512]], "Input type": ["float"]}


def collective(name: str, number: int, called: Span, ran: Span, ranks: Sequence[int], numel: int) -> list[Event]:
    """Return the operator of a collective, its launch and its kernel; times as start and duration."""
    says: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": numel,
        "Out msg nelems": numel,
        "dtype": "Float",
        "Group size": len(ranks),
        "Process Group Name": "0",
        "Process Group Ranks": str(list(ranks)),
    }
    at, lasts = called
    return [
        event("cpu_op", f"c10d::{name}_", at, lasts, **says),
        event("cuda_runtime", "cudaLaunchKernel", at + 5, 5, correlation=number),
        event("kernel", "ncclDevKernel", *ran, (0, NCCL), device=0, stream=NCCL, correlation=number, **says),
    ]


def data_parallel() -> list[Event]:
    """Return a rank of two that waits for its bucket of gradients on the host before it launches the optimizer."""
    accumulates = f"autograd::engine::evaluate_function: {GRADIENT}"
    return [
        step(700),
        event("cpu_op", "aten::mm", 0, 40, **tie(1, 0)),
        *launch("gemm", 1, (10, 5), (20, 30)),
        event("cpu_op", EVALUATE, 60, 30, **tie(1, 1)),
        *launch("gemm_backward", 2, (65, 5), (75, 30)),
        event("cpu_op", accumulates, 95, 90),
        event("cpu_op", GRADIENT, 96, 88, **WEIGHT),
        *launch("copy_gradient", 3, (100, 5), (110, 10)),
        *collective("allreduce", 4, (130, 40), (150, 300), (0, 1), 512 * 512),
        event("cuda_runtime", "cudaDeviceSynchronize", 200, 255),
        event("user_annotation", "Optimizer.step#SGD.step", 470, 60),
        *launch("sgd", 5, (480, 5), (490, 20)),
        event("cuda_runtime", "cudaDeviceSynchronize", 600, 10),
    ]


@pytest.mark.parametrize("change", ["bucket_mb=25", "communication*=0.9", "kernel:gemm*=0.5"])
def test_a_launch_after_a_wait_for_changed_buckets_is_sync_bound(change: str, tmp_path: Path) -> None:
    job = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}
    path = write(tmp_path / "trace.json", data_parallel(), **NVIDIA, **job)
    answered = answer(ReplayQuestion((str(path),), None, (change,)))
    for shown in (answered.before, answered.shown):
        (gaps,) = shown.gaps
        assert gaps.row == "stream 7"
        assert gaps.us[GapKind.SYNC] > 300


def test_without_its_wait_the_stream_is_launch_bound(tmp_path: Path) -> None:
    events = [
        step(400),
        *launch("gemm", 1, (10, 5), (20, 100)),
        event("cpu_op", "aten::item", 30, 100),
        event("cuda_runtime", "cudaStreamSynchronize", 32, 95),
        *launch("next", 2, (250, 5), (260, 10)),
        event("cuda_runtime", "cudaDeviceSynchronize", 300, 5),
    ]
    shown = replay(tmp_path, events, "operator:aten::item=remove", "kernel:gemm*=0.1").shown
    (gaps,) = busiest_gaps(shown.step, shown.replay.spans)
    assert gaps.us[GapKind.SYNC] == 0
    assert gaps.us[GapKind.LAUNCH] > 100


def test_a_root_waits_for_those_that_its_broadcast_needs(tmp_path: Path) -> None:
    begins, lasts = (20, 30, 220), (60, 50, 40)  # of rank 2 after the others have ended
    for rank, (begin, us) in enumerate(zip(begins, lasts, strict=True)):
        events = [
            step(400),
            *collective("allreduce", 1, (0, 10), (10, 5), (0, 1, 2), 4096),
            *collective("broadcast", 2, (begin - 8, 10), (begin, us), (0, 1, 2), 4096),
            event("cuda_runtime", "cudaDeviceSynchronize", 300, 5),
        ]
        job = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 3}}
        write(tmp_path / f"rank-{rank}.json", events, **NVIDIA, **job, baseTimeNanoseconds=0)
    replayed = answer(ReplayQuestion((str(tmp_path / "rank-*.json"),))).before
    waits = waits_between(replayed.step, replayed.replay.spans)
    assert [(wait.rank, wait.waited_for) for wait in waits] == [(0, 1)]
    assert waits[0].us == pytest.approx(10)
