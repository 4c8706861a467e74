"""The C library's allocator, for processes that compute on a CPU."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt. Source: glibc, malloc/malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
NEVER = -1
TOP_PAD_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, and return whether it does; another C library is left as it is.

    By default it returns large blocks to the kernel, so that every step of a training faults the pages of its
    activations in again: on a CPU that takes longer than many operators. GPUs have PyTorch's caching allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, TOP_PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
