"""Somebody who waits for a search: they hear how far it is, and may end it with the best so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TextIO

FIRST_S = 2.0  # a search that is over by then says nothing
EVERY_S = 0.5
ERASE = "\r\x1b[K"  # from the beginning of the line on: EL of ECMA-48
INTERRUPTED = "Interrupted before the search was over: other layouts may be faster."


class Watch:
    """How far a search is, as it is said, and whether it shall end.

    Attributes:
        stopped: it shall end.
    """

    def __init__(self, terminal: TextIO | None = None, columns: int = 0) -> None:
        """Begin to wait, at a terminal of so many columns; where it is None, nobody listens."""
        self.stopped = False
        self._terminal, self._columns = terminal, columns
        self._next = monotonic() + FIRST_S

    def follows(self, progress: Callable[[], str]) -> bool:
        """Say how far a search is, every so often; return whether it goes on."""
        if self._terminal is not None and monotonic() >= self._next:
            self._show(progress()[: self._columns - 1])
            self._next = monotonic() + EVERY_S
        return not self.stopped

    def _show(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.write(f"{ERASE}{text}")
            self._terminal.flush()

    def _stop(self, *_: object) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Follow the searches meanwhile; the first SIGINT ends them with the best so far, the second one at once."""
        before, token = signal.getsignal(signal.SIGINT), WATCH.set(self)
        takes_signals = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        if takes_signals:
            signal.signal(signal.SIGINT, self._stop)
        try:
            yield
        finally:
            WATCH.reset(token)
            if takes_signals:
                signal.signal(signal.SIGINT, before)
            self._show("")


# Of the search that runs; one that is asked for from Python ends by KeyboardInterrupt alone.
WATCH: ContextVar[Watch] = ContextVar("watch", default=Watch())  # noqa: B039 (it never stops)
