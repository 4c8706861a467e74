"""Ranks of a session that one program starts itself: child processes that take commands over pipes.

A rank is ``python -m hugectr.rank_worker``. It reads one JSON object a line from its standard input and answers each
with one on its standard output. A rank whose standard input ends, as when the program is killed, ends itself. Ranks
meet at a port of the loopback that rank 0 picks.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hugectr import exceptions
from hugectr.exceptions import HugeCtrError
from hugectr.solver import SolverParser

# After one rank's error, how long the others may take to answer; then they wait for the failed one, in vain.
WORKER = "hugectr.rank_worker"
MAKE = "make"
SESSION_CLOSED = "the session is closed; make a new one"
GRACE_S = 5.0
CLOSE_S = 10.0
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class RankError(HugeCtrError):
    """A rank that ended, or did not answer; the session is closed."""


class Child:
    """One rank."""

    def __init__(self, index: int, size: int) -> None:
        """Start the process."""
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // size)))
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.index = index
        # An interrupt is the program's, which then closes the session. A child inherits that it is blocked.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._buffer = b""

    @property
    def answers(self) -> int:
        """Return the descriptor on which answers come."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a command.

        Raises:
            BrokenPipeError: the rank has ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """Return an answer if it is complete; call it when the descriptor is ready.

        Raises:
            EOFError: the rank has ended.
        """
        chunk = os.read(self.answers, 1 << 20)
        if not chunk:
            raise EOFError
        line, separator, rest = (self._buffer + chunk).partition(b"\n")
        self._buffer = rest if separator else line
        answer: dict[str, Any] | None = json.loads(line) if separator else None
        return answer


class ChildRanks:
    """All ranks of a session, and calls to all of them at once."""

    def __init__(self, size: int) -> None:
        """Start the ranks.

        Raises:
            RankError: a rank ended.
        """
        self._children = [Child(index, size) for index in range(size)]
        self._end = weakref.finalize(self, _end_all, list(self._children))
        first = self._children[0]
        port = self._ask([first], {"index": 0, "size": size, "port": 0})[0]
        self._ask(self._children[1:], {"size": size, "port": port})

    @property
    def pids(self) -> list[int]:
        """Return the processes' ids."""
        return [child.process.pid for child in self._children]

    def make_engines(self, solver: SolverParser, **arguments: Any) -> None:
        """Make every rank's engine, in place of the one before; arguments are those of ``RankEngine``.

        Raises:
            HugeCtrError: they cannot be made.
        """
        self.call(MAKE, solver=asdict(solver), **arguments)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank's engine, and return rank 0's result.

        Raises:
            HugeCtrError: what the engines raised.
            RankError: a rank ended.
        """
        if not self._end.alive:
            raise RankError(SESSION_CLOSED)
        return self._ask(self._children, {"call": method, "args": args, "kwargs": kwargs})[0]

    def close(self) -> None:
        """End all ranks."""
        self._end()

    def _ask(self, children: Sequence[Child], message: dict[str, Any]) -> list[Any]:
        answers: dict[int, dict[str, Any]] = {}
        for child in children:
            try:
                child.send({"index": child.index, **message})
            except BrokenPipeError:
                raise self._ended(child) from None
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child.answers, selectors.EVENT_READ, child)
            deadline: float | None = None
            while len(answers) < len(children):
                ready = selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                for key, _ in ready:
                    answer = self._read(key.data)
                    if answer is None:
                        continue
                    answers[key.data.index] = answer
                    selector.unregister(key.fileobj)
                    if "error" in answer and deadline is None:
                        deadline = time.monotonic() + GRACE_S
        self._raise_first(children, answers)
        return [answers[child.index]["result"] for child in children]

    def _read(self, child: Child) -> dict[str, Any] | None:
        try:
            return child.read()
        except EOFError:
            raise self._ended(child) from None

    def _raise_first(self, children: Sequence[Child], answers: dict[int, dict[str, Any]]) -> None:
        errors = [answers[index]["error"] for index in sorted(answers) if "error" in answers[index]]
        if len(answers) < len(children):
            self.close()
        if errors:
            name, message = errors[0]
            raise getattr(exceptions, name, HugeCtrError)(message)

    def _ended(self, child: Child) -> RankError:
        """End the others too, and return the error."""
        status = child.process.wait()
        self.close()
        return RankError(
            f"rank {child.index} ended with status {status}; its messages say why, and the session is closed"
        )


def _end_all(children: Sequence[Child]) -> None:
    """Let ranks end by themselves, and kill those that do not."""
    for child in children:
        assert child.process.stdin is not None
        try:
            child.send({"index": child.index, "close": True})
            child.process.stdin.close()
        except (BrokenPipeError, ValueError):
            continue
    deadline = time.monotonic() + CLOSE_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        assert child.process.stdout is not None
        child.process.stdout.close()
