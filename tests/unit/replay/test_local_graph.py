"""Local graphs of traces made by hand: every kind of edge, with the times that follow from it."""

from __future__ import annotations

import pytest

from predictor.replay.files.events import Category
from predictor.replay.graph.gaps import GapKind, gaps
from predictor.replay.graph.local_graph import EdgeKind, TaskKind
from tests.unit.hand_made_traces import (
    COMPUTE,
    ENGINE,
    MAIN,
    NCCL,
    WORKER,
    HandMade,
    assert_as_measured,
    backward_on_its_thread,
    edges,
    end,
    longer,
    number,
    only,
    slack,
    task,
)


def test_thread_is_cut_into_tasks_of_the_innermost_operator() -> None:
    made = HandMade()
    made.step(0, 100)
    made.operator("aten::linear", 10, 60)
    made.operator("aten::addmm", 20, 50)
    made.annotation("loss", 70, 90)
    local = made.graph("cpu")
    cut = [(task.name, task.start_us, task.duration_us) for task in local.tasks[1:]]
    assert cut == [
        ("Python", 0, 10),
        ("aten::linear", 10, 10),
        ("aten::addmm", 20, 30),
        ("aten::linear", 50, 10),
        ("Python", 60, 10),
        ("loss", 70, 20),
        ("Python", 90, 10),
    ]
    owners = [local.operators[task.operator].name for task in local.tasks if task.operator >= 0]
    assert owners == ["aten::linear", "aten::addmm", "aten::linear"]
    linear, addmm = local.operators
    assert (linear.us, addmm.us, addmm.parent) == (50, 30, 0)
    assert set(addmm.tasks) < set(linear.tasks)
    assert local.step_us == 100
    assert_as_measured(local)


def test_kernel_follows_the_call_that_launched_it() -> None:
    made = HandMade()
    made.step(0, 200)
    made.operator("aten::mm", 10, 40)
    made.launch("gemm", (20, 30), (28, 150))
    local = made.graph()
    edge = only(local, "gemm", EdgeKind.LAUNCH)
    assert (local.tasks[edge.task].name, end(local, edge.task), edge.lag_us) == ("aten::mm", 20, 8)
    assert local.operators[0].us == 122
    assert_as_measured(local)
    assert longer(local, "Python", 5)["gemm"] == 33


def test_kernels_of_one_stream_follow_each_other_and_their_launches_have_slack() -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("first", (10, 15), (18, 100))
    made.launch("second", (20, 25), (101, 200))
    made.launch("third", (30, 35), (201, 300))
    local = made.graph()
    assert only(local, "second", EdgeKind.ROW).lag_us == 1
    launch = only(local, "second", EdgeKind.LAUNCH)
    assert launch.lag_us == 8  # as typical: the first one shows it
    assert slack(local, "second", launch) == 73
    assert_as_measured(local)
    assert longer(local, "first", 50)["third"] == 251


def test_recorded_event_ties_two_streams() -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("produce", (10, 15), (18, 100))
    record = made.call("cudaEventRecord", 20, 22)
    made.launch("unrelated", (25, 30), (101, 180))
    wait = made.call("cudaStreamWaitEvent", 35, 36)
    made.sync(
        "Stream Wait Event",
        wait,
        stream=20,
        wait_on_stream=7,
        wait_on_cuda_event_record_corr_id=record,
    )
    made.launch("consume", (40, 45), (103, 200), NCCL)
    local = made.graph()
    edge = only(local, "consume", EdgeKind.EVENT)
    assert (local.tasks[edge.task].name, edge.lag_us) == ("produce", 3)
    assert_as_measured(local)
    assert longer(local, "produce", 50)["consume"] == 153
    assert longer(local, "unrelated", 50)["consume"] == 103


def test_older_traces_do_not_name_the_event_and_the_order_of_calls_does() -> None:
    made = HandMade()
    made.step(0, 900)
    made.launch("gradient", (10, 15), (18, 100))
    made.call("cudaStreamWaitEvent", 20, 21)
    made.launch("ncclKernel_AllReduce_RING_LL_Sum_float", (25, 30), (102, 400), NCCL)
    made.call("cudaStreamWaitEvent", 40, 41)
    made.launch("update", (45, 50), (402, 500))
    local = made.graph()
    assert task(local, "ncclKernel_AllReduce_RING_LL_Sum_float").kind is TaskKind.COLLECTIVE
    before = only(local, "ncclKernel_AllReduce_RING_LL_Sum_float", EdgeKind.EVENT)
    after = only(local, "update", EdgeKind.EVENT)
    assert local.tasks[before.task].name == "gradient"
    assert local.tasks[after.task].name == "ncclKernel_AllReduce_RING_LL_Sum_float"
    assert_as_measured(local)


def test_late_kernel_waits_for_the_other_stream_that_had_just_ended() -> None:
    made = HandMade()
    made.step(0, 900)
    made.launch("gradient", (10, 15), (18, 300))
    made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (25, 30), (304, 400), NCCL)
    local = made.graph()
    assert only(local, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", EdgeKind.EVENT).lag_us == 4
    assert local.facts["inferred_events"] == 1
    assert_as_measured(local)


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "hipDeviceSynchronize", "cudaStreamSynchronize"])
def test_thread_waits_in_a_synchronizing_call(call: str) -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("kernel", (10, 15), (18, 300))
    made.call(call, 20, 310)
    local = made.graph()
    wait = task(local, call)
    assert (wait.kind, wait.start_us, wait.duration_us) == (TaskKind.WAIT, 300, 10)
    assert local.tasks[only(local, call, EdgeKind.SYNC).task].name == "kernel"
    assert_as_measured(local)
    assert longer(local, "kernel", 100)["step"] == 600


def test_call_that_waited_for_nothing_keeps_its_time() -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("kernel", (10, 15), (18, 40))
    made.call("cudaDeviceSynchronize", 100, 110)
    local = made.graph()
    assert (task(local, "cudaDeviceSynchronize").start_us, task(local, "cudaDeviceSynchronize").duration_us) == (
        100,
        10,
    )
    assert slack(local, "cudaDeviceSynchronize", only(local, "cudaDeviceSynchronize", EdgeKind.SYNC)) == 60
    assert_as_measured(local)
    assert longer(local, "kernel", 100)["cudaDeviceSynchronize"] == 140


def test_event_synchronize_waits_for_the_recorded_event_only() -> None:
    made = HandMade()
    made.step(0, 900)
    made.launch("awaited", (10, 15), (18, 300))
    record = made.call("cudaEventRecord", 20, 22)
    made.launch("later", (25, 30), (301, 600))
    wait = made.call("cudaEventSynchronize", 40, 305)
    made.sync("Event Sync", wait, stream=-1, wait_on_stream=7, wait_on_cuda_event_record_corr_id=record)
    local = made.graph()
    assert local.tasks[only(local, "cudaEventSynchronize", EdgeKind.SYNC).task].name == "awaited"
    assert task(local, "cudaEventSynchronize").start_us == 300
    assert_as_measured(local)


def test_pageable_copy_blocks_its_thread() -> None:
    made = HandMade()
    made.step(0, 900)
    made.launch("kernel", (10, 15), (18, 300))
    made.launch(
        "Memcpy DtoH (Device -> Pageable)",
        (20, 312),
        (301, 305),
        category=Category.COPY,
        call="cudaMemcpyAsync",
    )
    local = made.graph()
    wait = task(local, "cudaMemcpyAsync")
    assert (wait.kind, wait.start_us, wait.duration_us) == (TaskKind.WAIT, 305, 7)
    assert_as_measured(local)
    assert longer(local, "kernel", 100)["step"] == 1000


def test_threads_wake_each_other_around_the_backward_pass() -> None:
    local = backward_on_its_thread().graph("cpu")
    begin = next(
        edge for edge in local.tasks[number(local, "autograd::engine::evaluate_function: AddmmBackward0")].after
    )
    assert (begin.kind, local.tasks[begin.task].name, end(local, begin.task)) == (EdgeKind.WAKE, "Python", 300)
    resumed = next(task for task in local.tasks if task.start_us == 600)
    (back,) = [edge for edge in resumed.after if edge.kind is EdgeKind.WAKE]
    assert (resumed.name, local.rows[resumed.row]) == ("Python", "thread 1")
    assert local.tasks[back.task].name == "autograd::engine::evaluate_function: AddmmBackward0"
    assert_as_measured(local)
    assert longer(local, "aten::mm", 50)["step"] == 1050
    assert longer(local, "aten::linear", 50)["step"] == 1050


def test_gloo_collective_follows_its_call_and_ends_the_wait() -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 100, 150, forward_thread=1)
    made.operator("torch::autograd::AccumulateGrad", 110, 140, forward_thread=1)
    made.operator("c10d::allreduce_", 160, 170, dims=[[[1000]], []], types=["TensorList", ""])
    made.annotation("gloo:all_reduce", 180, 500, WORKER, dims=[[1000]], types=["float"])
    made.operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 560, 600)
    local = made.graph("cpu")
    (collective,) = local.collectives
    assert (collective.name, collective.size_bytes, collective.order) == ("all_reduce", 4000, 0)
    assert [local.operators[gradient].name for gradient in collective.gradients] == ["torch::autograd::AccumulateGrad"]
    launch = only(local, "gloo:all_reduce", EdgeKind.LAUNCH)
    assert (end(local, launch.task), launch.lag_us) == (160, 20)
    gradient = only(local, "gloo:all_reduce", EdgeKind.GRADIENT)
    assert local.tasks[gradient.task].name == "torch::autograd::AccumulateGrad"
    resumed = next(task for task in local.tasks if task.start_us == 500)
    assert [edge.kind for edge in resumed.after] == [EdgeKind.ROW, EdgeKind.SYNC]
    assert_as_measured(local)
    assert longer(local, "gloo:all_reduce", 100)["step"] == 1100
    assert gaps(local)[0][:4] == (0, 170, 330, GapKind.SYNC)


def test_collective_that_ended_before_it_was_awaited_delays_only_when_it_lasts_longer() -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 100, 150, forward_thread=1)
    made.operator("c10d::allreduce_", 160, 170, dims=[[[1000]], []])
    made.annotation("gloo:all_reduce", 180, 300, WORKER, dims=[[1000]])
    made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 200, 600, forward_thread=1)
    made.operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 610, 700)
    local = made.graph("cpu")
    assert_as_measured(local)
    assert longer(local, "gloo:all_reduce", 299)["step"] == 1000
    assert longer(local, "gloo:all_reduce", 400)["step"] == 1100


def test_nccl_bucket_knows_its_group_and_gradients() -> None:
    made = HandMade()
    made.step(0, 2000)
    made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 300, 340, ENGINE)
    made.operator("torch::autograd::AccumulateGrad", 305, 335, ENGINE)
    made.launch("copy", (310, 315), (320, 400), row=ENGINE)
    made.operator("c10d::allreduce_", 345, 395, ENGINE)
    made.operator(
        "record_param_comms",
        350,
        390,
        ENGINE,
        collective_name="allreduce",
        dtype="BFloat16",
        in_msg_nelems=500,
        out_msg_nelems=500,
    )
    made.events[-1].args.update({"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"})  # type: ignore[attr-defined]
    made.call("cudaStreamWaitEvent", 355, 356, ENGINE)
    made.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", (360, 370), (403, 900), NCCL, ENGINE)
    local = made.graph()
    (collective,) = local.collectives
    assert (collective.name, collective.size_bytes) == ("all_reduce", 1000)
    assert (collective.group, collective.group_ranks) == ("0", (0, 1, 2, 3))
    assert len(collective.gradients) == 1
    event = only(local, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", EdgeKind.EVENT)
    assert (local.tasks[event.task].name, event.lag_us) == ("copy", 3)
    assert_as_measured(local)


def test_kernels_of_the_step_before_delay_those_of_this_one() -> None:
    made = HandMade()
    made.step(0, 100, 1)
    made.launch("long", (10, 15), (20, 250))
    made.step(100, 200, 2)
    made.launch("own", (110, 115), (252, 290))
    local = made.graph(step=1)
    carried = task(local, "earlier steps")
    assert (carried.start_us, carried.duration_us) == (0, 150)
    assert (local.step_us, local.facts["host_us"], local.facts["carried_us"]) == (190, 100, 150)
    assert local.begin_us == 1100
    assert_as_measured(local)
    first = made.graph(step=0)
    assert (first.step_us, first.facts["host_us"], first.facts["gpu_end_us"]) == (250, 100, 250)


def test_overlapping_kernels_of_one_stream_are_put_on_lanes() -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("first", (10, 20), (30, 101))
    made.launch("rounded", (22, 25), (100, 200))
    made.launch("beside", (26, 29), (120, 300))
    local = made.graph()
    assert local.rows == ["thread 1", "stream 7", "stream 7, lane 2"]
    assert task(local, "first").duration_us == 70
    assert local.tasks[only(local, "beside", EdgeKind.ROW).task].name == "first"
    assert_as_measured(local)


def test_call_that_works_before_it_launches_is_cut_where_it_launches() -> None:
    made = HandMade()
    made.step(0, 9000)
    made.launch("quick", (10, 18), (20, 30))
    made.launch("loaded first", (100, 6100), (6095, 6200))
    local = made.graph()
    edge = only(local, "loaded first", EdgeKind.LAUNCH)
    assert (local.tasks[edge.task].name, end(local, edge.task), edge.lag_us) == ("cudaLaunchKernel", 6085, 10)
    assert_as_measured(local)


def test_side_thread_without_a_reason_moves_with_the_main_thread() -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("aten::mm", 100, 500)
    made.call("cudaHostAlloc", 600, 650, WORKER)
    local = made.graph("cpu")
    wake = only(local, "cudaHostAlloc", EdgeKind.WAKE)
    assert local.tasks[wake.task].name == "aten::mm"
    assert_as_measured(local)


def test_step_without_a_gpu_or_a_thread_is_a_graph_too() -> None:
    only_kernels = HandMade()
    only_kernels.events = []
    only_kernels._add("kernel", Category.KERNEL, COMPUTE, 5, 20)
    only_kernels._add("kernel", Category.KERNEL, COMPUTE, 30, 40)
    local = only_kernels.graph()
    assert local.facts["unlaunched_gpu_tasks"] == 2
    assert_as_measured(local)
    assert MAIN not in {event.row for event in only_kernels.events}
    assert edges(local, "kernel", EdgeKind.ROW, 1)[0].lag_us == 10


def test_launch_that_finds_the_queue_full_waits_for_the_gpu() -> None:
    made = HandMade()
    made.step(0, 70_000)
    for place in range(600):
        made.launch(f"kernel {place}", (10 * place, 10 * place + 5), (20 + 100 * place, 119 + 100 * place))
    made.launch("one more", (6000, 7125), (60_020, 60_100))
    local = made.graph()
    wait = task(local, "cudaLaunchKernel", 600)
    assert (wait.kind, wait.start_us, wait.duration_us) == (TaskKind.WAIT, 7119, 6)
    assert local.tasks[only(local, "cudaLaunchKernel", EdgeKind.SYNC, 600).task].name == "kernel 70"
    assert_as_measured(local)


def test_parts_of_a_collective_on_its_thread_are_no_tasks() -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("c10d::_allgather_base_", 100, 120, dims=[[2000], [1000]])
    made.annotation("gloo:all_gather", 130, 400, WORKER, dims=[[1000]])
    made.operator("aten::copy_", 390, 398, WORKER)
    made.operator("c10d::_reduce_scatter_base_", 600, 620, dims=[[500], [1000]])
    made.annotation("gloo:all_reduce", 630, 700, WORKER, dims=[[1000]])
    local = made.graph("cpu")
    assert "aten::copy_" not in {operator.name for operator in local.operators}
    assert [collective.name for collective in local.collectives] == ["all_gather", "reduce_scatter"]
    assert [local.operators[local.tasks[collective.task].operator].name for collective in local.collectives] == [
        "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_",
    ]
    assert_as_measured(local)


def test_gradients_of_micro_batches_that_are_not_reduced_are_in_no_bucket() -> None:
    made = HandMade()
    made.step(0, 2000)
    for sequence, start in enumerate((0, 1000), start=1):
        made.operator("aten::mul", start + 100, start + 150, sequence=sequence, forward_thread=0)
        made.operator("MulBackward0", start + 200, start + 250, sequence=sequence, forward_thread=1)
        made.operator("torch::autograd::AccumulateGrad", start + 300, start + 350, forward_thread=1)
    made.operator("c10d::allreduce_", 1400, 1410, dims=[[[8]]])
    made.annotation("gloo:all_reduce", 1420, 1500, WORKER, dims=[[8]])
    local = made.graph("cpu")
    ((gradient,),) = [collective.gradients for collective in local.collectives]
    assert local.tasks[local.operators[gradient].tasks[0]].start_us == 1300


def test_collectives_are_counted_in_the_order_in_which_they_were_given() -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("c10d::allreduce_", 100, 110, dims=[[[8]]])
    made.operator("c10d::allreduce_", 120, 130, dims=[[[9]]])
    made.annotation("gloo:all_reduce", 150, 300, WORKER, dims=[[9]], types=["float"])
    made.annotation("gloo:all_reduce", 310, 400, WORKER, dims=[[8]], types=["float"])
    local = made.graph("cpu")
    assert [(collective.size_bytes, collective.order) for collective in local.collectives] == [(36, 1), (32, 0)]
