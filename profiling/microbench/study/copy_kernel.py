"""A copy whose programs hold streaming multiprocessors as long as it runs, as NCCL's channels do beside a product.

A program has 1,024 threads and copies 128 KiB a turn, so it takes half of an SM's threads and three quarters of its
registers (44 a thread when assembled for sm_90, allocated as 48): no second one fits on the SM, nor a
block of a product that needs more than the rest. N programs then hold N SMs, and say which.
"""

from __future__ import annotations

from subprocess import SubprocessError
from typing import Any

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

WARPS, BLOCK = 32, 32768
BUFFER_BLOCKS = 2048  # of 128 KiB: 256 MiB, several times any L2 cache
ELEMENT_BYTES = 4
BLOCK_BYTES = BLOCK * ELEMENT_BYTES
KERNEL = f"Triton copy, {WARPS} warps a program, {BLOCK_BYTES // 1024} KiB a turn"


# Compiled once: a number of blocks with another alignment would be compiled again, in the middle of a measurement.
@triton.jit(do_not_specialize=["blocks"])  # type: ignore[untyped-decorator]
def copy_blocks(source, target, held, blocks, buffer_blocks: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy every N-th block of so many, the buffer over and over; note the SM of each program."""
    program = tl.program_id(0)
    tl.store(held + program, tl.extra.cuda.smid())
    for block in range(program, blocks, tl.num_programs(0)):
        offsets = (block % buffer_blocks) * size + tl.arange(0, size)
        tl.store(target + offsets, tl.load(source + offsets))


class SmCopy:
    """Copies on the current stream by so many programs.

    Attributes:
        programs: SMs to hold.
    """

    def __init__(self, programs: int) -> None:
        """Make the buffers and compile the kernel.

        Raises:
            RuntimeError: Triton cannot compile it here (another release, or no C compiler), or its copy is wrong.
        """
        self.programs = programs
        sizes = {"device": "cuda", "dtype": torch.int32}
        self._source = torch.ones(BUFFER_BLOCKS * BLOCK, **sizes)
        self._target = torch.zeros_like(self._source)
        self._held: Any = torch.full((programs,), -1, **sizes)
        try:
            self.run(BUFFER_BLOCKS)
        except (TritonError, OSError, SubprocessError) as error:
            raise RuntimeError(f"Triton: {error}") from None
        if not torch.equal(self._source, self._target):
            raise RuntimeError(f"{KERNEL}: the copy differs from its source")

    def run(self, blocks: int) -> None:
        """Copy so many blocks of BLOCK_BYTES, the buffer over and over."""
        copy_blocks[(self.programs,)](
            self._source, self._target, self._held, blocks, BUFFER_BLOCKS, BLOCK, num_warps=WARPS
        )

    def held(self) -> int:
        """Return the number of different SMs on which the programs of the last run were."""
        return int(self._held.unique().numel())
