"""A product beside a copy kernel that holds 4 to 32 SMs: mutual slowdown of communication and computation.

Two runs per pair, both behind a gate that opens when the host has queued everything. In the first a long copy runs from
before the first product to after the last: what the products take then is their time beside it. In the second the copy
is short and the products outlast it. A run in which the one does not cover the other is repeated with a longer cover.
The copy begins a moment before the products, so that its programs have their SMs: a product's blocks may hold an SM to
the end of the kernel. A product that lost no more than its SMs would take M / (M - N) of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple, Protocol

from microbench.clocks import LONGEST_DELAY_US, device_us, sleep_cycles
from microbench.device import Device
from microbench.study.part import Part
from microbench.study.record import Overlap, rounded
from microbench.study.sustained import product

PRECISION = "bf16"
SMS = (16, 8, 32, 4)
PRODUCTS = ((8192, 8192, 8192), (8192, 4096, 28672), (4096, 4096, 4096), (8192, 14336, 4096))  # m, k, n
PART_S = 5.0
WARM_UP, REPETITIONS = 3, 7
PRODUCTS_US = 10_000.0  # of the products in a row beside a long copy
FEWEST_PRODUCTS, MOST_PRODUCTS = 4, 200
COVER, GROWTH, TRIES = 4.0, 2.0, 4  # time of the covering kernel over that of the covered one, each alone
QUEUE_US, HEAD_START_US = 10.0, 100.0  # host time per launch at most; from the copy's start to the first product


class Copy(Protocol):
    """A copy kernel that holds SMs."""

    def run(self, blocks: int) -> None:
        """Queue a copy of so many blocks on the current stream."""

    def held(self) -> int:
        """Return the number of different SMs that the last copy held."""


class Concurrent(NamedTuple):
    """Times of one run of products and a copy, and which of the two was covered by the other."""

    product_us: float
    copy_us: float
    product_is_inside: bool
    copy_is_inside: bool


class Cover(NamedTuple):
    """Sizes of a run: products in a row, and blocks of the copy."""

    products: int
    blocks: int


def copier(programs: int) -> tuple[Copy, str, int]:
    """Return the copy on so many SMs, what it is, and the bytes of a block.

    Raises:
        RuntimeError: it does not compile here.
        ImportError: there is no Triton.
    """
    from microbench.study.copy_kernel import BLOCK_BYTES, KERNEL, SmCopy

    return SmCopy(programs), KERNEL, BLOCK_BYTES


def run_concurrently(run: Callable[[], object], copy: Copy, size: Cover, side: Any) -> Concurrent:
    """Run products on the current stream and a copy on another, both from one moment on."""
    import torch

    cuda: Any = torch.cuda
    gate, copy_start, copy_end, start, end = (cuda.Event(enable_timing=True) for _ in range(5))
    cuda._sleep(sleep_cycles(min(QUEUE_US * (size.products + 20), LONGEST_DELAY_US)))
    gate.record()
    with cuda.stream(side):
        side.wait_event(gate)
        copy_start.record()
        copy.run(size.blocks)
        copy_end.record()
    cuda._sleep(sleep_cycles(HEAD_START_US))
    start.record()
    for _ in range(size.products):
        run()
    end.record()
    cuda.synchronize()
    product_us = start.elapsed_time(end) * 1e3 / size.products
    copy_us = copy_start.elapsed_time(copy_end) * 1e3
    starts_inside = copy_start.elapsed_time(start) >= 0.0
    rest_ms = end.elapsed_time(copy_end)  # of the copy, behind the last product
    return Concurrent(product_us, copy_us, starts_inside and rest_ms >= 0.0, rest_ms <= 0.0)


def covered(
    run: Callable[[], object], copy: Copy, size: Cover, longer: Callable[[Cover], Cover], which: str, side: Any
) -> list[Concurrent]:
    """Return runs in which the one kernel covered the other, lengthening the cover where it was too short.

    Args:
        run: one product.
        copy: on its SMs.
        size: of the first try.
        longer: returns the size with a longer cover.
        which: field of ``Concurrent`` that says that a run counts.
        side: stream of the copy.

    Raises:
        RuntimeError: the longest cover was too short.
    """
    for _ in range(TRIES):
        runs = [run_concurrently(run, copy, size, side) for _ in range(REPETITIONS)]
        if all(getattr(each, which) for each in runs):
            return runs
        last, size = size, longer(size)
    raise RuntimeError(f"not {which.replace('_', ' ')} with {last.products} products beside {last.blocks} blocks")


def measure(m: int, k: int, n: int, programs: int, device: Device) -> Overlap:
    """Time a product and a copy alone and beside each other."""
    import torch

    copy, kernel, block_bytes = copier(programs)
    run = product(PRECISION, m, k, n, device.kind)
    device_us(run, WARM_UP)
    product_us = median(device_us(run, FEWEST_PRODUCTS) / FEWEST_PRODUCTS for _ in range(REPETITIONS))
    products = min(MOST_PRODUCTS, max(FEWEST_PRODUCTS, ceil(PRODUCTS_US / product_us)))
    alone_us = [device_us(run, products) / products for _ in range(REPETITIONS)]
    products_us = products * median(alone_us)
    pilot = 64 * programs
    block_us = min(device_us(lambda: copy.run(pilot), 1) for _ in range(WARM_UP)) / pilot

    def blocks(us: float) -> int:
        return max(programs, ceil(us / block_us))

    side = torch.cuda.Stream()
    beside_copy = covered(
        run,
        copy,
        Cover(products, blocks(COVER * products_us)),
        lambda size: size._replace(blocks=int(GROWTH * size.blocks)),
        "product_is_inside",
        side,
    )
    short = blocks(products_us / COVER)
    beside_products = covered(
        run,
        copy,
        Cover(products, short),
        lambda size: size._replace(products=int(GROWTH * size.products)),
        "copy_is_inside",
        side,
    )
    return Overlap(
        m=m,
        k=k,
        n=n,
        multiprocessors=device.multiprocessors,
        programs=programs,
        held=copy.held(),
        copy_kernel=kernel,
        product_alone_us=rounded(alone_us),
        product_beside_us=rounded([each.product_us for each in beside_copy]),
        copy_bytes=short * block_bytes,
        copy_alone_us=rounded([device_us(lambda: copy.run(short), 1) for _ in range(REPETITIONS)]),
        copy_beside_us=rounded([each.copy_us for each in beside_products]),
    )


def parts(device: Device) -> list[Part]:
    """Return a part per product and number of SMs, all products beside one number first."""
    return [
        Part(" ".join(map(str, (*sizes, programs))), PART_S, partial(measure, *sizes, programs, device))
        for programs in SMS
        for sizes in PRODUCTS
    ]
