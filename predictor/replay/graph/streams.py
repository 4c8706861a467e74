"""GPU streams of a step: their tasks in order, and when each was launched.

The hardware runs the tasks of one stream one after the other. Traces show some that overlap: by rounding, and where a
CUDA graph runs on several streams that the profiler takes for one. Tasks that overlap are put on lanes of the stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from math import inf
from statistics import median_low
from typing import NamedTuple

from predictor.replay.files.collective_names import is_collective
from predictor.replay.files.events import UNKNOWN, Category, RankTrace
from predictor.replay.graph.local_graph import CARRIED, TaskKind
from predictor.replay.graph.pending_tasks import ROOT, PendingTask, PendingTasks
from predictor.replay.graph.step_events import StepEvents

ROUNDING_US = 2.0  # older traces have whole microseconds, in starts and in durations
LONG_BEFORE_US = 20.0  # a call that ended this long before the stream was free did not delay its task
LATE_US = 20.0  # what begins this much later than is typical has a reason


class Stream(NamedTuple):
    """Tasks of one stream, in order.

    Attributes:
        tasks: pending, those of earlier steps first.
        launched_us: when the calls that launched them began, never less than before; negative of earlier steps.
    """

    tasks: list[int]
    launched_us: list[float]

    def count_launched_before(self, time_us: float) -> int:
        """Return how many tasks were launched before a time."""
        return bisect_left(self.launched_us, time_us)

    def last_launched_before(self, time_us: float) -> int:
        """Return the last task that was launched before a time; ROOT: none."""
        return self.last_launch_before(time_us)[1]

    def last_launch_before(self, time_us: float) -> tuple[float, int]:
        """Return when the last task launched before a time was, and the task; ROOT: none."""
        place = self.count_launched_before(time_us)
        return (self.launched_us[place - 1], self.tasks[place - 1]) if place else (0.0, ROOT)

    def first_launched_from(self, time_us: float) -> int:
        """Return the first task that was launched at a time or later; ROOT: none."""
        place = bisect_left(self.launched_us, time_us)
        return self.tasks[place] if place < len(self.tasks) else ROOT


class Latencies(NamedTuple):
    """What the GPU typically takes in this step, in µs; 0 where no task shows it.

    Attributes:
        launch_us: from the begin of a call to the start of what it launches on an idle stream.
        next_us: from the end of a task to the start of one that waited for it.
    """

    launch_us: float
    next_us: float


def add_streams(pending: PendingTasks, trace: RankTrace, step: StepEvents, lanes: dict[int, int]) -> dict[int, Stream]:
    """Add the GPU tasks of a step, without edges, and return the streams.

    Args:
        pending: that they are added to.
        trace: of the rank.
        step: of it.
        lanes: filled with the rows, beyond those of the trace, of lanes and the stream that each belongs to.
    """
    streams = {}
    for row in sorted({*step.gpu, *(row for row in step.carried if trace.rows[row].is_gpu)}):
        positions = step.gpu.get(row, [])
        tasks = _carried(pending, trace, step, row)
        ends = {row: pending.tasks[tasks[-1]].end_us if tasks else 0.0}
        for position in positions:
            event = trace.events[position]
            start, end = (max(0.0, round(at - step.start_us, 3)) for at in (event.start_us, event.end_us))
            lane = next((lane for lane, free in ends.items() if free <= start + ROUNDING_US), UNKNOWN)
            if lane == UNKNOWN:
                lane = len(trace.rows) + len(lanes)
                lanes[lane] = row
            elif ends[lane] > start:
                pending.end_before(lane, max(start, pending.tasks[pending.rows[lane][-1]].start_us))
                start = pending.tasks[pending.rows[lane][-1]].end_us
                end = max(start, end)
            ends[lane] = end
            tasks.append(
                pending.add(
                    PendingTask(event.name, _kind(event.category, event.name), lane, start, end, event=position)
                )
            )
        streams[row] = Stream(tasks, _launch_times(trace, step, row))
    return streams


def _carried(pending: PendingTasks, trace: RankTrace, step: StepEvents, row: int) -> list[int]:
    """Add what earlier steps left a stream to do, task by task, as calls of this step may wait for any of them."""
    tasks = []
    end = 0.0
    for _, position in step.carried.get(row, ()):
        event = trace.events[position]
        start = max(end, round(event.start_us - step.start_us, 3))
        end = max(start, round(event.end_us - step.start_us, 3))
        tasks.append(pending.add(PendingTask(CARRIED, TaskKind.KERNEL, row, start, end)))
    return tasks


def _kind(category: Category, name: str) -> TaskKind:
    if category is not Category.KERNEL:
        return TaskKind.COPY
    return TaskKind.COLLECTIVE if is_collective(name) else TaskKind.KERNEL


def _launch_times(trace: RankTrace, step: StepEvents, row: int) -> list[float]:
    """Return when each task was launched, in µs from the start of the step.

    What has no known launch was launched with the task before it at the earliest, or else when it began.
    """
    times = [round(given_us - step.start_us, 3) for given_us, _ in step.carried.get(row, ())]
    is_known = False
    for position in step.gpu.get(row, ()):
        call = step.launched_by.get(position, UNKNOWN)
        is_known = is_known or call != UNKNOWN
        if call == UNKNOWN and is_known:
            times.append(times[-1])
        else:
            times.append(round(trace.events[position if call == UNKNOWN else call].start_us - step.start_us, 3))
    return list(accumulate(times, max))


def typical_latencies(trace: RankTrace, step: StepEvents) -> Latencies:
    """Return the medians over the step's tasks that show them; until then earlier steps' work keeps a stream busy.

    Where no stream was idle when a task was launched, the latency is at most the shortest time from a launch to a task,
    and unknown, taken for 0, where all tasks stood in a queue.
    """
    launch, behind = [], []
    shortest = inf
    for row, positions in step.gpu.items():
        end = step.start_us + step.carried_us.get(row, 0.0)
        for position in positions:
            event = trace.events[position]
            call = step.launched_by.get(position, UNKNOWN)
            if call != UNKNOWN:
                latency = max(0.0, event.start_us - trace.events[call].start_us)
                shortest = min(shortest, latency)
                if trace.events[call].start_us >= end:
                    launch.append(latency)
                elif trace.events[call].end_us + LONG_BEFORE_US < end:
                    behind.append(max(0.0, event.start_us - end))
            end = max(end, event.end_us)
    if not launch and shortest <= LATE_US:
        launch = [shortest]
    return Latencies(median_low(launch) if launch else 0.0, median_low(behind) if behind else 0.0)


def submissions(
    pending: PendingTasks, trace: RankTrace, step: StepEvents, streams: Mapping[int, Stream], latencies: Latencies
) -> dict[int, float]:
    """Return when the host gave each launched task to the GPU, in µs from the start of the step.

    That is when its call began, but for calls that do much before: load a module, copy pageable memory to a buffer. Of
    them it is the typical latency before the task began, as far as the stream was idle.
    """
    given = {}
    for stream in streams.values():
        for task in stream.tasks:
            pending_task = pending.tasks[task]
            call = step.launched_by.get(pending_task.event, UNKNOWN)
            if call == UNKNOWN:
                continue
            event = trace.events[call]
            begin, end = (round(at - step.start_us, 3) for at in (event.start_us, event.end_us))
            free = pending.tasks[pending.before(task)].end_us + latencies.next_us
            if pending_task.start_us - max(begin + latencies.launch_us, free) > LATE_US:
                begin = max(begin, min(end, round(pending_task.start_us - latencies.launch_us, 3)))
            given[task] = min(begin, pending_task.start_us)
    return given
