"""Processes that start timing at once: each gets ready, all are told to go, each prints its answer as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from microbench.errors import MeasureError

READY, GO = "ready", "go"
TIMEOUT_S = 120.0


def answers_at_once(commands: Sequence[Sequence[str]], what: str) -> list[Any]:
    """Return what processes print that start at once, each as ``wait_for_the_others`` lets it.

    Args:
        commands: one per process; none is left running.
        what: they time, for the message.

    Raises:
        MeasureError: a process ended with an error, or printed something else.
    """
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in running:
            if process.stdout is None or process.stdout.readline().strip() != READY:
                raise MeasureError(f"{what} could not be timed; its own error is above")
        for process in running:
            assert process.stdin is not None
            process.stdin.write(GO + "\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in running]
    except (json.JSONDecodeError, subprocess.TimeoutExpired) as error:
        raise MeasureError(f"{what} could not be timed: {error}") from None
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def wait_for_the_others() -> bool:
    """Say that this process is ready, and return whether it is told to go."""
    say(READY)
    return sys.stdin.readline().strip() == GO


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
