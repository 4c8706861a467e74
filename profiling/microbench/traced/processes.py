"""Start one process per rank on this machine and wait for all; the first that fails ends the others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from microbench.errors import MeasureError

POLL_S = 0.05
GRACE_S = 5.0
LAST_LINES = 6


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a rank: this one's, with the loopback interface for gloo."""
    own = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(threads)}
    paths = [path for path in sys.path if path]
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:]) or "it said nothing"


def run_ranks(module: str, arguments: Sequence[str], ranks: int, threads: int, timeout_s: float) -> None:
    """Run ``python -m MODULE ARGUMENTS… RANK`` for every rank.

    Raises:
        MeasureError: a rank failed, with its last lines, or the time is over.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"rank-{rank}") for rank in range(ranks)]
        processes = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as stream:
                    command = [sys.executable, "-m", module, *arguments, str(rank)]
                    environ = environment(threads)
                    processes.append(
                        subprocess.Popen(
                            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environ
                        )
                    )
            _wait(processes, logs, timeout_s)
        finally:
            _end(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    running = list(range(len(processes)))
    while running:
        for rank in list(running):
            status = processes[rank].poll()
            if status is None:
                continue
            running.remove(rank)
            if status:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                raise MeasureError(f"rank {rank} ended with {how}: {_last_lines(logs[rank])}")
        if running and time.monotonic() > deadline:
            raise MeasureError(
                f"ranks {running} still ran after {timeout_s:.0f} s; the first last said: "
                f"{_last_lines(logs[running[0]])}"
            )
        time.sleep(POLL_S)
