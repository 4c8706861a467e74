"""Collectives by the names that libraries and traces give them.

Source: NCCL's and RCCL's kernels (ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_SendRecv), PyTorch's process
groups (nccl:all_reduce, c10d::allreduce_) and the arguments of ``record_param_comms``
(torch/csrc/distributed/c10d/ParamCommsUtils.hpp); of other libraries' kernels ``LIBRARIES``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# What is left of a name without its library, case, underscores and numbers; the longest first.
NAMES = (
    ("alltoall", "all_to_all"),
    ("allreduce", "all_reduce"),
    ("rdxn", "all_reduce"),  # NVSHMEM's words
    ("allgather", "all_gather"),
    ("fcollect", "all_gather"),
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
KNOWN = frozenset(name for _, name in NAMES)
NCCL, UNLISTED = "NCCL", "no library that is known"
EXPERTS, TENSORS = "experts", "tensors"


class Library(NamedTuple):
    """Kernels of a library that communicate.

    Attributes:
        name: as users know it; empty: not known, only named like a collective.
        kernels: found in the names of its kernels, without template and arguments.
        collective: what they run; empty: as ``NAMES`` tells.
        serves: what they are for wherever they run: EXPERTS or TENSORS; empty: as group and pass tell.
    """

    name: str
    kernels: re.Pattern[str]
    collective: str = ""
    serves: str = ""


def _library(name: str, kernels: str, collective: str = "", serves: str = "") -> Library:
    return Library(name, re.compile(kernels, re.IGNORECASE), collective, serves)


# The first that matches counts.
LIBRARIES = (
    # NCCL, src/device/generate.py and src/device/symmetric/generate.py; ROCm/rccl; microsoft/msccl.
    _library(NCCL, r"^(nccl|rccl)|nccl(Dev)?Kernel|rccl_|mscclKernel|ncclx?Kernel"),
    # deepseek-ai/DeepEP, csrc/kernels/{layout,intranode,internode,internode_ll}.cu and csrc/hybrid_ep; « dpsk::ep » in
    # the traces of deepseek-ai/profile-data. The layout of a dispatch is counted on each rank alone; it is part of the
    # exchange all the same. Not all of these namespaces: CUB scans in cdpsk::ep.
    _library(
        "DeepEP",
        r"\b(deep_ep|dpsk::ep|uccl)::(\w+::)?((cached_)?(notify|dispatch|combine)|get_dispatch_layout|clean_low|barrier)"
        r"|\bhybrid_ep::(dispatch|combine|device_sync)_kernel",
        "all_to_all",
        EXPERTS,
    ),
    # ROCm/mori, src/ops/dispatch_combine.
    _library("MoRI-EP", r"\bEp(Dispatch|Combine)\w*Kernel", "all_to_all", EXPERTS),
    # NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu, fusedMoeCommKernels.cu.
    _library("TensorRT-LLM MoE", r"\bmoe(A2A|AllToAll)\w*Kernel", "all_to_all", EXPERTS),
    # NVIDIA/TransformerEngine, transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu.
    _library("Userbuffers", r"\buserbuffers_\w+_ag\b", "all_gather", TENSORS),
    _library("Userbuffers", r"\buserbuffers_\w+_rs(_|\b)", "reduce_scatter", TENSORS),
    _library("Userbuffers", r"\buserbuffers_\w+", "all_reduce", TENSORS),
    _library("Userbuffers", r"\bkuserbuffers_\w+", "send_recv", TENSORS),
    # pytorch/pytorch, torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu, CUDASymmetricMemory.cu.
    _library(
        "symmetric memory",
        r"\b((multimem|one_shot|two_shot)_)+(all_reduce|reduce|all_gather|reduce_scatter)_kernel"
        r"|\b(multimem_)?reduce_scatter_\w+_kernel",
    ),
    _library("symmetric memory", r"\bsymmetric_memory::(barrier|put_signal|wait_signal)_kernel", "barrier"),
    # vllm-project/vllm, csrc/custom_all_reduce.cuh and csrc/quickreduce; SGLang's and AITER's copies of them;
    # TensorRT-LLM, customAllReduceKernels.cu, allReduceFusionKernels.cu, mnnvlAllreduceKernels.cu; FlashInfer's of it.
    _library(
        "custom all-reduce",
        r"\bcross_device_reduce_[12]stage|\ballreduce_prototype_|\ballreduce_fusion_kernel"
        r"|\b\w*(one|two)shotallreduce\w*kernel",
        "all_reduce",
        TENSORS,
    ),
    # microsoft/mscclpp, src/ext/collectives.
    _library("MSCCL++", r"\bmscclpp::"),
    # NVIDIA/nvshmem, src/host/stream/coll.
    _library("NVSHMEM", r"\bnvshmem|_on_stream_kernel"),
    # Of no library above, but named like a collective. A product with a collective in it, and what the compiler names
    # by the operators around it (torch/_inductor/codegen/triton.py), computes.
    _library(
        "",
        r"^(?!.*gemm)(?!triton_(poi|red|per|tem|for)_).*"
        r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|multimem)",
    ),
)
SERVES = {library.name: library.serves for library in LIBRARIES}


def own_name(kernel: str) -> str:
    """Return a kernel's name without the type of its result, its template and its arguments.

    >>> own_name("void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16>(float**, unsigned long)")
    'one_shot_all_reduce_kernel'
    """
    plain = kernel.replace("(anonymous namespace)::", "")
    return re.split("[<(]", plain, maxsplit=1)[0].strip().removeprefix("void ")


@lru_cache(maxsize=4096)
def library_of(kernel: str) -> Library | None:
    """Return the library of which a kernel communicates; None: it does not communicate, as far as its name tells."""
    name = own_name(kernel)
    return next((library for library in LIBRARIES if library.kernels.search(name)), None)


def is_collective(kernel: str) -> bool:
    """Return whether a GPU runs a collective under this name."""
    return library_of(kernel) is not None


def kernel_collective(kernel: str) -> str:
    """Return the collective that a kernel runs; its own name where that is not known.

    >>> kernel_collective("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*, float*)")
    'all_to_all'
    """
    library, name = library_of(kernel), own_name(kernel)
    if library is None or not library.name:
        return name
    known = library.collective or collective_name(name)
    return known if known in KNOWN else name


def collective_name(name: str) -> str:
    """Return the collective that a kernel, an operator or an annotation is; the name itself where it is another one.

    >>> collective_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_name("c10d::_allgather_base_")
    'all_gather'
    """
    plain = name.lower().replace("_", "")
    return next((known for part, known in NAMES if part in plain), name)
