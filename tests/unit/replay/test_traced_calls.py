"""Which calls of a traced step are measured again, in which types, and how they are made."""

from __future__ import annotations

from typing import Any

import pytest

from microbench.traced.autocast import types_in
from microbench.traced.calls import Argument, OperatorCall, arguments_of, distinct_calls
from predictor.replay.files.events import Category, TraceEvent
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from tests.unit.recorded_steps import NO_TORCH

BF16 = "c10::BFloat16"


def args(dims: list[Any], kinds: list[str], values: list[str]) -> dict[str, object]:
    return {"Input Dims": dims, "Input type": kinds, "Concrete Inputs": values}


LINEAR = args([[2, 4], [3, 4], [3]], ["float", "float", "float"], ["", "", ""])
LINEAR_BF16 = args([[2, 4], [3, 4], [3]], [BF16] * 3, ["", "", ""])
CONVOLUTION = args(
    [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []],
    ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
    ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"],
)
ADD = args([[2, 3], [2, 3], []], ["float", "float", "Scalar"], ["", "", "1"])
BATCH_NORM = args(
    [[2, 3, 8, 8], [3], [3], [3], [3], [], [], [], []],
    ["float"] * 5 + ["Scalar"] * 4,
    ["", "", "", "", "", "True", "0.1", "1e-05", "True"],
)


class Step:
    """A traced step, written operator by operator."""

    def __init__(self) -> None:
        self.operators: list[TracedOperator] = []
        self.events: list[TraceEvent] = []

    def add(
        self,
        name: str,
        values: dict[str, object] | None = None,
        parent: int = NO_OPERATOR,
        step_pass: Any = "forward",
        forward: int = NO_OPERATOR,
        us: float = 10.0,
    ) -> int:
        position = len(self.operators)
        self.events.append(TraceEvent(name, Category.OPERATOR, 0, 0.0, us, args=values or {}))
        kinds = (values or {}).get("Input type", [])
        assert isinstance(kinds, list)
        self.operators.append(
            TracedOperator(name, step_pass, forward, (), (), tuple(kinds), us, (), parent, -1, position)
        )
        return position

    @property
    def graph(self) -> LocalGraph:
        return LocalGraph(0, 1, "step", 1000.0, 0.0, "cpu", "", (), (), self.operators, (), {})


def call(name: str, values: dict[str, object]) -> OperatorCall:
    arguments = arguments_of(values)
    assert arguments is not None
    return OperatorCall(name, arguments, (), (), True, None, 1, 10.0)


def test_arguments_have_the_values_that_the_trace_has() -> None:
    arguments = arguments_of(CONVOLUTION)
    assert arguments is not None
    assert arguments[:4] == (
        Argument("tensor", (2, 3, 8, 8), "float"),
        Argument("tensor", (4, 3, 3, 3), "float"),
        Argument("none"),
        Argument("value", value=[2, 2]),
    )
    assert arguments_of({"Input Dims": [[2, 4]], "Input type": ["float"]}) is None


def test_equal_calls_are_one_and_backward_operators_are_theirs() -> None:
    step = Step()
    for _ in range(2):
        linear = step.add("aten::linear", LINEAR, us=20.0)
        product = step.add("aten::addmm", LINEAR, parent=linear)
        step.add("AddmmBackward0", step_pass="backward", forward=product, us=30.0)
        step.add("aten::view", parent=linear)
    step.add("aten::view", LINEAR)
    step.add("aten::add_", ADD, step_pass="optimizer")
    step.add("aten::gelu", {})
    calls, unknown = distinct_calls(step.graph, step.events)
    assert [(c.name, c.count, c.us, c.has_backward) for c in calls] == [("aten::linear", 2, 100.0, True)]
    assert unknown == {"aten::gelu": 10.0}


def test_of_a_call_that_autocast_repeats_the_inner_one_counts() -> None:
    step = Step()
    outer = step.add("aten::linear", LINEAR, us=50.0)
    cast = step.add("aten::to", LINEAR, parent=outer)
    step.add("aten::_to_copy", LINEAR, parent=cast)
    step.add("aten::linear", LINEAR_BF16, parent=outer, us=20.0)
    calls, _ = distinct_calls(step.graph, step.events)
    assert [(c.name, c.dtypes, c.us) for c in calls] == [("aten::linear", (BF16,) * 3, 20.0)]


def test_a_convolutions_backward_says_which_gradients_it_computed() -> None:
    step = Step()
    convolution = step.add("aten::conv2d", CONVOLUTION)
    backward = step.add("ConvolutionBackward0", step_pass="backward", forward=convolution)
    mask = args([[], []], ["float", ""], ["", "[False, True, False]"])
    step.add("aten::convolution_backward", mask, parent=backward, step_pass="backward")
    (only,), _ = distinct_calls(step.graph, step.events)
    assert only.gradients == (False, True, False)


def test_products_run_in_the_precision_with_their_weights() -> None:
    assert types_in(call("aten::linear", LINEAR), "bf16", "cpu") == (BF16,) * 3


def test_norms_keep_their_weights_in_fp32() -> None:
    types = types_in(call("aten::batch_norm", BATCH_NORM), "bf16", "cpu")
    assert types[:5] == (BF16, "float", "float", "float", "float")


def test_a_product_traced_in_bf16_runs_in_fp32() -> None:
    assert types_in(call("aten::linear", LINEAR_BF16), "fp32", "cpu") == ("float",) * 3


def test_losses_stay_in_fp32_and_softmax_on_a_gpu_alone() -> None:
    values = args([[2, 3], [], []], ["float", "Scalar", ""], ["", "-1", ""])
    assert types_in(call("aten::cross_entropy_loss", values), "bf16", "cpu")[0] == "float"
    assert types_in(call("aten::softmax", values), "fp16", "cuda")[0] == "float"
    assert types_in(call("aten::softmax", values), "fp16", "cpu")[0] == "c10::Half"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aten::linear", LINEAR),
        ("aten::conv2d", CONVOLUTION),
        ("aten::add", ADD),
        ("aten::batch_norm", BATCH_NORM),
        ("aten::gelu", args([[2, 3], []], ["float", ""], ["", ""])),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_traced_call_runs_again_with_its_backward(name: str, values: dict[str, object], precision: str) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.traced.rebuild import rebuild

    rebuilt = rebuild(call(name, values), types_in(call(name, values), precision, "cpu"), "cpu")
    output = rebuilt.forward()
    gradients = torch.autograd.grad(output, rebuilt.inputs, torch.ones_like(output))
    assert [g.shape for g in gradients] == [tensor.shape for tensor in rebuilt.inputs]
    assert all(torch.isfinite(g).all() for g in gradients)
    assert output.dtype is (torch.float32 if precision == "fp32" else torch.bfloat16)


def test_a_traced_convolution_computes_what_it_did() -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.traced.rebuild import attributes_of, rebuild

    convolution = call("aten::conv2d", CONVOLUTION)
    rebuilt = rebuild(convolution, ("float",) * 7, "cpu")
    x, weight = rebuilt.held
    expected = torch.nn.functional.conv2d(x, weight, stride=2, padding=1)
    assert torch.equal(rebuilt.forward(), expected)
    assert attributes_of(convolution)["stride"] == "[2, 2]"


def test_calls_are_measured_in_both_passes_and_the_others_are_listed() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.device import find_device
    from microbench.traced.cold import FEWEST, ColdClock
    from microbench.traced.remeasure import measure_calls

    relu = call("aten::relu_", args([[2, 3]], ["float"], [""]))
    strange = call("aten::no_such_operator", ADD)
    clock = ColdClock(find_device("cpu"))
    result = measure_calls([relu, strange], ["fp32", "bf16"], clock, "cpu", lambda line: None)
    assert [(row.precision, row.step_pass) for row in result.rows] == [
        ("fp32", "forward"), ("fp32", "backward"), ("bf16", "forward"), ("bf16", "backward"),
    ]  # fmt: skip
    assert all(len(row.samples_us) >= FEWEST and min(row.samples_us) > 0 for row in result.rows)
    assert [(name, us) for name, us, _ in result.unsupported] == [("aten::no_such_operator", 10.0)]
