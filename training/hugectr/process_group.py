"""Where a process stands among the ranks, and the process group of a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import distributed

from hugectr.exceptions import HugeCtrError
from hugectr.host_memory import keep_freed_memory
from hugectr.quiet import hush_libraries
from hugectr.rank_engine import Rank
from hugectr.solver import SolverParser

# Variables of a launcher: rank, number of ranks, rank within the node.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}
JOIN_TIMEOUT = timedelta(minutes=5)


class Launched(NamedTuple):
    """A process that a launcher started as one of several."""

    launcher: str
    number: int
    size: int


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Return what the launcher's variables say; None where the process is alone."""
    for launcher, (rank, size, _) in LAUNCHERS.items():
        if rank in environment and int(environment.get(size, "1")) > 1:
            return Launched(launcher, int(environment[rank]), int(environment[size]))
    return None


def check_ranks(solver: SolverParser, place: Launched | None) -> None:
    """Check that the processes are those that vvgpu asks for.

    Raises:
        HugeCtrError: they are not; the message has the command to start.
    """
    size, nodes = solver.num_ranks, len(solver.vvgpu)
    gpus = [list(node) for node in solver.vvgpu]
    if place is None and nodes > 1:
        raise HugeCtrError(
            f"vvgpu is {gpus}, of {nodes} nodes; start a process for each GPU on every node, with: torchrun "
            f"--nnodes {nodes} --nproc-per-node {len(solver.vvgpu[0])} --rdzv-endpoint HOST:PORT PROGRAM"
        )
    if place is not None and place.size != size:
        raise HugeCtrError(
            f"vvgpu is {gpus}, {size} GPUs; {place.launcher} started {place.size} processes. Start as many, with: "
            f"torchrun --nproc-per-node {size} PROGRAM, or name {place.size} GPUs"
        )


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
