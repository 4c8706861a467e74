"""Program of every rank: ``python -m microbench.collectives.ranks`` with the plan as JSON; rank 0 reports on stdout.

A report is a line that begins with ``MARK``; everything else that ranks or libraries print is for the error message.
Ranks outside the current topology sleep, because an MPI that waits in a call takes a whole core from those that work.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from microbench.collectives.backend import Backend, Group, buffer_bytes
from microbench.collectives.errors import CollectiveError
from microbench.collectives.topologies import Seat, check_seats, members
from microbench.timing import Blocks
from predictor.core.costs.collectives import Topology

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

MARK = "@collective "
MEMORY_SHARE = 0.5  # of what is free, so that neither the page cache nor a neighbour is pushed out
IDLE_S = 0.01
POLL_S = 0.0002


def node_name() -> str:
    """Return this node's name: Slurm's in a job, since several of its nodes share a host in tests, else the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _report(**values: object) -> None:
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def _sleep_until_all(world: Intracomm) -> None:
    """Wait for every rank without taking a core."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(IDLE_S)


def connect(world: Intracomm, plan: dict[str, Any], nodes: dict[str, list[int]]) -> Backend:
    """Return the backend that the plan names."""
    from microbench.collectives.mpi import MpiBackend
    from microbench.collectives.torch_distributed import TorchBackend

    if plan["backend"] == "mpi":
        return MpiBackend(world)
    here = nodes[node_name()]
    return TorchBackend(world, plan["backend"], plan["precision"], here.index(world.Get_rank()), len(here))


class Agreement:
    """Reductions over the ranks of a topology that sleep, not spin, while a slower rank still works."""

    def __init__(self, world: Intracomm, ranks: Sequence[int]) -> None:
        """Form a communicator; collective over these ranks only."""
        group = world.Get_group().Incl(list(ranks))
        self._comm = world.Create_group(group)
        group.Free()

    def slowest(self, us: Sequence[float]) -> list[float]:
        """Return the element-wise maximum of the ranks' times: a collective ends when its last rank does."""
        from mpi4py import MPI

        mine, longest = array("d", us), array("d", us)
        request = self._comm.Iallreduce(mine, longest, MPI.MAX)
        while not request.Test():
            time.sleep(POLL_S)
        return longest.tolist()

    def mean(self, us: Sequence[float]) -> list[float]:
        """Return the element-wise mean of the ranks' times: of a call that waits, a rank's share of its step."""
        from mpi4py import MPI

        mine, total = array("d", us), array("d", us)
        request = self._comm.Iallreduce(mine, total, MPI.SUM)
        while not request.Test():
            time.sleep(POLL_S)
        return [value / self._comm.Get_size() for value in total]

    def least(self, value: float) -> float:
        """Return the smallest of the ranks' values."""
        return -self.slowest([-value])[0]

    def close(self) -> None:
        """Give the communicator back."""
        self._comm.Free()


def run_calls(
    group: Group, backend: Backend, plan: dict[str, Any], part: dict[str, Any], agreement: Agreement, lowest: bool
) -> None:
    """Measure the calls of one topology, on its ranks."""
    topology, blocks = Topology(*part["topology"]), Blocks(**plan["blocks"])
    for index, collective, size_bytes in part["calls"]:
        needed = buffer_bytes(collective, size_bytes, topology.ranks)
        sharing = 1 if backend.device != "cpu" else topology.gpus_per_node
        free = agreement.least(float(backend.free_bytes()))
        if needed * sharing > MEMORY_SHARE * free:
            if lowest:
                _report(index=index, out_of_memory=f"needs {needed * sharing} bytes, {free:.0f} are free")
            continue
        call, computing_us = group.call(collective, size_bytes), plan["computing_us"]
        if computing_us and backend.device == "cpu":
            samples = blocks.take(partial(group.time_between_us, call, computing_us=computing_us), agreement.mean)
        else:
            samples = blocks.take(partial(group.time_us, call), agreement.slowest)
        if lowest:
            _report(index=index, samples_us=samples, kernel=backend.kernel)


def _report_reference(
    backend: Backend, plan: dict[str, Any], part: dict[str, Any], agreement: Agreement, lowest: bool
) -> None:
    """Report the reference kernel's time on the slowest rank, all at once; ranks of MPI need not have torch."""
    if plan["backend"] == "mpi":
        return
    from microbench.reference import reference_us

    us = agreement.slowest([reference_us("cpu" if backend.device == "cpu" else "cuda")])[0]
    if lowest:
        _report(reference_us=us, topology=part["topology"])


def run_topology(
    world: Intracomm, backend: Backend, plan: dict[str, Any], nodes: dict[str, list[int]], part: dict[str, Any]
) -> None:
    """Measure every call of one topology; ranks outside it wait."""
    ranks = members(Topology(*part["topology"]), nodes)
    group = backend.group(ranks)
    if group is not None:
        agreement = Agreement(world, ranks)
        lowest = world.Get_rank() == ranks[0]
        _report_reference(backend, plan, part, agreement, lowest)
        run_calls(group, backend, plan, part, agreement, lowest)
        _report_reference(backend, plan, part, agreement, lowest)
        agreement.close()
    _sleep_until_all(world)


def run(world: Intracomm, plan: dict[str, Any]) -> None:
    """Check the placement of the ranks, then measure part by part."""
    seats = world.allgather(Seat(world.Get_rank(), world.Get_size(), node_name()))
    nodes = check_seats(seats, plan["nodes"], plan["ranks_per_node"])
    backend = connect(world, plan, nodes)
    if world.Get_rank() == 0:
        _report(nodes=list(nodes), kernel=backend.kernel)
    for part in plan["parts"]:
        run_topology(world, backend, plan, nodes, part)
    backend.close()


def main() -> int:
    """Run the plan in this process's first argument; a failure of one rank ends all."""
    plan = json.loads(sys.argv[1])
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        _report(
            error=f"mpi4py does not load ({error}); pip install mpich mpi4py, or build mpi4py against the site's MPI"
        )
        return 2
    world = MPI.COMM_WORLD
    try:
        run(world, plan)
    except (CollectiveError, RuntimeError, OSError, MemoryError, MPI.Exception) as error:
        _report(error=f"rank {world.Get_rank()} on {node_name()}: {error}")
        if world.Get_size() > 1:
            world.Abort(2)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
