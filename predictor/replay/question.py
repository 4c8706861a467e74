"""Question of ``python -m predictor replay``, and its traced step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.core.base.errors import ConfigError
from predictor.core.timeline.graph import GraphError
from predictor.replay.answer import ReplayAnswer, answered
from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import graph_between
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.steps import choose_steps
from predictor.replay.whatif.changes import AS_THE_TRACE_SAYS, Means
from predictor.replay.whatif.devices import known_device
from predictor.replay.whatif.traced_step import TracedStep, joined


@dataclass(frozen=True, slots=True)
class ReplayQuestion:
    """A replay as the user states it.

    Attributes:
        traces: files, folders or patterns; one trace for each rank.
        step: which of the traced steps, counted from 0; None: as ``choose_steps`` chooses.
        changes: in their order.
        means: what the changes may ask.
    """

    traces: Sequence[str]
    step: int | None = None
    changes: Sequence[str] = ()
    means: Means = AS_THE_TRACE_SAYS


def traced_step(question: ReplayQuestion) -> tuple[TracedStep, list[str]]:
    """Read the step of all ranks, with the notes of their traces.

    Raises:
        ConfigError: a trace cannot be read, there is no such step, or the ranks do not fit together.
    """
    traces = read_traces(question.traces, partial=True)
    windows = choose_steps(traces, question.step)
    graph = global_graph([graph_between(trace, window) for trace, window in zip(traces, windows, strict=True)])
    notes = [f"{trace.path.name}: {note}" for trace in traces for note in trace.notes]
    return joined(graph), [*notes, *graph.notes]


def answer(question: ReplayQuestion) -> ReplayAnswer:
    """Replay the step, and again with the changes.

    Raises:
        ConfigError: the question cannot be answered; the message says why.
    """
    named = question.means.system
    if named is not None:
        known_device(named, f"--system {named}")
    step, notes = traced_step(question)
    try:
        return answered(step, question.changes, question.means, notes)
    except GraphError as error:
        raise ConfigError(f"{', '.join(question.traces)}: {error}") from None
