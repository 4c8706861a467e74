"""Preemption: signals that ask a run to end, noted when they come and acted on at the next safe point."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

EXIT_RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the job script requeues
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class PreemptionGuard:
    """While entered, the first of SIGNALS sets ``signal_name`` and the grace period begins; nothing else happens."""

    def __init__(self, grace_s: float) -> None:
        """Say how long the grace period is, in seconds."""
        self._grace_s = grace_s
        self._before: dict[int, Any] = {}
        self.signal_name = ""
        self.requested_at = 0.0

    @property
    def is_requested(self) -> bool:
        """Return whether a signal came."""
        return bool(self.signal_name)

    @property
    def remaining_s(self) -> float:
        """Return what is left of the grace period; all of it where no signal came to this rank."""
        return self._grace_s - (time.monotonic() - self.requested_at if self.is_requested else 0.0)

    def __enter__(self) -> PreemptionGuard:
        """Take the signals over; only a process's main thread can."""
        self.signal_name = ""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self.signal_name:
            self.requested_at = time.monotonic()
            self.signal_name = signal.Signals(number).name
