"""torch.distributed: NCCL on GPUs, gloo on CPUs. MPI only introduces the ranks to each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from typing import TYPE_CHECKING, Any

from microbench.call import DTYPES
from microbench.clocks import device_us, host_us
from microbench.collectives.backend import elements
from microbench.collectives.errors import CollectiveError
from microbench.device import free_memory_bytes
from predictor.core.base.allocator import keep_freed_memory

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from torch import Tensor

TIMEOUT = timedelta(minutes=5)
PRODUCT_SIZE, PRODUCTS_TIMED = 256, 8
COLD_BYTES = 64 * 2**20  # of buffers that are sent in turn on a CPU, twice the last level of cache of most


def least_us(run: Callable[[], object]) -> float:
    """Return the shortest of some runs, in µs."""
    return min(host_us(run, 1) for _ in range(PRODUCTS_TIMED))


def gpu_index(local_rank: int, ranks_here: int, visible: int, node: str) -> int:
    """Return the index of a rank's visible GPU: its local rank, or 0 where its launcher shows it a single GPU.

    Raises:
        CollectiveError: a rank would share a GPU, which NCCL refuses.
    """
    if visible >= ranks_here:
        return local_rank
    if visible == 1 and os.environ.get("SLURM_LOCALID") is not None and "CUDA_VISIBLE_DEVICES" in os.environ:
        return 0
    raise CollectiveError(
        f"{ranks_here} ranks on {node}, which shows {visible} GPUs; lower --ranks-per-node or ask for more GPUs"
    )


@dataclass(frozen=True, slots=True)
class TorchGroup:
    """The calls on a process group, which torch does not type.

    Attributes:
        members: ranks of the world that form the group.
        rank: this process's, in the world.
    """

    group: Any
    members: Sequence[int]
    rank: int
    device: str
    precision: str

    def call(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """Allocate the tensors of a call and return the call."""
        import torch
        import torch.distributed as dist

        group, ranks = self.group, len(self.members)
        gathers_or_scatters = collective in ("all_gather", "reduce_scatter")
        dtype, count = getattr(torch, DTYPES[self.precision]), elements(size_bytes, self.precision)

        def tensor(times: int = 1) -> Tensor:
            return torch.zeros(count * times, dtype=dtype, device=self.device)

        # On a CPU a run's tensors have left the cache by the time they are sent; a buffer that is sent again has not.
        copies = max(1, COLD_BYTES // size_bytes) if self.device == "cpu" else 1
        pairs = cycle([(tensor(), tensor(ranks if gathers_or_scatters else 1)) for _ in range(copies)])
        place = self.members.index(self.rank)
        ahead, behind = self.members[(place + 1) % ranks], self.members[(place - 1) % ranks]

        def exchange(own: Tensor, other: Tensor) -> None:
            messages = [dist.P2POp(dist.isend, own, ahead, group), dist.P2POp(dist.irecv, other, behind, group)]
            for request in dist.batch_isend_irecv(messages):
                request.wait()

        # torch 2.13 renamed these two; the old names warn at every call
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[Tensor, Tensor], object]] = {
            "all_reduce": lambda own, other: dist.all_reduce(own, group=group),
            "all_gather": lambda own, other: gather(other, own, group=group),
            "reduce_scatter": lambda own, other: scatter(own, other, group=group),
            "all_to_all": lambda own, other: dist.all_to_all_single(other, own, group=group),
            "broadcast": lambda own, other: dist.broadcast(own, self.members[0], group=group),
            "point_to_point": exchange,
        }
        chosen = calls[collective]
        return lambda: (chosen(*next(pairs)), None)[1]

    def time_us(self, call: Callable[[], None], calls: int) -> float:
        """Return the time of so many calls in a row: device events on a GPU, the clock on a CPU."""
        import torch
        import torch.distributed as dist

        dist.barrier(group=self.group)
        if self.device == "cpu":
            return host_us(call, calls)
        torch.cuda.synchronize()
        return device_us(call, calls)

    def time_between_us(self, call: Callable[[], None], calls: int, *, computing_us: float) -> float:
        """Return the time of so many calls on this rank, each behind the work of about ``computing_us`` on a CPU.

        The work is a number of matrix products, not a time, so that ranks arrive as far apart as they compute.
        """
        import torch
        import torch.distributed as dist

        matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE)
        products = torch.tensor(max(1, round(computing_us / least_us(lambda: matrix @ matrix))))
        dist.all_reduce(products, dist.ReduceOp.MAX, group=self.group)  # the same work on every rank
        dist.barrier(group=self.group)
        total_us = 0.0
        for _ in range(calls):
            for _ in range(int(products)):
                matrix @ matrix
            total_us += host_us(call, 1)
        return total_us


class TorchBackend:
    """The ranks of torch's default process group."""

    def __init__(self, world: Intracomm, kind: str, precision: str, local_rank: int, ranks_here: int) -> None:
        """Join the default process group; rank 0's address goes round through MPI.

        Raises:
            CollectiveError: NCCL without a GPU for each rank.
        """
        import torch
        import torch.distributed as dist

        self._rank, self._precision = world.Get_rank(), precision
        self.device, self.kernel = "cpu", kind
        torch.set_num_threads(1)
        if kind == "nccl":
            index = gpu_index(local_rank, ranks_here, torch.cuda.device_count(), socket.gethostname())
            torch.cuda.set_device(index)
            self.device = f"cuda:{index}"
            self.kernel = f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"
        else:
            keep_freed_memory()
        dist.init_process_group(
            kind, store=_store(world), rank=self._rank, world_size=world.Get_size(), timeout=TIMEOUT
        )

    def group(self, members: Sequence[int]) -> TorchGroup | None:
        """Form a group; collective over the world."""
        import torch.distributed as dist

        group = dist.new_group(list(members))
        if self._rank not in members:
            return None
        return TorchGroup(group, tuple(members), self._rank, self.device, self._precision)

    def free_bytes(self) -> int:
        """Return the free memory of the GPU, or of the node."""
        import torch

        return free_memory_bytes() if self.device == "cpu" else int(torch.cuda.mem_get_info()[0])

    def close(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        dist.destroy_process_group()


def _store(world: Intracomm) -> Any:
    """Return the key-value store that rank 0 serves on a free port."""
    import torch.distributed as dist

    host = world.bcast(socket.gethostname() if world.Get_rank() == 0 else None)
    if world.Get_rank() == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        world.bcast(store.port)
        return store
    return dist.TCPStore(host, world.bcast(None), is_master=False, timeout=TIMEOUT)
