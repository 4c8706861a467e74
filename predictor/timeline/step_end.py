"""The end of a step: every stage reduces its gradients; then all stages update.

Gradient norm and overflow check need every stage's gradients, so no optimizer starts before the last reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.timeline.pipeline import Stream
from predictor.timeline.spans import Span


class StepEnd(NamedTuple):
    """How a step ends, in the unit of its durations.

    Attributes:
        reduced: when each stage's gradients are reduced.
        critical_stage: the stage whose reduction is the last.
        step: when the step is over.
    """

    reduced: list[float]
    critical_stage: int
    step: float

    @property
    def updating(self) -> float:
        """Return when all optimizers start."""
        return self.reduced[self.critical_stage]

    def waiting(self, stage: int, optimizer: float, gather: float) -> float:
        """Return how long a stage waits for others: until the last reduction, and for longer updates than its own."""
        return self.step - (self.reduced[stage] + optimizer + gather)


def end_of_step(finished: Sequence[float], exposed: Sequence[float], closing: float) -> StepEnd:
    """Return how a step ends.

    Args:
        finished: when each stage ends its last slot.
        exposed: what each stage's gradient reduction takes beyond that.
        closing: the longest of the stages' updates: optimizer, and what gathers parameters behind it.
    """
    reduced = [end + rest for end, rest in zip(finished, exposed, strict=True)]
    critical = max(range(len(reduced)), key=reduced.__getitem__)
    return StepEnd(reduced, critical, reduced[critical] + closing)


def ending_spans(
    finished: Sequence[float],
    reductions: Sequence[float],
    exposed: Sequence[float],
    optimizers: Sequence[float],
    gathers: Sequence[float],
) -> list[Span]:
    """Return what every stage runs at the end of a step, as spans; what takes no time is left out.

    A gradient reduction ends when what computing does not hide of it has followed the stage's last slot.

    Args:
        finished: when each stage ends its last slot.
        reductions: whole gradient reduction, per stage.
        exposed: the part of it that the step waits for.
        optimizers: per stage.
        gathers: what gathers parameters behind the optimizer, per stage.
    """
    closing = max(update + gather for update, gather in zip(optimizers, gathers, strict=True))
    reduced, critical, _ = end_of_step(finished, exposed, closing)
    start = reduced[critical]
    spans: list[Span] = []
    for stage, end in enumerate(reduced):
        begin = max(0.0, end - max(reductions[stage], exposed[stage]))
        stepped = start + optimizers[stage]
        pieces = [
            ("gradient reduction", Stream.REDUCTION, begin, end),
            ("optimizer", Stream.OPTIMIZER, start, stepped),
            ("parameter gather", Stream.REDUCTION, stepped, stepped + gathers[stage]),
        ]
        spans += [
            Span(name, stage, stream, begun, ended, category=stream)
            for name, stream, begun, ended in pieces
            if ended > begun
        ]
    return spans
