"""Measure how long the search for plans takes: ``python -m tests.bench_plans``. Prints; timing decides no test.

Graphs of about 500 operators in three precisions: a residual network and a transformer, with costs drawn at random.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from predictor.core.costs.cost import Cost, Source
from predictor.replay.precision.greedy import greedy_plan
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.replay.precision.plans import BestPlan, fastest_plan, fastest_plan_under, least_sensitive_plan

CHOICES = (Precision.FP32, Precision.FP16, Precision.INT8)
SPEED = {Precision.FP32: 1.0, Precision.FP16: 0.55, Precision.INT8: 0.45}


class RandomCosts:
    """Costs of operators around the speed of their precision, and casts by size."""

    def __init__(self, graph: OperatorGraph, seed: int) -> None:
        """Draw all of them."""
        draw = random.Random(seed)
        self._us = {
            (node.label, precision): draw.uniform(20, 400) * SPEED.get(precision, 1.0) * draw.uniform(0.8, 1.2)
            for node in graph.nodes
            for precision in Precision
        }

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return a drawn cost."""
        us = self._us[node.label, precision]
        return Cost(us, us, us, Source.MEASURED)

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return twice the forward cost."""
        return self.forward(node, precision) * 2.0

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        """Return 5 µs and 20 ps an element."""
        us = 5.0 + 2e-5 * numel
        return Cost(us, us, us, Source.MEASURED)


class Drawing:
    """A graph under construction."""

    def __init__(self) -> None:
        """Start with no operators."""
        self.nodes: list[OperatorNode] = []
        self.tensors: list[Tensor] = []

    def add(self, name: str, *inputs: int, choices: tuple[Precision, ...] = CHOICES, weights: int = 0) -> int:
        """Add an operator and return its position."""
        at = len(self.nodes)
        self.tensors += [Tensor(producer, at, self.nodes[producer].output_numel) for producer in inputs]
        node = OperatorNode(name, f"{name} {at}", at, (), weights, 200_000 + 1000 * (at % 7), 200_000, choices)
        self.nodes.append(node)
        return at

    def graph(self) -> OperatorGraph:
        """Return what was drawn."""
        return OperatorGraph(self.nodes, self.tensors)


def residual_network(blocks: int) -> OperatorGraph:
    """Return bottleneck blocks: three convolutions, their norms and activations, and a shortcut."""
    drawing = Drawing()
    x = drawing.add("conv", weights=9408)
    for block in range(blocks):
        y = x
        for _ in range(3):
            y = drawing.add("conv", y, weights=60_000)
            y = drawing.add("batch_norm", y, choices=CHOICES[:2])
            y = drawing.add("relu", y, choices=())
        shortcut = drawing.add("conv", x, weights=60_000) if block % 4 == 0 else x
        x = drawing.add("add", y, shortcut, choices=())
    return drawing.graph()


def transformer(layers: int) -> OperatorGraph:
    """Return encoder layers with query, key and value apart, and a mask that all of them read."""
    drawing = Drawing()
    mask = drawing.add("mask", choices=CHOICES[:1])
    x = drawing.add("embedding", weights=20_000_000)
    for _ in range(layers):
        norm = drawing.add("layer_norm", x, choices=CHOICES[:2])
        query, key, value = (drawing.add("linear", norm, weights=590_000) for _ in range(3))
        scores = drawing.add("matmul", query, key)
        masked = drawing.add("add", scores, mask, choices=())
        weights = drawing.add("softmax", masked, choices=CHOICES[:2])
        context = drawing.add("matmul", weights, value)
        x = drawing.add("add", x, drawing.add("linear", context, weights=590_000), choices=())
        norm = drawing.add("layer_norm", x, choices=CHOICES[:2])
        hidden = drawing.add("gelu", drawing.add("linear", norm, weights=2_360_000), choices=())
        x = drawing.add("add", x, drawing.add("linear", hidden, weights=2_360_000), choices=())
    return drawing.graph()


def timed(name: str, search: Callable[[], BestPlan]) -> BestPlan:
    """Run a search and print its time and answer."""
    start = time.perf_counter()
    best = search()
    seconds = time.perf_counter() - start
    gap = (best.us - best.lower_bound) / best.us if not best.is_exact else 0.0
    note = "exact" if best.is_exact else f"bound {best.lower_bound:.6g}, {gap:.2%}"
    print(f"  {name:32s} {seconds:6.2f} s   {best.us:10.0f} µs   width {best.width}   {note}", flush=True)
    return best


def memory(node: OperatorNode, precision: Precision) -> float:
    """Return the bytes that an operator's backward keeps."""
    return float(node.saved_numel * precision.bytes)


def main() -> None:
    """Print every search's time on both graphs."""
    for name, graph in (("residual network", residual_network(48)), ("transformer", transformer(38))):
        costs = RandomCosts(graph, seed=1)
        draw = random.Random(2)
        indicator = {
            node.label: {
                precision: draw.uniform(0.5, 1.5) * (4 - precision.bytes) * draw.uniform(0.1, 3.0)
                for precision in node.choices
            }
            for node in graph.nodes
        }
        print(f"{name}: {len(graph.nodes)} operators, {len(graph.tensors)} tensors")

        fastest = timed("fastest", partial(fastest_plan, graph, costs))
        most = sum(max(values.values(), default=0.0) for values in indicator.values())
        sensitivity = partial(fastest_plan_under, graph, costs, sensitivity=most / 4, indicator=indicator)
        timed("under a quarter of the sensitivity", sensitivity)
        whole = sum(node.saved_numel * 4 for node in graph.nodes)
        timed(
            "under 60 % of the memory",
            partial(fastest_plan_under, graph, costs, memory_bytes=0.6 * whole, memory=memory),
        )
        within = 1.1 * fastest.us
        timed("least sensitive, 10 % slower", partial(least_sensitive_plan, graph, costs, indicator, within))
        start = time.perf_counter()
        greedy = greedy_plan(graph, costs, indicator, fastest.plan, within_us=within)
        exact = least_sensitive_plan(graph, costs, indicator, within_us=within)
        seconds = time.perf_counter() - start
        print(
            f"  greedy and exact beside it       {seconds:6.2f} s   {greedy.sensitivity:.1f} and {exact.resource:.1f}"
        )


if __name__ == "__main__":
    main()
