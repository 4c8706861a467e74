"""Traced operators: nesting, passes, the forward operator of a backward one, shapes, scopes, times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.replay.files.collective_names import collective_name, is_collective
from predictor.replay.files.events import Arrow
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from tests.unit.hand_made_traces import ENGINE, MAIN, HandMade


def operator(local: LocalGraph, name: str, occurrence: int = 0) -> TracedOperator:
    return [operator for operator in local.operators if operator.name == name][occurrence]


def forward_name(local: LocalGraph, name: str) -> str:
    forward = operator(local, name).forward
    return "" if forward == NO_OPERATOR else local.operators[forward].name


def training_step(backward_row: int) -> HandMade:
    """A linear layer and a loss, forward and backward, and an optimizer; autograd on a given thread."""
    made = HandMade()
    made.step(0, 1000)
    made.annotation("load", 5, 40)
    made.operator("aten::to", 10, 30)
    made.annotation("model", 50, 190)
    made.operator("aten::linear", 60, 120, sequence=4, dims=[[8, 16], [32, 16], [32]], types=["float"] * 3)
    made.operator("aten::t", 62, 70, sequence=4)
    made.operator("aten::transpose", 63, 69, sequence=4)
    made.operator("aten::addmm", 75, 118, sequence=5)
    made.operator("aten::mse_loss", 130, 180, sequence=6)
    made.operator("aten::ones_like", 200, 205)
    start = 300
    for node, sequence, inner in (
        ("MseLossBackward0", 6, "aten::mse_loss_backward"),
        ("AddmmBackward0", 5, "aten::mm"),
        ("TBackward0", 4, "aten::t"),
    ):
        made.operator(
            f"autograd::engine::evaluate_function: {node}",
            start,
            start + 50,
            backward_row,
            sequence=sequence,
            forward_thread=1,
        )
        made.operator(node, start + 5, start + 45, backward_row, sequence=sequence, forward_thread=1)
        made.operator(inner, start + 10, start + 40, backward_row)
        start += 60
    made.operator(
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start, start + 20, backward_row
    )
    made.annotation("Optimizer.step#SGD.step", 600, 800)
    made.operator("aten::add_", 610, 700)
    made.operator("aten::item", 900, 910)
    return made


@pytest.mark.parametrize("row", [MAIN, ENGINE])
def test_passes_are_known_wherever_autograd_runs(row: int) -> None:
    local = training_step(row).graph("cpu")
    passes = {operator.name: operator.step_pass for operator in local.operators if operator.parent == NO_OPERATOR}
    assert passes == {
        "aten::to": "other",
        "aten::linear": "forward",
        "aten::mse_loss": "forward",
        "aten::ones_like": "other",
        "autograd::engine::evaluate_function: MseLossBackward0": "backward",
        "autograd::engine::evaluate_function: AddmmBackward0": "backward",
        "autograd::engine::evaluate_function: TBackward0": "backward",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad": "backward",
        "aten::add_": "optimizer",
        "aten::item": "other",
    }
    assert operator(local, "aten::addmm").step_pass == "forward"
    assert operator(local, "aten::mm").step_pass == "backward"


def test_backward_operators_are_tied_to_forward_ones_by_sequence_number_and_name() -> None:
    local = training_step(ENGINE).graph("cpu")
    assert forward_name(local, "AddmmBackward0") == "aten::addmm"
    assert forward_name(local, "aten::mm") == "aten::addmm"  # inside of the backward one
    assert forward_name(local, "TBackward0") == "aten::t"  # not the last with its number, but of its name
    assert forward_name(local, "MseLossBackward0") == "aten::mse_loss"
    assert operator(local, "aten::linear").forward == NO_OPERATOR


def test_arrow_of_the_trace_wins_over_sequence_numbers() -> None:
    trace = training_step(ENGINE).trace("cpu")
    names = [event.name for event in trace.events]
    arrow = Arrow(names.index("aten::linear"), names.index("AddmmBackward0"), "fwdbwd")
    local = local_graph(replace(trace, arrows=[arrow]))
    assert forward_name(local, "AddmmBackward0") == "aten::linear"
    assert forward_name(local, "TBackward0") == "aten::t"


def test_every_micro_batch_has_its_own_passes() -> None:
    made = HandMade()
    made.step(0, 1000)
    for number, start in enumerate((100, 500), start=1):
        made.operator("aten::mul", start, start + 50, sequence=number)
        made.operator("aten::empty", start + 60, start + 70)
        made.operator("aten::sum", start + 80, start + 90, sequence=10 + number)
        for place, sequence in enumerate((10 + number, number)):
            at = start + 200 + 50 * place
            made.operator("MulBackward0", at, at + 40, sequence=sequence, forward_thread=1)
    made.operator("aten::empty", 460, 470)
    local = made.graph("cpu")
    empties = [operator.step_pass for operator in local.operators if operator.name == "aten::empty"]
    assert empties == ["forward", "other", "forward"]


def test_inference_is_forward() -> None:
    made = HandMade()
    made.step(0, 100)
    made.operator("aten::linear", 10, 20)
    assert operator(made.graph("cpu"), "aten::linear").step_pass == "forward"


def test_operator_knows_its_shapes_types_and_scope() -> None:
    linear = operator(training_step(ENGINE).graph("cpu"), "aten::linear")
    assert linear.shapes == ((8, 16), (32, 16), (32,))
    assert linear.dtypes == ("float", "float", "float")
    assert linear.scope == ("model",)
    assert linear.us == 60


def test_time_of_an_operator_on_a_gpu_is_that_of_its_kernels() -> None:
    made = HandMade()
    made.step(0, 500)
    made.operator("aten::linear", 10, 60)
    made.operator("aten::addmm", 15, 55)
    made.launch("gemm", (20, 25), (30, 130))
    made.launch("bias", (30, 35), (131, 151))
    made.operator("aten::view", 70, 80)
    local = made.graph()
    assert [operator.us for operator in local.operators] == [120, 120, 0]
    names = {local.tasks[task].name for task in operator(local, "aten::linear").tasks}
    assert {"gemm", "bias", "cudaLaunchKernel"} <= names


def test_range_named_like_an_operator_is_one() -> None:
    made = HandMade()
    made.step(0, 500)
    made.annotation("qsync::linear_fp32", 10, 60)
    made.launch("int8_gemm", (20, 25), (30, 130))
    made.annotation("## forward ##", 100, 200)
    local = made.graph()
    assert [(operator.name, operator.us) for operator in local.operators] == [("qsync::linear_fp32", 100)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::_allgather_base_", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("gloo:broadcast", "broadcast"),
        ("nccl:send 0->1", "send"),
        ("c10d::recv_", "recv"),
        (
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        ),
    ],
)
def test_collectives_have_one_name(name: str, expected: str) -> None:
    assert collective_name(name) == expected


def test_collectives_are_told_from_other_kernels() -> None:
    assert is_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert is_collective("void ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")
    assert is_collective("rccl_main_kernel")
    assert not is_collective("volta_sgemm_64x64_tn")
    assert not is_collective("void at::native::reduce_kernel<512, 1>")
