"""Nesting of a step's operators, the casts inside them, and the backward operators tied to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph

CASTS = frozenset({"aten::to", "aten::_to_copy"})


@dataclass(frozen=True, slots=True)
class Inside:
    """How the operators of a step nest: those directly inside of each, and the backward operators tied to each."""

    children: Mapping[int, Sequence[int]]
    backward: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, local: LocalGraph) -> Inside:
        """Read the nesting of a step."""
        children: defaultdict[int, list[int]] = defaultdict(list)
        backward: defaultdict[int, list[int]] = defaultdict(list)
        for position, operator in enumerate(local.operators):
            children[operator.parent].append(position)
            if operator.forward != NO_OPERATOR and operator.step_pass == "backward":
                backward[operator.forward].append(position)
        return cls(children, backward)

    def below(self, position: int) -> Iterator[int]:
        """Yield an operator and all inside it."""
        waiting = [position]
        while waiting:
            at = waiting.pop()
            yield at
            waiting += self.children.get(at, ())

    def casts(self, local: LocalGraph, positions: Iterable[int]) -> list[int]:
        """Return the outermost casts inside of operators."""
        casts: list[int] = []
        waiting = [child for position in positions for child in self.children.get(position, ())]
        while waiting:
            at = waiting.pop()
            if local.operators[at].name in CASTS:
                casts.append(at)
            else:
                waiting += self.children.get(at, ())
        return casts
