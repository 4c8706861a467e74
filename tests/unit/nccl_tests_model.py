"""Play nccl-tests: what a binary prints for its options, the number of ranks and the memory of its GPUs.

Written from its source (src/common.cu, run, TimeTest and AllocateBuffs; GetCollByteCount of each collective); times
are made up. Told by the environment: RANKS; GPU_BYTES, all that the GPUs have; FREE_BYTES, what others leave of it;
STYLE, « new » as today's versions or « old »; WITHOUT, a type that it was built without; LOST, an S that it
does not print.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

GIB = 2**30
WIDTHS = {"float": 4, "half": 2, "bfloat16": 2}
HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
SHARED = ("alltoall_perf", "all_gather_perf", "reduce_scatter_perf")


def fail(*lines: str) -> None:
    """Print what a failed run does, and end."""
    print(*lines, sep="\n", flush=True)
    sys.exit(3)


def main() -> None:
    """Play one run."""
    if "--help" in sys.argv:
        sys.exit(0)
    name, options = Path(sys.argv[0]).name, dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    ranks, new = int(os.environ["RANKS"]), os.environ.get("STYLE", "new") == "new"
    gpu = int(os.environ.get("GPU_BYTES", 2**50))
    free = int(os.environ.get("FREE_BYTES", gpu))
    low, high, kind = int(options["-b"]), int(options["-e"]), options["-d"]
    if kind == os.environ.get("WITHOUT"):
        print(f"invalid type {kind}, defaulting to float .. ")
        kind = "float"
    for rank in range(ranks):
        print(f"#  Rank {rank:2} Group  0 Pid {100 + rank} on       here device {rank:2} [0000:01:00] NVIDIA H200")
    reserved = min(-(-gpu // (16 * GIB)) * GIB, 4 * GIB) + GIB if new else GIB
    if high > (gpu - reserved) // 3:
        high = (gpu - reserved) // 3
        low = min(low, high) if new else low
        print(f"#\n# Reducing maxBytes to {high} due to memory limitation")
    if 3 * high > free and new:
        warning = "here:7:7 [0] include/alloc.h:320 (ncclCuMemAlloc) NCCL WARN Cuda failure 2 'out of memory'"
        fail(warning, "here: Test NCCL failure common.cu:1204 'unhandled cuda error (run with NCCL_DEBUG=INFO) / '")
    if 3 * high > free:
        fail("here: Test CUDA failure common.cu:941 'out of memory'", " .. here pid 100: Test failure common.cu:1086")
    if low > high:
        sys.exit(136)  # the warm-up divides by maxBytes / S, which is 0
    print(HEADER)
    size, width = low, WIDTHS[kind]
    while size <= high:
        count = size // width
        if name in SHARED:
            count = (count // ranks & -(16 // width if new else 1)) * ranks
        if count * width != int(os.environ.get("LOST", -1)):
            columns = f"{kind:>8}    none      -1    12.00    1.00    1.00"
            print(f"{count * width:12}  {count:12}  {columns}      0    12.00    1.00    1.00    N/A")
        size *= 2
    print("# Out of bounds values : 0 OK", flush=True)


if __name__ == "__main__":
    main()
