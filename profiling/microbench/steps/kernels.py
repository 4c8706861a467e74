"""Kernels of a step on a GPU from torch's profiler: name, calls and duration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from microbench.steps.record import Kernels, KernelTime

LONGEST = 24
LONGEST_NAME = 160
OTHER = "other"
# Parts of kernels' names, lower case, the first that fits; attention first, since its kernels are CUTLASS's as well.
CATEGORIES = {
    "attention": ("flash", "fmha", "attention"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk", "gemv"),
    "norms": ("layer_norm", "layernorm", "rms_norm", "rmsnorm", "gammabeta", "gamma_beta"),
    "optimizer": ("fusedadam", "fused_adam", "adam", "multi_tensor_apply", "lpnorm"),
    "embedding": (
        "embedding", "sort", "cub::", "indexselect", "gather", "krn_partial", "grad_weight", "sum_and_scatter",
    ),
    "reductions": ("reduce_kernel", "softmax"),
    "concatenations": ("catarray",),
    "copies": ("memcpy", "memset", "copy"),
    "element-wise": ("elementwise",),
}  # fmt: skip


class Launch(NamedTuple):
    """One kernel, copy or fill on the device."""

    name: str
    time_us: float


def category(name: str) -> str:
    """Return the category of a kernel, by its name.

    >>> category("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...cutlass::bfloat16_t...>")
    'attention'
    >>> category("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT")
    'matrix products'
    """
    lower = name.lower()
    return next((kind for kind, parts in CATEGORIES.items() if any(part in lower for part in parts)), OTHER)


def _sums(launches: Iterable[Launch], key: Callable[[Launch], str]) -> list[KernelTime]:
    """Return launches added up by a key, the longest first."""
    times_us: dict[str, list[float]] = {}
    for launch in launches:
        times_us.setdefault(key(launch), []).append(launch.time_us)
    sums = [KernelTime(name=name, count=len(us), time_us=round(sum(us), 3)) for name, us in times_us.items()]
    return sorted(sums, key=lambda kernel: -kernel.time_us)


def summarise(launches: list[Launch]) -> Kernels | None:
    """Return the launches by category and by kernel; None where nothing was recorded."""
    if not launches:
        return None
    return Kernels(
        count=len(launches),
        time_us=round(sum(launch.time_us for launch in launches), 3),
        by_category=tuple(_sums(launches, lambda launch: category(launch.name))),
        longest=tuple(_sums(launches, lambda launch: launch.name[:LONGEST_NAME])[:LONGEST]),
    )


def record_launches(run: Callable[[], None]) -> list[Launch]:
    """Run a step under torch's profiler and return its launches; none where CUPTI is not available."""
    os.environ.setdefault(
        "TEARDOWN_CUPTI", "1"
    )  # read where a profile ends; else CUPTI stays and slows the process down
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():
        return []
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
    except RuntimeError:  # CUPTI is missing, or in use by another profiler
        return []
    return [
        Launch(event.name, event.time_range.elapsed_us())
        for event in profiler.events()
        # An optimizer names its step for the profiler, and the name is listed beside the kernels that it spans.
        if event.device_type == DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith("Optimizer.")
    ]
