"""Bottleneck of a replayed step: the part whose shortening shortens the step most.

What takes most of a step need not hold it up: behind traffic that a GPU waits for, its host may be no faster. So the
step is replayed with every part a tenth shorter. Only what is on the critical path can matter, and by no more than a
tenth of its time there, so few parts need a replay.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from predictor.core.timeline.graph import GraphReplay
from predictor.replay.breakdown import IDLE, SYNC, part_names
from predictor.replay.graph.local_graph import CARRIED
from predictor.replay.whatif.traced_step import TracedStep

TENTH = 0.1
LEAST = 1e-3  # of a step, by which a tenth of its bottleneck shortens it


class Bottleneck(NamedTuple):
    """The part of a step that holds it up, and by what share of itself the step is shorter with a tenth less of it."""

    part: str
    gain: float


def bottleneck_of(step: TracedStep, replay: GraphReplay, since_us: float = 0.0) -> Bottleneck | None:
    """Return what holds a step up; None: no part alone does.

    Args:
        step: that was replayed.
        replay: of it.
        since_us: when it begins, on the clock of the replay.
    """
    step_us = replay.makespan_us - since_us
    names = part_names(step)
    on_path: defaultdict[str, float] = defaultdict(float)
    for position in replay.critical_path:
        span = replay.spans[position]
        if names[position] not in (IDLE, SYNC) and span.name != CARRIED:
            on_path[names[position]] += span.end_us - max(span.start_us, since_us)
    best = Bottleneck("", LEAST)
    for part, us in sorted(on_path.items(), key=lambda item: -item[1]):
        if TENTH * us <= best.gain * step_us:
            break
        positions = [position for position, name in enumerate(names) if name == part]
        gain = 1.0 - step.with_factor(positions, 1.0 - TENTH) / step_us
        best = max(best, Bottleneck(part, gain), key=lambda known: known.gain)
    return best if best.part else None
