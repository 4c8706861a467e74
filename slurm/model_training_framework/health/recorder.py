"""Recorder of one rank's steps: parts of each from marks, counters of the process, a line per event.

A line is an event of ``predictor.watch.events`` with the same names; ``event`` says which: start, step, activity or
end. Rank 0 alone writes start and end.
"""

from __future__ import annotations

import atexit
import logging
import socket
import time
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from model_training_framework.health.lines import JsonLines
from model_training_framework.health.marks import Marks
from model_training_framework.health.process import ProcessCounters
from predictor.watch.events import ALLOCATOR_RETRIES, COMMUNICATION

log = logging.getLogger(__name__)

FOLDER = "health"
REST = ""  # time of a step that belongs to no part
OUTSIDE = "outside"  # time between steps: checkpoints and evaluations, which have lines of their own
INTERVAL_S = 0.5  # between writes: encoding many lines at once is cheap; a kill loses no more
MOST_WAITING = 1000  # steps


def rank_file(folder: Path, rank: int) -> Path:
    """Return where a rank's lines are, in a run's folder."""
    return folder / FOLDER / f"rank-{rank:05d}.jsonl"


class Recorder:
    """Writes what one rank does; a file that cannot be opened is said once, and training goes on without it."""

    def __init__(self, folder: Path, rank: int, world_size: int, device: Any = None) -> None:
        """Open the rank's file and choose the clock.

        Args:
            folder: of the run; the file is in ``health`` below it.
            rank: of this process.
            world_size: ranks of the run.
            device: torch's; None: the host.
        """
        self._rank, self._world_size = rank, world_size
        self._device = device if device is not None and device.type == "cuda" else None
        self._marks = Marks(is_gpu=self._device is not None)
        self._waiting: deque[tuple[dict[str, Any], list[tuple[str, Any]], Any]] = deque()
        self._marked_at = self._written_at = time.perf_counter()
        self._samples = self._tokens = 0
        self._sequence_length: int | None = None
        self._counters = ProcessCounters()
        self._lines: JsonLines | None = None
        try:
            self._lines = JsonLines(rank_file(folder, rank))
        except OSError as error:
            log.warning("%s cannot be written: %s; the run has no telemetry", error.filename, error.strerror)
        atexit.register(self._write)

    def start(
        self,
        tool: str,
        resumed_step: int | None = None,
        target_step: int | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        """Note that training begins or goes on.

        Args:
            tool: framework.
            resumed_step: last step of the checkpoint; None: from the beginning.
            target_step: at which it ends.
            hosts: of the ranks, in their order; empty: this one.
        """
        if self._rank == 0:
            self._add(
                "start",
                at=time.time(),
                resumed_step=resumed_step,
                hosts=list(dict.fromkeys(hosts or (socket.gethostname(),))),
                world_size=self._world_size,
                target_step=target_step,
                tool=tool,
            )
            self._write()
        self._marks.marks.clear()
        self.enter()

    def enter(self, part: str = REST) -> None:
        """Note that a part of the step begins, of ``PARTS``."""
        self._marked_at = time.perf_counter()
        self._marks.mark(part)

    def outside(self, part: str, step: int) -> None:
        """Note that a checkpoint or an evaluation took the time since the last mark, after a step."""
        marks = self._marks.marks
        if marks:
            marks[-1] = (OUTSIDE, marks[-1][1])
        seconds = round(time.perf_counter() - self._marked_at, 6)
        self.enter()
        self._settle(MOST_WAITING)
        self._add("activity", part=part, step=step, seconds=seconds, at=time.time(), rank=self._rank)
        self._write()

    def count(self, batch: Any) -> None:
        """Count the samples and tokens of a batch of this rank: of ``input_ids``, or of the first tensor."""
        tokens = batch.get("input_ids") if isinstance(batch, Mapping) else None
        parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else (batch,)
        first = tokens if tokens is not None else next((part for part in parts if getattr(part, "shape", ())), None)
        if first is None:
            return
        self._samples += first.shape[0]
        if tokens is not None and len(tokens.shape) == 2:
            self._tokens += tokens.shape[0] * tokens.shape[1]
            self._sequence_length = tokens.shape[1]

    def expect_backward(self, loss: Any) -> None:
        """Have communication marked from the end of the backward pass of a loss, where there are other ranks.

        The engine runs callbacks in the order of queueing. This one is queued with the loss's gradient, before those
        with which DDP and FSDP2 wait for their reductions, which they queue in the course of the pass. So the part is
        the time from the rank's last gradient on, in which it waits for its buckets and for slower ranks.
        """
        if self._world_size > 1 and getattr(loss, "requires_grad", False):
            loss.register_hook(self._queue_communication)

    def _queue_communication(self, _grad: Any) -> None:
        from torch.autograd import Variable

        Variable._execution_engine.queue_callback(lambda: self.enter(COMMUNICATION))

    def step(self, number: int, data_ranks: int | None = None, loss: Any = None, waited_s: float = 0.0) -> None:
        """Note that an optimizer step ended.

        Args:
            number: of the step, from 1.
            data_ranks: over which samples are shared out; None: all.
            loss: of this rank, a number or a tensor; on a GPU it is read once the step has ended there.
            waited_s: for other ranks outside of the marked communication.
        """
        ranks = self._world_size if data_ranks is None else data_ranks
        self.enter()
        counters = self._counters.read()
        held, limit = self._memory(counters)
        values: dict[str, Any] = {
            "number": number,
            "at": time.time(),
            "rank": self._rank,
            "tokens": self._tokens * ranks or None,
            "samples": self._samples * ranks or None,
            "sequence_length": self._sequence_length,
            "memory_bytes": held,
            "memory_limit_bytes": limit,
            "counters": counters,
            COMMUNICATION: waited_s,
        }
        self._samples = self._tokens = 0
        self._waiting.append((values, self._marks.take(), self._kept(loss)))
        if self._marked_at - self._written_at >= INTERVAL_S or len(self._waiting) > MOST_WAITING:
            self._write()

    def end(self, state: str) -> None:
        """Note that training ended, and close the file."""
        atexit.unregister(self._write)
        self._settle(0)
        if self._rank == 0:
            self._add("end", state=state, at=time.time())
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._counters.close()

    def _settle(self, most: int) -> None:
        """Turn steps whose marks were passed into lines; wait for the oldest while more than ``most`` are under way."""
        while self._waiting:
            if self._marks.is_gpu:
                last = self._waiting[0][1][-1][1]
                if not last.query():
                    if len(self._waiting) <= most:
                        return
                    last.synchronize()
            values, marks, loss = self._waiting.popleft()
            seconds, parts = self._times(marks)
            waited_s = values.pop(COMMUNICATION)
            if waited_s:
                parts[COMMUNICATION] = parts.get(COMMUNICATION, 0.0) + waited_s
            values["parts"] = {part: round(s, 7) for part, s in parts.items()}
            self._add("step", seconds=round(seconds, 7), loss=None if loss is None else float(loss), **values)

    def _times(self, marks: list[tuple[str, Any]]) -> tuple[float, dict[str, float]]:
        """Return the seconds of a step, and of its parts."""
        seconds, parts = 0.0, dict[str, float]()
        for (part, begin), (_, end) in pairwise(marks):
            took = 1e-6 * self._marks.us(begin, end)
            if part == OUTSIDE:
                continue
            seconds += took
            if part != REST:
                parts[part] = parts.get(part, 0.0) + took
        return seconds, parts

    def _kept(self, loss: Any) -> Any:
        """Return a loss that can be read when the step has ended: of a GPU a copy in pinned memory."""
        if self._device is None or not hasattr(loss, "detach"):
            return loss
        import torch

        copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
        return copy.copy_(loss.detach().reshape(()), non_blocking=True)

    def _memory(self, counters: dict[str, float]) -> tuple[float | None, float | None]:
        """Return memory and its limit, and put the allocator's retries to the counters."""
        if self._device is None:
            return self._counters.memory or (None, None)
        import torch

        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        counters[ALLOCATOR_RETRIES] = stats["num_alloc_retries"]
        total = torch.cuda.get_device_properties(self._device).total_memory
        return float(stats["reserved_bytes"]["all"]["current"]), float(total)

    def _add(self, event: str, **values: Any) -> None:
        if self._lines is not None:
            self._lines.add({"event": event, **{name: value for name, value in values.items() if value is not None}})

    def _write(self) -> None:
        """Write what is known: also at exit, where nobody ended the run."""
        self._written_at = time.perf_counter()
        self._settle(MOST_WAITING)
        if self._lines is not None:
            self._lines.write()


def state_of(error: BaseException) -> str:
    """Return how a run ended by an error, in Slurm's words."""
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):
        return "OUT_OF_MEMORY"
    return "PREEMPTED" if isinstance(error, SystemExit) else "FAILED"
