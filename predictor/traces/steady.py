"""The time of a step among many alike: what a step adds to a run, its host running ahead of its GPU.

A GPU may still run one step when the host begins the next. The end of one step alone is then later than what the step
adds to the run, and a change moves it less. Several copies of the step, one after the other on every thread and stream,
show what one adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.timeline.graph import GraphTask, replay_graph
from predictor.traces.streams import CARRIED

COPIES = 4


def steady_step_us(tasks: Sequence[GraphTask], copies: int = COPIES) -> float:
    """Return the time that the last of several copies of a step adds, in µs.

    Args:
        tasks: of a step, of one rank or of all (``graph_tasks_of``), changed or not. What earlier steps left to do
            counts for nothing, as the copies before leave it.
        copies: of the step; the first ones fill the queues of the GPU.

    Raises:
        GraphError: its tasks wait for each other in a circle.
    """
    repeated = []
    for copy in range(copies):
        first = copy * len(tasks)
        for task in tasks:
            after = tuple(first + before for before in task.after)
            duration_us = 0.0 if task.name == CARRIED else task.duration_us
            repeated.append(task._replace(after=after, duration_us=duration_us))
    spans = replay_graph(repeated).spans
    ends = [
        max((span.end_us for span in spans[: copy * len(tasks)]), default=0.0) for copy in range(copies - 1, copies + 1)
    ]
    return ends[1] - ends[0]
