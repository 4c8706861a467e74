"""Collectives by the names that libraries and traces give them.

Source: NCCL's and RCCL's kernels (ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_SendRecv), PyTorch's process
groups (nccl:all_reduce, c10d::allreduce_) and the arguments of ``record_param_comms``
(torch/csrc/distributed/c10d/ParamCommsUtils.hpp).
"""

from __future__ import annotations

import re

KERNELS = re.compile(r"^(nccl|rccl)|nccl(Dev)?Kernel|rccl_|mscclKernel|ncclx?Kernel", re.IGNORECASE)
# What is left of a name without its library, case, underscores and numbers; the longest first.
NAMES = (
    ("alltoall", "all_to_all"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)


def is_collective(kernel: str) -> bool:
    """Return whether a GPU runs a collective under this name."""
    return KERNELS.search(kernel) is not None


def collective_name(name: str) -> str:
    """Return the collective that a kernel, an operator or an annotation is; the name itself where it is another one.

    >>> collective_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_name("c10d::_allgather_base_")
    'all_gather'
    """
    plain = name.lower().replace("_", "")
    return next((known for part, known in NAMES if part in plain), name)
