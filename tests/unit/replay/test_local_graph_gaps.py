"""Gaps of streams and threads, and the critical path, of traces made by hand."""

from __future__ import annotations

from predictor.replay.critical import operator_shares
from predictor.replay.graph.gaps import GapKind, gaps
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.local_graph import EdgeKind
from predictor.replay.whatif.traced_step import joined
from tests.unit.hand_made_traces import (
    NCCL,
    HandMade,
    assert_as_measured,
    backward_on_its_thread,
    number,
    only,
    slack,
)


def test_gaps_of_a_stream_are_launch_sync_and_dependency_bound() -> None:
    made = HandMade()
    made.step(0, 2000)
    made.launch("first", (10, 20), (20, 100))
    made.call("cudaStreamSynchronize", 30, 105)
    made.launch("after sync", (110, 120), (120, 200))
    made.launch("after Python", (400, 410), (410, 500))
    made.call("cudaEventRecord", 411, 412)
    made.call("cudaStreamWaitEvent", 413, 414)
    made.launch("ncclDevKernel_AllReduce", (415, 420), (502, 800), NCCL)
    made.call("cudaStreamWaitEvent", 430, 431)
    made.launch("after all-reduce", (440, 450), (803, 900))
    local = made.graph()
    stream = local.rows.index("stream 7")
    explained = [(gap.us, gap.kind) for gap in gaps(local) if gap.row == stream]
    assert explained == [
        (20, GapKind.LAUNCH),
        (20, GapKind.LAUNCH),
        (210, GapKind.LAUNCH),
        (303, GapKind.DEPENDENCY),
        (1100, GapKind.NO_WORK),
    ]
    waited = next(gap.waited_for for gap in gaps(local) if gap.row == stream and gap.us == 303)
    assert local.tasks[waited].name == "ncclDevKernel_AllReduce"
    assert_as_measured(local)


def test_gap_with_a_late_launch_is_launch_bound_whatever_the_task_waited_for_last() -> None:
    made = HandMade()
    made.step(0, 2000)
    made.launch("quick", (10, 20), (18, 30))
    made.launch("other stream", (40, 50), (60, 1000), NCCL)
    made.call("cudaStreamWaitEvent", 960, 961)
    made.launch("late", (970, 980), (1002, 1100))
    local = made.graph()
    assert slack(local, "late", only(local, "late", EdgeKind.EVENT)) == 0
    gap = next(gap for gap in gaps(local) if gap.task == number(local, "late"))
    assert (gap.us, gap.kind) == (972, GapKind.LAUNCH)
    assert (local.tasks[gap.waited_for].name, local.tasks[gap.waited_for].start_us) == ("cudaLaunchKernel", 970)


def test_launch_that_a_waiting_thread_held_up_is_sync_bound() -> None:
    made = HandMade()
    made.step(0, 2000)
    made.launch("quick", (10, 20), (18, 30))
    made.launch("other stream", (40, 50), (60, 1000), NCCL)
    made.call("cudaDeviceSynchronize", 60, 1010)
    made.launch("late", (1020, 1030), (1028, 1100))
    local = made.graph()
    gap = next(gap for gap in gaps(local) if gap.task == number(local, "late"))
    assert gap.kind is GapKind.SYNC
    assert local.tasks[gap.waited_for].name == "cudaDeviceSynchronize"


def test_idle_thread_is_explained_by_the_thread_that_works() -> None:
    local = backward_on_its_thread().graph("cpu")
    idle = [(local.rows[gap.row], gap.start_us, gap.us, gap.kind) for gap in gaps(local)]
    assert idle == [
        ("thread 1", 300, 300, GapKind.DEPENDENCY),
        ("thread 2", 0, 300, GapKind.DEPENDENCY),
        ("thread 2", 600, 400, GapKind.NO_WORK),
    ]


def test_critical_path_is_told_by_kind_and_operator() -> None:
    made = HandMade()
    made.step(0, 500)
    made.operator("aten::linear", 10, 60)
    made.launch("gemm", (20, 30), (28, 150))
    made.launch("ncclDevKernel_AllReduce", (62, 64), (153, 253), NCCL)
    made.call("cudaDeviceSynchronize", 70, 257)
    local = made.graph()
    step = joined(global_graph([local]))
    path, _ = operator_shares(step, step.replay())
    assert {(share.operator, share.kind): share.path_us for share in path} == {
        ("Python", "host"): 10 + 243,  # before the operator, and after the wait
        ("aten::linear", "host"): 10,  # until the call
        ("aten::linear", "gap"): 8,  # from the begin of the call to gemm
        ("aten::linear", "kernel"): 122,
        ("ncclDevKernel_AllReduce", "gap"): 3,
        ("ncclDevKernel_AllReduce", "collective"): 100,
        ("cudaDeviceSynchronize", "wait"): 4,
    }
