"""Replay of a traced step, unchanged and changed: the values that text, JSON and page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import Source
from predictor.core.timeline.graph import GraphReplay
from predictor.replay.bottleneck import Bottleneck, bottleneck_of
from predictor.replay.breakdown import RankParts, breakdown
from predictor.replay.critical import Move, PathShare, moved, operator_shares
from predictor.replay.graph.steady_state import steady_step_us
from predictor.replay.idle import RowGaps, busiest_gaps
from predictor.replay.whatif.changes import Applied, Means, apply_changes, settings_of
from predictor.replay.whatif.traced_step import TracedStep, measured_spans


@dataclass(frozen=True)
class Replayed:
    """A replayed step.

    Attributes:
        step: what was replayed.
        replay: times of its tasks.
        since_us: when the step begins, on the clock of the replay: where a device lags behind its host, when it has
            ended the step before.
        parts: of every rank.
        path: operators on the critical path, by their time on it.
        operators: all of them, by their time in all.
        gaps: of every rank's row that computes most.
        bounds_us: the step with changed times at the ends of their intervals; None where all are measured or asked for.
    """

    step: TracedStep
    replay: GraphReplay
    since_us: float
    parts: list[RankParts]
    path: list[PathShare]
    operators: list[PathShare]
    gaps: list[RowGaps]
    bounds_us: tuple[float, float] | None

    @property
    def step_us(self) -> float:
        """Return the replayed step."""
        return self.replay.makespan_us - self.since_us

    @cached_property
    def bottleneck(self) -> Bottleneck | None:
        """Return the part that shortens the step most when it is shorter; None: no part alone does."""
        return bottleneck_of(self.step, self.replay, self.since_us)

    @cached_property
    def steady_us(self) -> float:
        """Return what the step adds to a run of many alike."""
        return steady_step_us(self.step.tasks)

    @property
    def source(self) -> Source:
        """Return the weakest source of its times."""
        return self.step.source

    @property
    def critical_rank(self) -> int:
        """Return the position of the rank that ends the step."""
        path = self.replay.critical_path
        return self.step.roles[path[-1]].rank if path else 0


@dataclass(frozen=True)
class ReplayAnswer:
    """A measured step, its unchanged replay, and the changed one where there is one.

    Attributes:
        before: the unchanged replay.
        applied: changes in their order.
        after: with all of them; None without changes.
        moves: on the critical path.
        notes: of traces and graphs.
    """

    before: Replayed
    applied: Sequence[Applied] = ()
    after: Replayed | None = None
    moves: Sequence[Move] = ()
    notes: Sequence[str] = ()

    @property
    def measured_us(self) -> float:
        """Return the step as the profiler measured it."""
        return self.before.step.measured_us

    @property
    def error(self) -> float:
        """Return the unchanged replay over the measured step, minus one."""
        return self.replay_us / self.measured_us - 1.0 if self.measured_us else 0.0

    @cached_property
    def replay_us(self) -> float:
        """Return the unchanged replay of the measured step, with the measured work of earlier steps."""
        return self.before.step.alone_us()

    @property
    def error_words(self) -> str:
        """Return the error in percent, with its sign; rounding leaves no negative zero."""
        return f"{round(self.error, 4) + 0.0:+.2%}"

    @property
    def ratio(self) -> float | None:
        """Return the changed step over the unchanged one, in a run where a device lags; None without changes."""
        return None if self.after is None else self.after.step_us / self.before.step_us

    @property
    def shown(self) -> Replayed:
        """Return the replay that was asked for: the changed one, else the unchanged."""
        return self.after or self.before


def measured(step: TracedStep) -> Replayed:
    """Return an unchanged step as it was measured; what its critical path was is known of a replay only."""
    spans = measured_spans(step)
    end_us = max((span.end_us for span in spans), default=0.0) if step.is_behind else step.measured_us
    return Replayed(
        step,
        GraphReplay(spans, end_us, [], {}),
        0.0,
        breakdown(step, spans, step.measured_us),
        [],
        [],
        busiest_gaps(step, spans),
        None,
    )


def replayed(step: TracedStep) -> Replayed:
    """Replay a step and break it down."""
    timed = step.timed()
    replay, since_us = timed
    parts = breakdown(step, replay.spans, timed.step_us, since_us if step.is_behind else None)
    gaps = busiest_gaps(step, replay.spans)
    return Replayed(step, replay, since_us, parts, *operator_shares(step, replay, since_us), gaps, step.bounds_us())


def answered(step: TracedStep, changes: Sequence[str], means: Means, notes: Sequence[str] = ()) -> ReplayAnswer:
    """Replay a step, and again with changes.

    Raises:
        ConfigError: a change is unknown, touches nothing, contradicts another or cannot be made.
    """
    settings = settings_of(changes)
    before = replayed(step)
    if not before.step_us:
        raise ConfigError(f"{step.ranks[0].label}: nothing in it takes time, so there is nothing to replay")
    if not settings:
        return ReplayAnswer(before, notes=notes)
    changed, applied = apply_changes(step, settings, means)
    after = replayed(changed)
    return ReplayAnswer(before, applied, after, moved(before.path, after.path), notes)
