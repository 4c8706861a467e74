"""The end of a step: every stage reduces its gradients; then all stages update.

Gradient norm and overflow check need every stage's gradients, so no optimizer starts before the last reduction.
``end_of_step`` is the closed form, ``ending_tasks`` the same as a part of the step's dependency graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from predictor.core.timeline.graph import GraphTask
from predictor.core.timeline.pipeline import PASS_NAMES, Stream, starts_of_slot
from predictor.core.timeline.schedules import FORWARD

# Of the window beside which gradients are reduced.
SLOWED = "kernels slowed by the reduction"


class StepEnd(NamedTuple):
    """How a step ends, in the unit of its durations.

    Attributes:
        reduced: when each stage's gradients are reduced; of stages that share an embedding without the wait for the
            other, which changes no step, as the later of them has none.
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
        # Rounding must not make the last stage to end wait a negative time.
        return max(0.0, self.step - (self.reduced[stage] + optimizer + gather))


def end_of_step(finished: Sequence[float], exposed: Sequence[float], closing: float) -> StepEnd:
    """Return how a step ends.

    Args:
        finished: when each stage ends its last slot.
        exposed: what each stage's gradient reduction takes beyond that.
        closing: the longest of the stages' updates: optimizer, and parameter gather behind it.
    """
    reduced = [end + rest for end, rest in zip(finished, exposed, strict=True)]
    critical = max(range(len(reduced)), key=reduced.__getitem__)
    return StepEnd(reduced, critical, reduced[critical] + closing)


class StageEnd(NamedTuple):
    """What a stage runs at the end of a step, in µs.

    Attributes:
        reduction: of gradients over replicas.
        buckets: in which the reduction overlaps the last backward passes; 1 where it does not overlap them.
        hidden: the part of the reduction that the closed form hides: it less ``left_over`` of ``core/step/overlap.py``.
        tied: reduction of gradients that stages share; it waits for all of these stages.
        optimizer: parameter update.
        gather: of updated parameters, behind the optimizer.
        hidden_gather: of updated parameters, beside the first forward passes.
        slowed: how much longer the backward work beside the reduction takes.
        update_parts: names and durations of what the optimizer's time is made of, in turn; empty: itself alone.
    """

    reduction: float
    buckets: int
    hidden: float
    tied: float
    optimizer: float
    gather: float
    hidden_gather: float
    slowed: float = 0.0
    update_parts: Sequence[tuple[str, float]] = ()


class _Window(NamedTuple):
    """The backward work of a stage's last micro-batch, beside which buckets of gradients are reduced.

    Attributes:
        opens_after: predecessors of its first slot.
        us: the sum of its slots.
        closes_after: the task that ends the stage's part of the pipeline.
        is_contiguous: its slots follow one another without a wait, and nothing follows them.
    """

    opens_after: tuple[int, ...]
    us: float
    closes_after: tuple[int, ...]
    is_contiguous: bool


def _windows(tasks: Sequence[GraphTask], blocking: bool) -> list[_Window]:
    """Return the window of every stage."""
    slots: dict[int, list[int]] = {}
    sends: dict[int, int] = {}
    for position, task in enumerate(tasks):
        if task.stream == Stream.COMPUTE:
            slots.setdefault(task.rank, []).append(position)
        elif task.stream == Stream.SEND:
            sends[task.rank] = position
    windows = []
    for stage, of_stage in sorted(slots.items()):
        last = tasks[of_stage[-1]].details["micro_batch"]
        window = [
            slot
            for slot in of_stage
            if tasks[slot].details["micro_batch"] == last and tasks[slot].details["pass"] != PASS_NAMES[FORWARD]
        ]
        follows = blocking and stage > 0  # the gradient that the stage sends, which keeps it waiting
        is_contiguous = window == of_stage[-len(window) :] and not any(tasks[slot].after for slot in window[1:])
        windows.append(
            _Window(
                starts_of_slot(tasks, window[0]),
                sum(tasks[slot].duration_us for slot in window),
                (sends[stage] if follows else of_stage[-1],),
                is_contiguous and not follows,
            )
        )
    return windows


def ending_tasks(tasks: Sequence[GraphTask], ends: Sequence[StageEnd], blocking: bool) -> list[GraphTask]:
    """Return the end of a step as tasks that follow those of its pipeline; their replay ends when the step does.

    Of b equal buckets, bucket k is full once k/b of the window w has run, the backward work of the stage's last
    micro-batch, and is reduced behind bucket k - 1. A reduction of r then ends max over k of
    (k·w/b + (b - k + 1)·r/b) after the window's start. This is linear in k, so k = 1 or k = b decides, and two tasks
    are exact: all buckets but the last, w/b after the start, and the last bucket, behind them and the window.

    Kernels beside the reduction take longer, by ``slowed`` in all, which stands behind the window.

    This holds where the window is the end of its stage's part of the pipeline. It is not where slots of other
    micro-batches lie in it (interleaved 1F1B, ZB-H1) or a blocking message follows it. There the closed form counts the
    window back from the end of that part, a start that no task has; the reduction is then a task of its hidden length
    beside the window and one of its exposed length behind it.

    Gathers that overlap do so with the next step's first forward passes. The hidden part stands at the start of the
    step, where the step before has left it.

    Args:
        tasks: of the pipeline, slots stage by stage as ``pipeline_tasks`` returns them.
        ends: of every stage.
        blocking: stages wait for the messages that they send.
    """
    added: list[GraphTask] = []

    def add(
        name: str,
        stage: int,
        stream: Stream,
        us: float,
        after: tuple[int, ...],
        lag_us: float = 0.0,
        is_exclusive: bool = True,
    ) -> tuple[int, ...]:
        """Add a task and return its position; one that takes no time is left out, and its predecessors returned."""
        if not us:
            return after
        lags_us = (lag_us,) * len(after) if lag_us else ()
        added.append(GraphTask(name, stage, stream, us, after, lags_us, is_exclusive, category=stream))
        return (len(tasks) + len(added) - 1,)

    reduced = []
    for stage, (end, window) in enumerate(zip(ends, _windows(tasks, blocking), strict=True)):
        add("parameter gather, hidden", stage, Stream.REDUCTION, end.hidden_gather, ())
        names, hidden = ("gradient reduction, hidden", "gradient reduction, exposed"), end.hidden
        if window.is_contiguous:
            names = ("gradient reduction, first buckets", "gradient reduction, last bucket")
            hidden = end.reduction * (1.0 - 1.0 / end.buckets)
        add(names[0], stage, Stream.REDUCTION, hidden, window.opens_after, window.us / end.buckets)
        name = names[1] if hidden else "gradient reduction"
        closed = add(SLOWED, stage, Stream.REDUCTION, end.slowed, window.closes_after, is_exclusive=False)
        reduced.append(add(name, stage, Stream.REDUCTION, end.reduction - hidden, closed))
    sharing = [stage for stage, end in enumerate(ends) if end.tied]
    both = tuple(chain.from_iterable(reduced[stage] for stage in sharing))
    for stage in sharing:
        reduced[stage] = add("tied-embedding reduction", stage, Stream.REDUCTION, ends[stage].tied, both)
    last = tuple(chain.from_iterable(reduced))
    for stage, end in enumerate(ends):
        updated = last
        for name, us in end.update_parts or [("optimizer", end.optimizer)]:
            updated = add(name, stage, Stream.OPTIMIZER, us, updated)
        add("parameter gather", stage, Stream.REDUCTION, end.gather, updated)
    return added
