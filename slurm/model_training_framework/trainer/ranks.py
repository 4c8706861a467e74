"""Agreement of ranks beside the training itself: over gloo on the host, so that no device waits for it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from model_training_framework.trainer.errors import CheckpointTimeoutError


class Ranks:
    """All ranks of a run; with one rank nothing is sent.

    Attributes:
        waited_s: for others in ``any_of`` and ``sum``, since the beginning, in seconds.
    """

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        """Make two groups of all ranks, one for flags and one for checkpoints.

        Args:
            rank: this one.
            world_size: their number.
            timeout_s: how long a rank waits for another in a checkpoint, in seconds.
        """
        self.rank = rank
        self.world_size = world_size
        self.waited_s = 0.0
        self._timeout_s = timeout_s
        self._flags: Any = None
        self._group: Any = None
        self._pending: tuple[Any, Any] | None = None
        if world_size > 1:
            self._flags = distributed.new_group(backend="gloo")
            self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which writes what is written once."""
        return self.rank == 0

    @property
    def group(self) -> Any:
        """Return the group for checkpoints; None with one rank."""
        return self._group

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """Return which flags were set on any rank, the same on all ranks at the same call.

        With several ranks the answer is the last call's: the reduction runs beside the computation between two calls.
        """
        if self._flags is None:
            return flags
        values = torch.tensor(flags, dtype=torch.int32)
        work = distributed.all_reduce(values, distributed.ReduceOp.MAX, group=self._flags, async_op=True)
        pending, self._pending = self._pending, (work, values)
        if pending is None:
            return (False,) * len(flags)
        began = time.perf_counter()
        pending[0].wait()
        self.waited_s += time.perf_counter() - began
        return tuple(bool(flag) for flag in pending[1].tolist())

    def settle(self) -> None:
        """Wait for a reduction that is still under way."""
        if self._pending is not None:
            self._pending[0].wait()
            self._pending = None

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return every rank's value, in the order of ranks.

        Raises:
            CheckpointTimeoutError: a rank did not come within the timeout.
        """
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        try:
            distributed.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:
            raise self._late(what, error) from error
        return values

    def from_first(self, value: Any, what: str) -> Any:
        """Return rank 0's value.

        Raises:
            CheckpointTimeoutError: rank 0 did not come within the timeout.
        """
        if self._group is None:
            return value
        values = [value]
        try:
            distributed.broadcast_object_list(values, 0, group=self._group)
        except RuntimeError as error:
            raise self._late(what, error) from error
        return values[0]

    def sum(self, values: Any) -> Any:
        """Return a host tensor summed over ranks."""
        if self._group is not None:
            began = time.perf_counter()
            distributed.all_reduce(values, group=self._flags)
            self.waited_s += time.perf_counter() - began
        return values

    def _late(self, what: str, error: RuntimeError) -> CheckpointTimeoutError:
        first = str(error).splitlines()[0]
        return CheckpointTimeoutError(
            f"{what}: rank {self.rank} waited for the others for up to {self._timeout_s:g} s "
            f"(checkpoint_timeout_seconds): {first}"
        )
