"""Graphs of traced steps, and steps in another plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.timeline.graph import replay_graph
from predictor.replay.files.execution_trace import ExecutionNode, ExecutionTensor, ExecutionTrace
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_replay import replay_local
from predictor.replay.precision.dataflow import Call, guessed_flow
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.operator_config import own_operators, read_operators
from predictor.replay.precision.operator_graph import OperatorGraph, Precision, Tensor
from predictor.replay.precision.plan_changes import changed_tasks, plan_changes
from predictor.replay.precision.plan_time import propagate, uniform_plan
from predictor.replay.precision.precision_costs import PrecisionCosts
from tests.conftest import SHARED
from tests.unit.precision_graphs import BF16, FP32, FixedCosts, StepDrawing, perceptron

BFLOAT = "c10::BFloat16"


def edges(graph: OperatorGraph) -> list[tuple[str, str, int]]:
    return [(graph.nodes[a].label, graph.nodes[b].label, numel) for a, b, numel in graph.tensors]


def test_a_steps_graph_has_its_operators_with_depth_backward_and_times() -> None:
    local = perceptron()
    graph = operator_graph(local, precisions=(FP32, BF16))
    assert [(node.label, node.depth) for node in graph.nodes] == [
        ("aten::linear.0", 0), ("aten::relu.0", 1), ("aten::linear.1", 2), ("aten::mse_loss.0", 3),
    ]  # fmt: skip
    assert edges(graph)[:3] == [
        ("aten::linear.0", "aten::relu.0", 64),
        ("aten::relu.0", "aten::linear.1", 64),
        ("aten::linear.1", "aten::mse_loss.0", 8),
    ]
    first, relu, _, loss = graph.nodes
    assert (first.weight_numel, first.output_numel, first.saved_numel) == (144, 64, 32)
    assert first.choices == (FP32, BF16)
    assert relu.choices == ()
    assert loss.choices == (FP32,)  # autocast on a CPU keeps it in fp32
    times = traced_times(local, graph)
    assert (times.us("aten::linear.0", "forward"), times.us("aten::linear.0", "backward")) == (30.0, 60.0)
    assert local.operators[first.backward[0]].name == "AddmmBackward0"
    assert graph.facts["flow"] == "guessed from sizes"


def test_in_autocast_an_operator_is_its_inner_call_and_the_casts_are_apart() -> None:
    local = perceptron(BFLOAT)
    graph = operator_graph(local, precisions=(FP32,))
    assert [node.traced for node in graph.nodes] == [BF16, BF16, BF16, FP32]
    assert graph.nodes[0].choices == (FP32, BF16)  # the traced one is added
    assert traced_times(local, graph).us("aten::linear.0", "forward") == 1.0 + 15.0


def test_a_plan_of_a_trace_in_fp32_leads_to_what_autocast_traced() -> None:
    fp32, bf16 = (operator_graph(perceptron(dtype), precisions=(FP32, BF16)) for dtype in ("float", BFLOAT))
    assert propagate(fp32, uniform_plan(fp32, BF16)) == [node.traced for node in bf16.nodes]


def tensor(storage: int, numel: int = 8) -> ExecutionTensor:
    return ExecutionTensor(storage, storage, 0, numel, 4, "cpu", (numel,), "float")


def execution(*nodes: tuple[str, tuple[int, ...], tuple[int, ...]]) -> ExecutionTrace:
    calls = [
        ExecutionNode(number, name, -1, tuple(map(tensor, inputs)), tuple(map(tensor, outputs)))
        for number, (name, inputs, outputs) in enumerate(nodes, 1)
    ]
    return ExecutionTrace(Path("execution.json"), "1.1.1", calls)


def test_an_execution_trace_gives_the_dataflow_through_views_and_shared_storages() -> None:
    drawing = StepDrawing()
    for name in ("linear", "linear", "linear", "add"):
        drawing.add(f"aten::{name}", 5.0, ((8, 8), (8, 8)))
    trace = execution(
        ("aten::linear", (1, 2), (10,)),
        ("aten::view", (10,), (11,)),
        ("aten::linear", (11, 3), (12,)),
        ("aten::linear", (11, 4), (13,)),
        ("aten::add", (12, 13), (14,)),
    )
    graph = operator_graph(drawing.local(), trace)
    assert graph.facts["flow"] == "recorded"
    assert [(a, b) for a, b, _ in graph.tensors] == [(0, 1), (0, 2), (1, 3), (2, 3)]
    other = execution(("aten::conv2d", (1, 2), (10,)), ("aten::relu", (10,), (11,)))
    assert operator_graph(drawing.local(), other).facts["flow"] == "guessed from sizes"


def test_a_flow_is_guessed_from_sizes_or_the_order() -> None:
    calls = [Call("a", ((4,),), 4), Call("b", ((4,),), 8), Call("c", ((8,), (4,)), 8), Call("d", ((5,),), 5)]
    flows, unknown = guessed_flow(calls)
    assert [(flow.producer, flow.consumer) for flow in flows] == [(0, 1), (0, 2), (1, 2), (2, 3)]
    assert unknown == 2  # the first input of all, and one of 5 elements
    blind, _ = guessed_flow([Call("a", None, 0), Call("b", None, 0)])
    assert [(flow.producer, flow.consumer) for flow in blind] == [(0, 1)]


def test_attention_and_a_residual_connection_are_guessed() -> None:
    whole, product = ((4,),), True
    calls = [
        Call("norm", whole, 4),
        *(Call(name, whole, 4, product) for name in ("query", "key", "value")),
        Call("attention", whole * 3, 4, product),
        Call("aten::contiguous", whole, 4),
        Call("output", whole, 4, product),
        Call("dropout", whole, 4),
        Call("add", whole * 2, 4),
    ]
    flows, unknown = guessed_flow(calls)
    assert [(flow.producer, flow.consumer) for flow in flows] == [
        (0, 1), (0, 2), (0, 3), (0, 8), (1, 4), (2, 4), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8),
    ]  # fmt: skip
    assert unknown == 1


def test_operators_of_integers_take_no_part_in_the_flow() -> None:
    drawing = StepDrawing()
    drawing.add("aten::conv2d", 5.0, ((2, 3, 8, 8), (4, 3, 3, 3)))
    drawing.add("aten::add_", 1.0, ((), ()), ("long int", "long int"))
    drawing.add("aten::batch_norm", 5.0, ((2, 4, 8, 8), (4,), (4,)))
    graph = operator_graph(drawing.local())
    assert edges(graph) == [("aten::conv2d.0", "aten::batch_norm.0", 512)]


def test_backward_operators_without_a_tie_are_tied_by_the_names_of_the_configuration() -> None:
    drawing = StepDrawing()
    for _ in range(2):
        drawing.add("aten::linear", 5.0, ((4, 8), (16, 8)))
    late = drawing.add("AddmmBackward0", 7.0, step_pass="backward")
    early = drawing.add("AddmmBackward0", 9.0, step_pass="backward")
    graph = operator_graph(drawing.local())
    assert [node.backward for node in graph.nodes] == [(early,), (late,)]


def test_a_step_in_another_plan_has_new_times_and_its_casts() -> None:
    local = perceptron()
    graph = operator_graph(local, precisions=(FP32, BF16))
    costs = FixedCosts({(node.label, each): 10.0 for node in graph.nodes for each in (FP32, BF16)}, element_us=0.0)
    changes = plan_changes(local, graph, {"aten::linear.1": BF16}, costs)
    assert changes.operators == 1
    assert (changes.before.us, changes.after.us) == (60.0, 10.0 + 80.0)
    assert [(cast.cast.numel, cast.cast.cast_from, cast.cast.step_pass) for cast in changes.inserted] == [
        (32, FP32, "forward"), (32, BF16, "backward"),  # weight and bias
        (2, FP32, "forward"), (2, BF16, "backward"),
        (64, FP32, "forward"), (64, BF16, "backward"),  # from the activation
        (8, BF16, "forward"), (8, FP32, "backward"),  # to the loss
    ]  # fmt: skip
    replay = replay_graph(changed_tasks(local, changes))
    assert replay.makespan_us == pytest.approx(replay_local(local).makespan_us - 60.0 + 90.0)
    order = [span.name for span in sorted(replay.spans, key=lambda span: span.start_us)]
    assert order.index("cast fp32 to bf16") == order.index("aten::linear", order.index("aten::relu")) - 3
    unchanged = plan_changes(local, graph, {}, costs)
    assert (unchanged.durations, unchanged.inserted) == ({}, [])
    assert replay_graph(changed_tasks(local, unchanged)).makespan_us == replay_local(local).makespan_us


def test_casts_that_a_plan_no_longer_needs_take_no_time() -> None:
    local = perceptron(BFLOAT)
    graph = operator_graph(local, precisions=(FP32, BF16))
    times = traced_times(local, graph)
    other = perceptron()
    costs = PrecisionCosts(times, [traced_times(other, operator_graph(other))])
    costs.cast = lambda cast_from, cast_to, numel: FixedCosts({}).cast(cast_from, cast_to, numel)  # type: ignore[method-assign]
    changes = plan_changes(local, graph, uniform_plan(graph, FP32), costs)
    casts = [at for at, task in enumerate(local.tasks) if task.name == "aten::to"]
    assert [changes.durations[at] for at in casts] == [0.0, 0.0]
    assert changes.inserted == []
    assert replay_graph(changed_tasks(local, changes)).makespan_us == pytest.approx(other.step_us)


NEW_KERNEL = """
ops_to_track: ["qsync::linear_fp16"]
aten_op_to_bwd_mapper: {"qsync::linear_fp16": [linearfp16backward]}
bit_width_changeable_nodes: ["qsync::linear_fp16"]
grad_required_bwds: {linearfp16backward: 2}
special_aten_mapping: {"aten::linear": "qsync::linear_fp16"}
"""


def test_a_new_kernel_is_known_after_the_four_steps(tmp_path: Path) -> None:
    file = tmp_path / "kernels.yaml"
    file.write_text(NEW_KERNEL)
    config = read_operators(file)
    assert config.names("qsync::linear_fp16") == ("qsync::linear_fp16", "aten::linear")
    assert "aten::relu_" in config.names("aten::relu")  # ours are kept
    assert config.grad_required_bwds["linearfp16backward"] == 2
    drawing = StepDrawing()
    forward = drawing.add("qsync::linear_fp16", 12.0, ((4, 8), (16, 8), (16,)), ("c10::Half",) * 3)
    drawing.add("aten::mm", 10.0, ((4, 8), (8, 16)), parent=forward)
    backward = drawing.add("LinearFP16Backward", 30.0, step_pass="backward")
    local = drawing.local()
    graph = operator_graph(local, config=config)
    (node,) = graph.nodes
    assert (node.name, node.traced, node.backward) == ("qsync::linear_fp16", Precision.FP16, (backward,))
    assert FP32 in node.choices
    assert node.weight_numel == 144
    fp32 = perceptron()
    other = traced_times(fp32, operator_graph(fp32, config=config))
    costs = PrecisionCosts(traced_times(local, graph), [other], config=config)
    assert costs.forward(node, FP32).us == 30.0  # of aten::linear in the other trace
    assert not operator_graph(local, config=own_operators()).nodes[0].name.startswith("qsync")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ops_to_trak: []", "ops_to_trak"),
        ("aten_op_to_bwd_mapper: {'qsync::x': [LinearBackward]}", "write it as linearbackward"),
        ("work: {'qsync::x': magic}", "work.qsync::x"),
    ],
)
def test_a_configuration_with_a_mistake_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "kernels.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_operators(file)
    assert "\n" not in str(error.value)


def test_every_operator_of_the_configuration_has_a_kind_of_work() -> None:
    config = own_operators()
    unknown = [name for name in config.tracked if config.of(config.work, name) is None]
    assert unknown == ["aten::einsum"]


def test_a_public_trace_of_a_gpu_has_a_graph_with_times() -> None:
    path = SHARED / "traces" / "hta_mi250_minitoy_train.json.gz"
    if not path.is_file():
        pytest.skip(f"no public traces in {path.parent}")
    local = local_graph(read_trace(path))
    graph = operator_graph(local)
    assert [node.name for node in graph.nodes] == ["aten::linear", "aten::relu", "aten::mse_loss"]
    times = traced_times(local, graph)
    assert all(times.us(node.label, "forward") > 0.0 and times.us(node.label, "backward") > 0.0 for node in graph.nodes)
    assert Tensor(0, 1, 640) in graph.tensors
