"""Room in the heap for a profiled run, so that its tensors need no new pages while they are timed."""

from __future__ import annotations

import ctypes
import sys

import torch

from microbench.device import free_memory_bytes

PAGE, HUGE_PAGE = 4096, 2**21
MADV_HUGEPAGE = 14  # Source: Linux, include/uapi/asm-generic/mman-common.h.
# What a step may need anew, in bytes of the parameters: gradients, and an optimizer's two temporary tensors.
TIMES_PARAMETERS = 2.5
LARGEST_SHARE = 0.3  # of the free memory, by all ranks of the machine


def reserve(parameter_bytes: int, steps: int, ranks: int) -> int:
    """Fault in pages that the C library keeps, and return their bytes.

    While freed memory stays with the process, a tensor finds the block that the step before has freed. The profiler's
    notes, which stay until it stops, cut pieces off those blocks: the next step's largest tensors no longer fit, and
    take new pages (a BERT layer with its embedding: 68 000 page faults a profiled step, and none of an unprofiled one).
    """
    limit = int(LARGEST_SHARE * free_memory_bytes() / ranks)
    wanted = min(int(TIMES_PARAMETERS * parameter_bytes * steps), limit)
    if wanted < HUGE_PAGE:
        return 0
    room = torch.empty(wanted, dtype=torch.uint8)
    _ask_for_huge_pages(room.data_ptr(), wanted)
    room.fill_(0)
    return wanted


def _ask_for_huge_pages(address: int, size: int) -> None:
    """Ask Linux to fault the pages in 2 MiB at once, where it may; everything works without."""
    if not sys.platform.startswith("linux"):
        return
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    start = -(-address // PAGE) * PAGE
    madvise(ctypes.c_void_p(start), ctypes.c_size_t((size - (start - address)) // PAGE * PAGE), MADV_HUGEPAGE)
