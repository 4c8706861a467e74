"""Small graphs and steps that tests of precisions share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.core.costs.cost import Cost, Source
from predictor.replay.graph.local_graph import (
    NO_OPERATOR,
    Edge,
    EdgeKind,
    LocalGraph,
    OperatorPass,
    TaskKind,
    TracedOperator,
    TracedTask,
)
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8


def node(
    label: str,
    choices: Sequence[Precision] = (FP32, FP16),
    weights: int = 0,
    numel: int = 100,
    name: str = "aten::linear",
    shapes: tuple[tuple[int, ...], ...] = (),
) -> OperatorNode:
    """Return an operator."""
    return OperatorNode(name, label, 0, shapes, weights, numel, numel, tuple(choices))


def chain(*nodes: OperatorNode) -> OperatorGraph:
    """Return operators that each read the one before."""
    tensors = [Tensor(at, at + 1, nodes[at].output_numel) for at in range(len(nodes) - 1)]
    return OperatorGraph([replace(node, depth=at) for at, node in enumerate(nodes)], tensors)


class FixedCosts:
    """Costs of operators by label and precision, half forward and half backward; casts of 1 µs an element and 10 µs."""

    def __init__(self, us: dict[tuple[str, Precision], float], cast_us: float = 10.0, element_us: float = 1.0) -> None:
        self.us, self.cast_us, self.element_us = us, cast_us, element_us

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        us = self.us[node.label, precision] / 2
        return Cost(us, us, us, Source.MEASURED)

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        return self.forward(node, precision)

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        us = self.element_us * numel + self.cast_us
        return Cost(us, us / 2, us * 2, Source.ANALYTIC)


def cheap(graph: OperatorGraph, **us: float) -> FixedCosts:
    """Return costs that are the same for all operators: microseconds by precision."""
    return FixedCosts({(node.label, Precision(name)): of for node in graph.nodes for name, of in us.items()})


class StepDrawing:
    """A step of one thread under construction: operators one after the other, each with one task."""

    def __init__(self) -> None:
        self.operators: list[TracedOperator] = []
        self.tasks: list[TracedTask] = []
        self.now = 0.0

    def add(
        self,
        name: str,
        us: float,
        shapes: tuple[tuple[int, ...], ...] = (),
        dtypes: tuple[str, ...] = (),
        step_pass: OperatorPass = "forward",
        forward: int = NO_OPERATOR,
        parent: int = NO_OPERATOR,
    ) -> int:
        """Add an operator that itself takes ``us``; its task belongs to the operators around it too."""
        task, at = len(self.tasks), len(self.operators)
        after = (Edge(task - 1, 0.0, EdgeKind.ROW),) if task else ()
        self.tasks.append(TracedTask(name, TaskKind.HOST, 0, self.now, us, after, at))
        self.now += us
        dtypes = dtypes or tuple("float" if shape else "" for shape in shapes)
        self.operators.append(TracedOperator(name, step_pass, forward, (), shapes, dtypes, us, (task,), parent, -1, -1))
        while parent != NO_OPERATOR:
            outer = self.operators[parent]
            self.operators[parent] = outer._replace(us=outer.us + us, tasks=(*outer.tasks, task))
            parent = outer.parent
        return at

    def local(self, backend: str = "cpu") -> LocalGraph:
        """Return the step."""
        return LocalGraph(
            0, 1, "ProfilerStep#0", self.now, 0.0, backend, "", ["thread 1"], self.tasks, self.operators, [], {}
        )


def perceptron(dtype: str = "float") -> LocalGraph:
    """Return a step of two linear layers with an activation between them, forward and backward.

    In another type than float, autocast casts inside the outer call of a linear layer and calls it again.
    """
    drawing = StepDrawing()
    first = _linear(drawing, ((4, 8), (16, 8), (16,)), dtype, 30.0)
    relu = drawing.add("aten::relu", 5.0, ((4, 16),), (dtype,))
    second = _linear(drawing, ((4, 16), (2, 16), (2,)), dtype, 20.0)
    loss = drawing.add("aten::mse_loss", 3.0, ((4, 2), (4, 2), ()))
    for name, forward, us in (
        ("MseLossBackward0", loss, 2.0),
        ("AddmmBackward0", second, 40.0),
        ("ReluBackward0", relu, 6.0),
        ("AddmmBackward0", first, 60.0),
    ):
        drawing.add(name, us, step_pass="backward", forward=forward)
    return drawing.local()


def _linear(drawing: StepDrawing, shapes: tuple[tuple[int, ...], ...], dtype: str, us: float) -> int:
    if dtype == "float":
        return drawing.add("aten::linear", us, shapes)
    outer = drawing.add("aten::linear", 1.0, shapes)
    drawing.add("aten::to", 4.0, shapes[:1], parent=outer)
    drawing.add("aten::linear", us / 2, shapes, (dtype,) * 3, parent=outer)
    return outer
