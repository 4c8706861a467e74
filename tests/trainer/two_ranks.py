"""Start a function on every rank of a small run, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from tests.ranks import free_port, run_together

DEADLINE_S = 100.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.trainer.job", "torch.utils.data", "torch.distributed.tensor"])

Work = Callable[[Path], Any]


def _main(work: Work, folder: Path, rank: int, ranks: int, port: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    with (folder / f"rank-{rank}.log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            result = work(folder)
        except BaseException:
            traceback.print_exc()
            raise
    torch.save(result, folder / f"result-{rank}")


def on_ranks(work: Work, folder: Path, ranks: int = 2) -> list[Any]:
    """Run ``work`` on every rank and return what each gave."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes = [_CONTEXT.Process(target=_main, args=(work, folder, rank, ranks, port)) for rank in range(ranks)]
    codes = run_together(processes, DEADLINE_S, (0,))
    said = "\n".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))
    assert codes == [0] * ranks, f"{codes}\n{said}"
    return [torch.load(folder / f"result-{rank}") for rank in range(ranks)]
