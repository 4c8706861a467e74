"""One rank of a session as a process: ``python -m hugectr.rank_worker``, started by ``hugectr.ranks``.

Commands come one JSON object a line on standard input: first where the ranks meet, then calls of the engine's methods.
Answers go to standard output; whatever the libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

from torch import distributed

from hugectr.exceptions import HugeCtrError
from hugectr.ranks import MAKE
from hugectr.solver import SolverParser, solver_parser_helper
from predictor.core.base.errors import ConfigError, MissingKeyError

if TYPE_CHECKING:
    from hugectr.rank_engine import RankEngine

ORPHANED = 3
CLOSING_S = 2.0  # between the closing of one rank and of the next, on machines that do much else
LOOPBACK = "127.0.0.1"


class Commands:
    """Commands from the program, read by a thread so that the rank ends with the program even within a collective."""

    def __init__(self) -> None:
        """Begin to read."""
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closing = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any]:
        """Return the next command."""
        return self._commands.get()

    def closes(self, within_s: float) -> bool:
        """Return whether the program closes the session, now or within some seconds."""
        return self._closing.wait(within_s)

    def _read(self) -> None:
        buffer = b""
        while chunk := os.read(0, 1 << 16):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                command = json.loads(line)
                if "close" in command:
                    self._closing.set()
                self._commands.put(command)
        if not self._closing.is_set():
            os._exit(ORPHANED)


def _store(command: dict[str, Any]) -> tuple[distributed.TCPStore, int]:
    """Return where ranks meet, and its port; rank 0 opens it at a free one."""
    is_first = command["index"] == 0
    store = distributed.TCPStore(LOOPBACK, command["port"], command["size"], is_master=is_first, wait_for_workers=False)
    return store, int(store.port)


class Worker:
    """Answers commands."""

    def __init__(self, answers: int, commands: Commands) -> None:
        """Take the descriptor for answers."""
        self._answers, self._commands = answers, commands
        self._store: distributed.TCPStore | None = None
        self._index = 0
        self._engine: RankEngine | None = None

    def run(self) -> int:
        """Answer until the program closes the session.

        An interrupt may find a call that not all ranks were sent: a collective then fails when its peer closes. That is
        the session's end and no error.
        """
        command = self._commands.next()
        while "close" not in command:
            try:
                answer = {"result": self._answer(command)}
            except (HugeCtrError, ConfigError, MissingKeyError, OSError) as error:
                answer = {"error": (type(error).__name__, str(error))}
            except RuntimeError:
                if self._commands.closes(within_s=CLOSING_S):
                    return 0
                raise
            os.write(self._answers, json.dumps(answer).encode() + b"\n")
            command = self._commands.next()
        self._close()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        return 0

    def _answer(self, command: dict[str, Any]) -> Any:
        if "port" in command:
            self._store, port = _store(command)
            self._index = command["index"]
            return port
        if command["call"] == MAKE:
            self._close()
            self._engine = self._make(**command["kwargs"])
            return None
        return getattr(self._engine, command["call"])(*command["args"], **command["kwargs"])

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _make(self, solver: dict[str, Any], **arguments: Any) -> RankEngine:
        """Make the engine; TorchRec is loaded here, which takes seconds, by all ranks at once."""
        from hugectr.process_group import join
        from hugectr.rank_engine import RankEngine

        settings: SolverParser = solver_parser_helper(**solver)
        rank = join(settings, self._index, self._store)
        return RankEngine(settings, rank=rank, **arguments)


def main() -> int:
    """Run a rank."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return Worker(answers, Commands()).run()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # all is closed; torch's own end of a process takes seconds
