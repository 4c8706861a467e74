"""Traces written by hand: few events whose dependencies and times are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from predictor.core.timeline.graph import replay_graph
from predictor.replay.files.events import UNKNOWN, Category, RankTrace, Row, TraceEvent
from predictor.replay.files.flows import arrows_of
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_graph import Edge, EdgeKind, LocalGraph, TracedTask
from predictor.replay.graph.local_replay import graph_tasks_of, replay_local

MAIN, ENGINE, WORKER, COMPUTE, NCCL = range(5)
ROWS = (
    Row(False, "1", "1"),
    Row(False, "1", "2"),
    Row(False, "1", "3"),
    Row(True, "0", "7"),
    Row(True, "0", "20"),
)


@dataclass
class HandMade:
    """Events in any order; times in µs. Streams are COMPUTE (7) and NCCL (20)."""

    events: list[TraceEvent] = field(default_factory=list)
    _correlation: int = 0

    def step(self, start: float, end: float, number: int = 1) -> None:
        self._add(f"ProfilerStep#{number}", Category.ANNOTATION, MAIN, start, end)

    def annotation(self, name: str, start: float, end: float, row: int = MAIN, **args: object) -> None:
        self._add(name, Category.ANNOTATION, row, start, end, args=_spelled(args))

    def operator(self, name: str, start: float, end: float, row: int = MAIN, **args: object) -> None:
        sequence = args.pop("sequence", UNKNOWN)
        assert isinstance(sequence, int)
        self.events.append(TraceEvent(name, Category.OPERATOR, row, start, end, sequence=sequence, args=_spelled(args)))

    def call(self, name: str, start: float, end: float, row: int = MAIN) -> int:
        self._correlation += 1
        self._add(name, Category.RUNTIME, row, start, end, self._correlation)
        return self._correlation

    def launch(
        self,
        name: str,
        called: tuple[float, float],
        ran: tuple[float, float],
        stream: int = COMPUTE,
        row: int = MAIN,
        category: Category = Category.KERNEL,
        call: str = "cudaLaunchKernel",
    ) -> int:
        """Add a call and what it started; return their correlation."""
        correlation = self.call(call, *called, row)
        self._add(name, category, stream, *ran, correlation)
        return correlation

    def sync(self, kind: str, correlation: int, **args: object) -> None:
        """Add the event that records what a call with a correlation waits for."""
        call = next(event for event in self.events if event.correlation == correlation)
        self._add(kind, Category.SYNC, COMPUTE, call.start_us, call.end_us, correlation, args)

    def trace(self, backend: str = "cuda") -> RankTrace:
        events = sorted(self.events, key=lambda event: (event.start_us, -event.end_us))
        return RankTrace(
            Path("hand-made.json"), 0, 1, backend, "", events, ROWS, arrows_of(events, ROWS, (), 0.0), 1000.0
        )

    def graph(self, backend: str = "cuda", step: int | None = None) -> LocalGraph:
        return local_graph(self.trace(backend), step)

    def _add(
        self,
        name: str,
        category: Category,
        row: int,
        start: float,
        end: float,
        correlation: int = UNKNOWN,
        args: Mapping[str, object] | None = None,
    ) -> None:
        self.events.append(TraceEvent(name, category, row, start, end, correlation, args=args or {}))


def _spelled(args: Mapping[str, object]) -> dict[str, object]:
    names = {"dims": "Input Dims", "types": "Input type", "forward_thread": "Fwd thread id", "dtype": "dtype"}
    return {names.get(key, key.replace("_", " ").capitalize()): value for key, value in args.items()}


def number(local: LocalGraph, name: str, occurrence: int = 0) -> int:
    """Return the position of the task with a name."""
    return [place for place, task in enumerate(local.tasks) if task.name == name][occurrence]


def task(local: LocalGraph, name: str, occurrence: int = 0) -> TracedTask:
    return local.tasks[number(local, name, occurrence)]


def end(local: LocalGraph, place: int) -> float:
    return local.tasks[place].start_us + local.tasks[place].duration_us


def edges(local: LocalGraph, name: str, kind: EdgeKind, occurrence: int = 0) -> list[Edge]:
    return [edge for edge in task(local, name, occurrence).after if edge.kind is kind]


def only(local: LocalGraph, name: str, kind: EdgeKind, occurrence: int = 0) -> Edge:
    (edge,) = edges(local, name, kind, occurrence)
    return edge


def slack(local: LocalGraph, name: str, edge: Edge, occurrence: int = 0) -> float:
    """Return how much later a task began than an edge allowed."""
    return task(local, name, occurrence).start_us - end(local, edge.task) - edge.lag_us


def assert_as_measured(local: LocalGraph) -> None:
    """Every task starts when it did, over an edge that allowed no earlier start."""
    replay = replay_local(local)
    assert replay.makespan_us == pytest.approx(local.step_us)
    for place, (span, measured) in enumerate(zip(replay.spans, local.tasks, strict=True)):
        assert span.start_us == pytest.approx(measured.start_us, abs=1e-6), measured
        waits = [end(local, edge.task) + edge.lag_us for edge in measured.after]
        assert max(waits, default=0.0) == pytest.approx(measured.start_us, abs=1e-6), (place, measured)
        assert all(edge.lag_us >= 0.0 for edge in measured.after)


def longer(local: LocalGraph, name: str, by_us: float, occurrence: int = 0) -> dict[str, float]:
    """Return when tasks begin, by name, and the step, if a task takes longer; of one name the first task's."""
    tasks = graph_tasks_of(local)
    place = number(local, name, occurrence)
    tasks[place] = tasks[place]._replace(duration_us=tasks[place].duration_us + by_us)
    replay = replay_graph(tasks)
    return {f"{span.name}": span.start_us for span in reversed(replay.spans)} | {"step": replay.makespan_us}


def backward_on_its_thread() -> HandMade:
    made = HandMade()
    made.step(0, 1000)
    made.operator("aten::linear", 100, 200, sequence=1, forward_thread=0)
    made.operator("autograd::engine::evaluate_function: AddmmBackward0", 300, 600, ENGINE, sequence=1, forward_thread=1)
    made.operator("AddmmBackward0", 310, 590, ENGINE, sequence=1, forward_thread=1)
    made.operator("aten::mm", 320, 500, ENGINE)
    made.annotation("Optimizer.step#SGD.step", 700, 900)
    made.operator("aten::add_", 710, 800)
    return made
