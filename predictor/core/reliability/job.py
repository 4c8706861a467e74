"""A long training without interruptions, what its checkpoints hold, and the machine's habits around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MINUTES_PER_HOUR, SECONDS_PER_HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """A training; any failure of its GPUs, nodes or network stops it.

    Attributes:
        num_gpus: of the run.
        gpus_per_node: of its nodes; a failure takes a whole node out.
        productive_hours: of all its steps, without interruptions; draws of it where it is uncertain.
        gpu_bytes: of weights and optimizer states on one GPU.
        whole_bytes: of one copy of them all.
        step_s: time of one step, in seconds.
    """

    num_gpus: int
    gpus_per_node: int
    productive_hours: float | Sequence[float]
    gpu_bytes: float
    whole_bytes: float
    step_s: float

    @property
    def num_nodes(self) -> int:
        """Return the nodes that it occupies."""
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def hours(self) -> float:
        """Return the productive hours; the median of their draws."""
        if isinstance(self.productive_hours, int | float):
            return self.productive_hours
        return sorted(self.productive_hours)[len(self.productive_hours) // 2]
