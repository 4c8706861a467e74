"""Isomorphic blocks of an operator graph: parts that follow each other with the same operators, shapes and tensors.

Operators in their order are read as a text whose letters are operator, shapes and choices; blocks are its repetitions.
Two letters that look alike also need the same tensors between them and the operators of their block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode

Letter = tuple[object, ...]
Offsets = tuple[int, ...]  # of an operator's producers: how many positions before it
MOST_NODES = 2_000  # beyond them a search of quadratic time takes seconds; a larger graph is one block


class Block(NamedTuple):
    """Operators that repeat.

    Attributes:
        start: position of the first operator of the first repetition.
        length: operators in one repetition.
        repeats: repetitions, one behind the other; 1: it stands alone.
    """

    start: int
    length: int
    repeats: int

    @property
    def end(self) -> int:
        """Return the position behind the last operator."""
        return self.start + self.length * self.repeats


def blocks(graph: OperatorGraph) -> list[Block]:
    """Return a graph's blocks in order; together they hold every operator once.

    The repetition that covers most operators is taken first, of several the one with the shortest block; what is
    before and behind it is searched likewise.
    """
    if len(graph.nodes) > MOST_NODES:
        return [Block(0, len(graph.nodes), 1)]
    producers: dict[int, set[int]] = defaultdict(set)
    for tensor in graph.tensors:
        producers[tensor.consumer].add(tensor.producer)
    letters = [_letter(node) for node in graph.nodes]
    offsets = [tuple(sorted(at - producer for producer in producers[at])) for at in range(len(letters))]
    result: list[Block] = []
    ranges = [(0, len(letters))]
    while ranges:
        start, end = ranges.pop()
        block = _widest(letters, offsets, start, end)
        if block is None:
            if start < end:
                result.append(Block(start, end - start, 1))
            continue
        result.append(block)
        ranges += [(start, block.start), (block.end, end)]
    return sorted(result)


def first_of_kind(blocks_of_graph: Sequence[Block]) -> dict[int, int]:
    """Return, for every operator of a later repetition, the position of its counterpart in the first one."""
    return {
        block.start + repeat * block.length + at: block.start + at
        for block in blocks_of_graph
        for repeat in range(1, block.repeats)
        for at in range(block.length)
    }


def _letter(node: OperatorNode) -> Letter:
    return node.name, node.shapes, node.weight_numel, node.output_numel, node.choices


def _widest(letters: Sequence[Letter], offsets: Sequence[Offsets], start: int, end: int) -> Block | None:
    """Return the repetition within a range that covers most operators, or None where nothing repeats."""
    best: Block | None = None
    covered = (0, 0, 0)
    for length in range(1, (end - start) // 2 + 1):
        alike = 0  # how many operators from here on have the letters of those one block later
        for at in range(end - length - 1, start - 1, -1):
            alike = alike + 1 if letters[at] == letters[at + length] else 0
            most = alike // length + 1
            if most == 1 or (most * length, -length, -at) <= covered:
                continue
            repeats = _isomorphic(offsets, at, length, most)
            if repeats > 1 and (repeats * length, -length, -at) > covered:
                best, covered = Block(at, length, repeats), (repeats * length, -length, -at)
    return best


def _isomorphic(offsets: Sequence[Offsets], start: int, length: int, most: int) -> int:
    """Return how many blocks in a row have the tensors of the first one between their operators."""
    for repeat in range(1, most):
        for at in range(length):
            later = offsets[start + repeat * length + at]
            if [x for x in offsets[start + at] if x <= at] != [x for x in later if x <= at]:
                return repeat
    return most
