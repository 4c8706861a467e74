"""Ranks of a job as processes on this machine: the port that they meet at, and their common end."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Container, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

# Below the ports that Linux gives to outgoing connections, so that none takes a free port before it is listened at.
PORTS = range(15000, 20000)


def free_port() -> int:
    """Return a port of this machine's loopback that no other process uses."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port")


def run_together(ranks: Sequence[BaseProcess], deadline_s: float, expected: Container[int]) -> list[int]:
    """Start all ranks and return their exit codes; where one ends otherwise than expected, the others are killed."""
    for rank in ranks:
        rank.start()
    end = time.monotonic() + deadline_s
    alive = list(ranks)
    while alive:
        done = wait([rank.sentinel for rank in alive], timeout=max(0.0, end - time.monotonic()))
        for rank in alive:
            rank.join(None if rank.sentinel in done else 0.0)
        alive = [rank for rank in alive if rank.sentinel not in done]
        if not done or any(rank.exitcode not in expected for rank in ranks if rank not in alive):
            for rank in alive:
                rank.kill()
    return [int(rank.exitcode or 0) for rank in ranks]
