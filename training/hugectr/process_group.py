"""The process group of a rank, and its device."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import warnings
from datetime import timedelta

import torch
from torch import distributed

from hugectr.exceptions import HugeCtrError
from hugectr.launchers import Launched
from hugectr.rank_engine import Rank
from hugectr.solver import SolverParser

LOGGERS = ("torchrec.distributed.utils", "torch.fx._symbolic_trace")


def hush_libraries() -> None:
    """Leave out TorchRec's remarks on kernels and PyTorch's on names that TorchRec still uses."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BYTES = 1 << 30  # blocks above it still go back


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for later steps; return whether it does, as glibc's alone can."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(option, LARGEST_BYTES) == 1 for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


JOIN_TIMEOUT = timedelta(minutes=5)


def device_of(solver: SolverParser, index: int) -> torch.device:
    """Return a rank's GPU, or the CPU on a machine without.

    Raises:
        HugeCtrError: the machine has GPUs, and not that one.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpu = [gpu for node in solver.vvgpu for gpu in node][index]
    if gpu >= torch.cuda.device_count():
        raise HugeCtrError(f"vvgpu names GPU {gpu}; this machine has {torch.cuda.device_count()}, counted from 0")
    return torch.device("cuda", gpu)


def join(solver: SolverParser, index: int, store: distributed.Store | None) -> Rank:
    """Make the default process group, unless there is one of the right size, and return this rank.

    Args:
        solver: whose ranks they are.
        index: of this rank.
        store: where ranks meet; None: as a launcher's variables say.
    """
    hush_libraries()
    device = device_of(solver, index)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=index, world_size=solver.num_ranks, timeout=JOIN_TIMEOUT
        )
    elif distributed.get_world_size() != solver.num_ranks:
        raise HugeCtrError(
            f"vvgpu names {solver.num_ranks} GPUs; torch.distributed already runs with {distributed.get_world_size()}"
        )
    return Rank(index, solver.num_ranks, device, distributed.group.WORLD)


def join_alone(solver: SolverParser) -> Rank:
    """Return the only rank."""
    return join(solver, 0, distributed.HashStore())


def join_launched(solver: SolverParser, place: Launched) -> Rank:
    """Return this process's rank among those that a launcher started.

    Raises:
        HugeCtrError: nothing says where the ranks meet.
    """
    if not distributed.is_initialized():
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise HugeCtrError(
                f"{place.launcher} started {place.size} processes, and {missing[0]} is not set; start with: "
                f"MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 mpirun -n {place.size} python PROGRAM"
            )
    return join(solver, place.number, None)
