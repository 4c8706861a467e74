"""MPI on host buffers, through mpi4py: the collectives of the site's MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from microbench.clocks import host_us
from microbench.collectives.backend import elements
from microbench.collectives.errors import CollectiveError
from microbench.device import free_memory_bytes

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Intracomm


@dataclass(frozen=True, slots=True)
class MpiGroup:
    """The calls on a communicator."""

    comm: Comm

    def call(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """Return one call; buffers are made by MPI itself and touched once, so their pages exist."""
        from mpi4py import MPI

        comm, ranks = self.comm, self.comm.Get_size()

        def buffer(count: int) -> list[object]:
            memory = bytearray(4 * count)
            return [memory, MPI.FLOAT]

        count = elements(size_bytes, "fp32")
        over_ranks = buffer(count * ranks) if collective in ("all_gather", "reduce_scatter") else []
        sent = buffer(count)
        received = buffer(count) if collective in ("all_reduce", "all_to_all", "point_to_point") else []
        ahead, behind = (comm.Get_rank() + 1) % ranks, (comm.Get_rank() - 1) % ranks
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: comm.Allreduce(sent, received, MPI.SUM),
            "all_gather": lambda: comm.Allgather(sent, over_ranks),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(over_ranks, sent, MPI.SUM),
            "all_to_all": lambda: comm.Alltoall(sent, received),
            "broadcast": lambda: comm.Bcast(sent, root=0),
            "point_to_point": lambda: comm.Sendrecv(sent, ahead, 0, received, behind, 0),
        }
        return calls[collective]

    def time_us(self, call: Callable[[], None], calls: int) -> float:
        """Return the time of so many calls in a row, from a barrier on."""
        self.comm.Barrier()
        return host_us(call, calls)

    def time_between_us(self, call: Callable[[], None], calls: int, *, computing_us: float) -> float:
        """Refuse: the work between calls is torch's.

        Raises:
            CollectiveError: always.
        """
        raise CollectiveError("the sweep has computing_us, which needs --backend gloo")


class MpiBackend:
    """The ranks of COMM_WORLD."""

    def __init__(self, world: Intracomm) -> None:
        """Name the MPI library."""
        from mpi4py import MPI

        name, version = MPI.get_vendor()
        self._world = world
        self.kernel = f"{name} {'.'.join(map(str, version))}"
        self.device = "cpu"

    def group(self, members: Sequence[int]) -> MpiGroup | None:
        """Split the world; collective over it."""
        from mpi4py import MPI

        inside = self._world.Get_rank() in members
        comm = self._world.Split(0 if inside else MPI.UNDEFINED, self._world.Get_rank())
        return MpiGroup(comm) if inside else None

    def free_bytes(self) -> int:
        """Return the memory of this node that is available."""
        return free_memory_bytes()

    def close(self) -> None:
        """MPI ends itself when the interpreter does."""
