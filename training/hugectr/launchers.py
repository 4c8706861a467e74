"""Detect a launcher that started this process as one of several ranks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from hugectr.exceptions import HugeCtrError
from hugectr.solver import SolverParser

ENGINE = ("torch", "fbgemm_gpu", "torchrec")
# Variables of a launcher: rank and number of ranks.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
}


class Launched(NamedTuple):
    """A process that a launcher started as one of several."""

    launcher: str
    number: int
    size: int


def check_engine() -> None:
    """Check that what trains is installed and loads.

    Raises:
        HugeCtrError: a package is missing or broken; the message has the commands that install it.
    """
    for name in ENGINE:
        fault = "" if find_spec(name) else "is not installed"
        try:
            if not fault:
                import_module(name)
        except (ImportError, OSError) as error:  # OSError: a shared library, by torch.ops.load_library
            fault = f"is installed, but does not load ({str(error).strip().partition(chr(10))[0]})"
        if fault:
            raise HugeCtrError(
                f"{name} {fault}; training needs pip install 'estimate-train-time[recommend]' and pip "
                "install --no-deps -r training/hugectr/engine-cpu.txt"
            )


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Return what torch.distributed or the launcher's variables say; None where the process is alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and distributed.get_world_size() > 1:
        return Launched("the program", distributed.get_rank(), distributed.get_world_size())
    for launcher, (rank, size) in LAUNCHERS.items():
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
