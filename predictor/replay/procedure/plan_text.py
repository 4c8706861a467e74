"""A plan told by blocks: what isomorphic blocks share is told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.replay.procedure.blocks import Block, blocks

Choices = tuple[tuple[str, Precision], ...]  # operator and precision, of one repetition of a block


def plan_text(graph: OperatorGraph, plan: Plan) -> Iterator[str]:
    """Yield a plan block by block: one line of an operator, or of several of the same name and precision in a row.

    Repetitions of a block that have the same precisions are told together, those that differ apart.
    """
    number = 0
    for block in blocks(graph):
        repeats = [_choices(graph, plan, block, repeat) for repeat in range(block.repeats)]
        for choices, same in groupby(enumerate(repeats), key=lambda pair: pair[1]):
            members = [repeat for repeat, _ in same]
            if not choices:
                continue
            number += 1
            first = graph.nodes[block.start + members[0] * block.length]
            times = f" ×{len(members)}" if len(members) > 1 else ""
            yield f"block {number}{times}, depth {first.depth}: {block.length} operators, from {first.label}"
            yield from _lines(choices)


def uniform(graph: OperatorGraph, plan: Plan) -> Precision | None:
    """Return the precision of a plan that has only one, of operators that can choose it; otherwise None."""
    chosen = {plan[node.label] for node in graph.nodes if len(node.choices) > 1 and node.label in plan}
    return next(iter(chosen)) if len(chosen) == 1 else None


def counts(graph: OperatorGraph, plan: Plan) -> str:
    """Return how many operators with a choice compute in what."""
    nodes = [node for node in graph.nodes if len(node.choices) > 1]
    chosen = [_precision(node, plan) for node in nodes]
    order = sorted(set(chosen), key=lambda precision: (-chosen.count(precision), precision))
    return ", ".join(f"{chosen.count(precision)} in {precision}" for precision in order) or "none has a choice"


def _choices(graph: OperatorGraph, plan: Plan, block: Block, repeat: int) -> Choices:
    start = block.start + repeat * block.length
    nodes = graph.nodes[start : start + block.length]
    return tuple((node.name, _precision(node, plan)) for node in nodes if len(node.choices) > 1)


def _precision(node: OperatorNode, plan: Plan) -> Precision:
    return plan.get(node.label, node.traced)


def _lines(choices: Sequence[tuple[str, Precision]]) -> Iterator[str]:
    for (operator, precision), calls in groupby(choices):
        count = len(list(calls))
        yield f"  {precision:5} {operator}{f' ×{count}' if count > 1 else ''}"
