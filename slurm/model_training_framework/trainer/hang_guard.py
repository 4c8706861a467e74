"""Hang detection: a rank that stands still, or that does not obey a signal, is named with its stack, and the run ends.

A thread of its own does it, since a collective that waits for a lost rank keeps the main thread from everything else,
signal handlers included. Ranks tell each other of their progress through a TCPStore, which no collective holds up.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import distributed

from model_training_framework.trainer.preemption import EXIT_RESUMABLE, SIGNALS
from model_training_framework.trainer.ranks import Ranks

log = logging.getLogger(__name__)

FOLDER = "hang"  # in experiment_dir: the stacks of the ranks of a run that hung
LOOKS = 20  # in a timeout
LONGEST_PAUSE_S = 2.0
SHARE_OF_GRACE = 0.8  # what a step may take of the grace period; the rest is for the checkpoint, or for the end
COMPILATION = 6.0  # timeouts until the first step of a process is done: compilation, and the first batch


@dataclass(frozen=True, slots=True)
class Beat:
    """Progress of a rank, as its thread tells it.

    Attributes:
        count: of the thread's looks: one that no longer grows is of a stopped process.
        passed: phases that the rank has entered.
        is_paused: in a callback or a checkpoint, which may take as long as they like here.
        where: phase and line.
    """

    count: int
    passed: int
    is_paused: bool
    where: str


class HangGuard:
    """Ends this rank with status 75 where the run stands still for ``timeout_s``, or where a signal is not obeyed."""

    def __init__(self, ranks: Ranks, timeout_s: float, grace_s: float, folder: Path) -> None:
        """Prepare; the thread starts on entering.

        Args:
            ranks: of the run.
            timeout_s: longest time that a rank may stay in one phase of a batch.
            grace_s: from a signal to the end of the job.
            folder: of the run, for the stacks.
        """
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._folder = folder / FOLDER
        self._main = threading.main_thread().ident
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang guard", daemon=True)
        self._store: Any = None
        self._seen: dict[int, tuple[int, float]] = {}
        self._count = 0
        self._last = (time.monotonic(), "start")
        self._passed = self._pauses = 0
        self._has_stepped = self._has_failed = False
        self._signal: tuple[signal.Signals, float] | None = None
        self._pipe: tuple[int, int] | None = None
        self._fd_before = -1

    def passed(self, phase: str) -> None:
        """Note that the main thread has entered a phase."""
        self._passed += 1
        self._last = (time.monotonic(), phase)

    def stepped(self) -> None:
        """Note that an optimizer step is done."""
        self._has_stepped = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let callbacks and checkpoints, which have a timeout of their own, take their time."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._last = (time.monotonic(), self._last[1])

    def __enter__(self) -> HangGuard:
        """Connect the ranks and start the thread."""
        if self._ranks.world_size == 1:  # waits for nobody
            return self
        self._store = self._connect()
        if threading.current_thread() is threading.main_thread():
            # The interpreter runs a handler between two of its instructions, the C handler writes here at once.
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            self._fd_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._last = (time.monotonic(), "start")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the thread."""
        self._has_failed = kind is not None and not issubclass(kind, SystemExit)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._fd_before)
            for end in self._pipe:
                os.close(end)

    def _connect(self) -> Any:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        # A rank 0 that was stopped answers no more; so long this thread waits for it, and sees to no signal.
        patience = timedelta(seconds=max(5.0, min(self._timeout_s, self._grace_s) / 4))
        options: dict[str, Any] = {"world_size": None, "timeout": patience, "wait_for_workers": False}
        store = distributed.TCPStore(host, 0, is_master=True, **options) if self._ranks.is_first else None
        port = self._ranks.from_first(store.port if store is not None else 0, "watch the ranks")
        return store or distributed.TCPStore(host, port, is_master=False, **options)

    def _watch(self) -> None:
        pause_s = min(LONGEST_PAUSE_S, self._timeout_s / LOOKS, self._grace_s / LOOKS)
        # Once more after an error, which may be of a rank that has ended itself here and told why.
        while not self._ended.is_set() or self._has_failed:
            self._has_failed = False
            self._note_signals(pause_s)
            if self._signal is not None and not self._pauses:
                name, at = self._signal
                if time.monotonic() - at > SHARE_OF_GRACE * self._grace_s:
                    self._end(f"{name.name} came {time.monotonic() - at:.0f} s ago, and the step has not ended since")
            self._look_at_ranks(pause_s)

    def _note_signals(self, pause_s: float) -> None:
        """Wait for a pause, or a signal."""
        if self._pipe is None:
            self._ended.wait(pause_s)
            return
        if select.select([self._pipe[0]], [], [], pause_s)[0]:
            with suppress(BlockingIOError):
                for number in os.read(self._pipe[0], 512):
                    if number in SIGNALS and self._signal is None:
                        self._signal = (signal.Signals(number), time.monotonic())

    def _look_at_ranks(self, pause_s: float) -> None:
        """Tell the other ranks of this one, and end where the run stands still."""
        age_s, limit_s = time.monotonic() - self._last[0], self._limit_s()
        try:
            if self._store.check(["hang"]):
                self._end(self._store.get("hang").decode())
            self._count += 1
            where = self._last[1] + (f" at {_line(self._stack())}" if age_s > limit_s / 2 else "")
            beat = Beat(self._count, self._passed, self._pauses > 0, where)
            self._store.set(str(self._ranks.rank), json.dumps([beat.count, beat.passed, beat.is_paused, beat.where]))
            if age_s < limit_s / 2 or self._pauses:
                return
            beats = self._beats()  # from half the limit on, so that a silent rank is known by its end
            if age_s < limit_s:
                return
            reason = self._reason(beats, limit_s)
        except (RuntimeError, ValueError) as error:  # the store is rank 0's
            if self._ended.is_set() or age_s < limit_s or self._pauses:
                return
            reason = f"rank 0 does not answer: {str(error).splitlines()[0]}"
        if reason:
            with suppress(RuntimeError, ValueError):
                self._store.set("hang", reason)
                time.sleep(2 * pause_s)  # for the others, whose collectives fail when this one ends
            self._end(reason)

    def _limit_s(self) -> float:
        return self._timeout_s if self._has_stepped else COMPILATION * self._timeout_s

    def _beats(self) -> dict[int, Beat]:
        """Return what the ranks have told, and note since when each has told the same."""
        found = {}
        for rank in range(self._ranks.world_size):
            has_told = self._store.check([str(rank)])
            beat = Beat(*json.loads(self._store.get(str(rank)))) if has_told else Beat(0, 0, False, "its start")
            if self._seen.get(rank, (-1, 0.0))[0] != beat.count:
                self._seen[rank] = (beat.count, time.monotonic())
            found[rank] = beat
        return found

    def _reason(self, beats: dict[int, Beat], limit_s: float) -> str:
        """Return which rank holds up the run; empty while one is busy in a callback or a checkpoint."""
        now = time.monotonic()
        silent = [rank for rank in beats if now - self._seen[rank][1] > limit_s / 4]
        if any(beat.is_paused for rank, beat in beats.items() if rank not in silent):
            return ""
        waited = f"no rank went on for {limit_s:g} s (rank_timeout_seconds)"
        if silent:
            told = ", ".join(f"rank {rank} no longer runs, last in {beats[rank].where}" for rank in silent)
            return f"{waited}: {told}"
        least = min(beat.passed for beat in beats.values())
        behind = [rank for rank, beat in beats.items() if beat.passed == least]
        if len(behind) == len(beats):
            return f"{waited}: all ranks are in {beats[0].where}: a collective, or the network"
        told = ", ".join(f"rank {rank} is in {beats[rank].where}" for rank in behind)
        return f"{waited}: {told}; the others wait"

    def _stack(self) -> traceback.StackSummary:
        frame = sys._current_frames().get(self._main or 0)
        return traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()

    def _end(self, reason: str) -> None:
        """Write this rank's stack and end the process, to be resumed: nothing else can be done from this thread."""
        path = self._folder / f"rank-{self._ranks.rank:05}.txt"
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{reason}\n\n{''.join(self._stack().format())}", encoding="utf-8")
        log.error("%s. This rank's stack is in %s; exit %d, to be resumed", reason, path, EXIT_RESUMABLE)
        logging.shutdown()
        os._exit(EXIT_RESUMABLE)


def _line(stack: traceback.StackSummary) -> str:
    """Return the innermost line outside installed packages, or the innermost one."""
    if not stack:
        return "an unknown line"
    entry = next((entry for entry in reversed(stack) if "site-packages" not in entry.filename), stack[-1])
    return f"{Path(entry.filename).name}:{entry.lineno} ({entry.name})"
