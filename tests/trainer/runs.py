"""Start runs of tests/trainer/job.py in processes, disturb them, resume them, and compare what they leave."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.ranks import free_port, run_together
from tests.trainer.job import Kill, Scenario, main_of_rank

TIMES = {"step_time_s", "time_s"}
DEADLINE_S = 120.0
RESUMABLE = 75
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.trainer.job", "torch.utils.data", "torch.distributed.tensor"])


@dataclass(frozen=True, slots=True)
class Left:
    """What a finished run left; two are compared with ==."""

    lines: list[dict[str, Any]]
    results: list[dict[str, Any]]


def start(scenario: Scenario, folder: Path, kill: Kill | None = None) -> list[int]:
    """Run all ranks once and return their exit codes; where one dies, the others are killed, as Slurm does."""
    port = free_port()
    ranks = [
        _CONTEXT.Process(target=main_of_rank, args=(scenario, str(folder), kill, rank, port))
        for rank in range(scenario.ranks)
    ]
    return run_together(ranks, DEADLINE_S, (0, RESUMABLE))


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))


def finish(scenario: Scenario, folder: Path, kills: list[Kill]) -> tuple[Left, list[list[int]]]:
    """Run, killed as said, and start again until it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    codes: list[list[int]] = []
    pending = list(kills)
    while True:
        codes.append(start(scenario, folder, pending.pop(0) if pending else None))
        if not any(codes[-1]):
            return left(scenario, folder), codes
        unexpected = [code for code in codes[-1] if code not in (0, RESUMABLE, -signal.SIGKILL)]
        # A rank whose neighbour was killed may notice before it is killed itself.
        assert not unexpected or -signal.SIGKILL in codes[-1], f"{codes}\n{logs(folder)}"
        assert len(codes) <= len(kills) + 1, f"{codes}\n{logs(folder)}"


def left(scenario: Scenario, folder: Path) -> Left:
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    lines = [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
    return Left(lines, [torch.load(folder / f"result-{rank}") for rank in range(scenario.ranks)])


def difference(one: Left, other: Left) -> str:
    """Return the first thing in which two runs differ; empty if they are equal bit by bit."""
    if one.lines != other.lines:
        for number, (a, b) in enumerate(zip(one.lines, other.lines, strict=False)):
            if a != b:
                return f"line {number}: {a} != {b}"
        return f"{len(one.lines)} != {len(other.lines)} lines"
    for rank, (a, b) in enumerate(zip(one.results, other.results, strict=True)):
        for name in ("batches", "epochs", "step", "metrics"):
            if a[name] != b[name]:
                return f"rank {rank}: {name} {a[name]} != {b[name]}"
        for name, value in a["weights"].items():
            if not torch.equal(value, b["weights"][name]):
                return f"rank {rank}: {name} differs by up to {(value - b['weights'][name]).abs().max()}"
    return ""


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
