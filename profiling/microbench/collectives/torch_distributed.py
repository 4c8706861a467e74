"""torch.distributed: NCCL on GPUs, gloo on CPUs. MPI only introduces the ranks to each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from microbench.collectives.backend import elements
from microbench.collectives.errors import CollectiveError
from microbench.device import free_memory_bytes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from torch import Tensor

TIMEOUT = timedelta(minutes=5)


def gpu_index(local_rank: int, ranks_here: int, visible: int, node: str) -> int:
    """Return which visible GPU a rank takes: its own by number, or the only one that its launcher lets it see.

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


class TorchGroup:
    """A process group and the calls on it."""

    def __init__(self, group: Any, members: Sequence[int], rank: int, device: str, precision: str) -> None:
        """Keep the process group, which torch does not type."""
        self._group = group
        self._members = list(members)
        self._rank = rank
        self._device = device
        self._precision = precision

    def call(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """Return one call on tensors of ones."""
        import torch
        import torch.distributed as dist

        group, ranks = self._group, len(self._members)
        kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[self._precision]
        count = elements(size_bytes, self._precision)

        def tensor(times: int = 1) -> Tensor:
            return torch.zeros(count * times, dtype=kind, device=self._device)

        own = tensor()
        other = tensor(ranks if collective in ("all_gather", "reduce_scatter") else 1)
        place = self._members.index(self._rank)
        ahead, behind = self._members[(place + 1) % ranks], self._members[(place - 1) % ranks]

        def exchange() -> None:
            messages = [dist.P2POp(dist.isend, own, ahead, group), dist.P2POp(dist.irecv, other, behind, group)]
            for request in dist.batch_isend_irecv(messages):
                request.wait()

        # torch 2.13 renamed these two; the old names warn at every call
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(own, group=group),
            "all_gather": lambda: gather(other, own, group=group),
            "reduce_scatter": lambda: scatter(own, other, group=group),
            "all_to_all": lambda: dist.all_to_all_single(other, own, group=group),
            "broadcast": lambda: dist.broadcast(own, self._members[0], group=group),
            "point_to_point": exchange,
        }
        chosen = calls[collective]
        return lambda: (chosen(), None)[1]

    def time_us(self, call: Callable[[], None], calls: int) -> float:
        """Return the time of so many calls in a row: device events on a GPU, the clock on a CPU."""
        import torch
        import torch.distributed as dist

        dist.barrier(group=self._group)
        if self._device == "cpu":
            start = perf_counter_ns()
            for _ in range(calls):
                call()
            return (perf_counter_ns() - start) / 1e3
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3


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
        store = _store(world)
        dist.init_process_group(kind, store=store, rank=self._rank, world_size=world.Get_size(), timeout=TIMEOUT)

    def group(self, members: Sequence[int]) -> TorchGroup | None:
        """Form a group; collective over the world."""
        import torch.distributed as dist

        group = dist.new_group(list(members))
        if self._rank not in members:
            return None
        return TorchGroup(group, members, self._rank, self.device, self._precision)

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
