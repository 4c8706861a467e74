"""Sizes that are asked of nccl-tests are those that it prints, by the formulas of its source."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.collectives.bandwidth import size_multiple, total_bytes
from microbench.collectives.nccl_series import doubling_series
from microbench.collectives.sweep import Sweep, read_sweep
from predictor.core.costs.collectives import COLLECTIVES

RANKS = st.integers(2, 1024)
WIDTHS = st.sampled_from([1, 2, 4])
CUTS = st.sampled_from([16, 0])  # bytes that a share is cut to today, and in older versions, where it is an element
OWN = st.builds(
    lambda low, high, steps: Sweep(
        min_bytes=min(low, high),
        max_bytes=max(low, high),
        sizes_per_octave=steps,
        samples=1,
        block_us=1.0,
        most_calls=1,
    ),
    st.integers(1024, 2**35),
    st.integers(1024, 2**35),
    st.sampled_from([1, 2, 4, 8]),
)
NAMED = st.sampled_from([read_sweep(name) for name in ("smoke", "standard", "full")])
SWEEPS = st.one_of(NAMED, OWN)


def printed(collective: str, size: int, ranks: int, width: int, cut: int) -> int:
    """Return what nccl-tests prints for a size of its loop: GetCollByteCount, then the larger of sent and received."""
    count = size // width
    if collective in ("all_to_all", "all_gather", "reduce_scatter"):
        share = count // ranks
        return (share & -max(cut // width, 1)) * ranks * width
    return count * width


def loop(low: int, high: int) -> list[int]:
    """Return the sizes that -b, -e and -f 2 go through."""
    return list(takewhile(lambda size: size <= high, (low << octave for octave in range(64))))


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(sweep=SWEEPS, ranks=RANKS, width=WIDTHS, cut=CUTS, data=st.data())
def test_requested_sizes_are_printed_sizes(
    collective: str, sweep: Sweep, ranks: int, width: int, cut: int, data: st.DataObject
) -> None:
    sizes = sweep.sizes(size_multiple(collective, ranks))
    kept = data.draw(st.sets(st.sampled_from(sizes))) if sizes else set()  # a run that went part of the way
    for left in (sizes, [size for size in sizes if size not in kept]):
        found = set()
        for series in doubling_series(left):
            low, high = (total_bytes(collective, size, ranks) for size in (series[0], series[-1]))
            asked = loop(low, high)
            assert [printed(collective, size, ranks, width, cut) for size in asked] == asked
            found |= set(asked)
        assert {total_bytes(collective, size, ranks) for size in left} <= found
        if left is sizes:
            assert {total_bytes(collective, size, ranks) for size in left} == found


@given(sweep=SWEEPS, ranks=RANKS)
def test_alignment_keeps_a_sweep_apart_ordered_and_in_few_runs(sweep: Sweep, ranks: int) -> None:
    multiple = size_multiple("all_to_all", ranks)
    sizes = sweep.sizes(multiple)
    assert sizes == sorted(set(sizes))
    assert all(0 < size <= sweep.max_bytes and size % multiple == 0 for size in sizes)
    assert len(doubling_series(sizes)) <= sweep.sizes_per_octave
    assert all(size >= 0.75 * sweep.min_bytes for size in sizes), "a first size loses a quarter of a step at most"
    # From so many multiples on, every step of an octave is there.
    first = 4 * sweep.sizes_per_octave * multiple
    octaves = (sweep.max_bytes // max(2 * first, 2 * sweep.min_bytes)).bit_length() - 1
    if octaves > 0:
        assert len(sizes) >= octaves * sweep.sizes_per_octave


@given(sweep=NAMED, ranks=st.sampled_from([2**i for i in range(1, 11)]))
def test_a_power_of_two_of_ranks_keeps_the_sizes_of_a_sweep_that_it_can_run(sweep: Sweep, ranks: int) -> None:
    multiple = size_multiple("all_to_all", ranks)
    whole = [size for size in sweep.sizes() if size % multiple == 0]
    assert sweep.sizes(multiple) == whole


def test_the_example_of_the_defect() -> None:
    sweep = read_sweep("standard")
    assert printed("all_to_all", 1024, 6, 2, 16) == 960
    assert printed("all_to_all", 1024, 128, 2, 16) == 0
    assert sweep.sizes(size_multiple("all_to_all", 6))[:4] == [960, 1536, 1920, 3072]
    assert sweep.sizes(size_multiple("all_to_all", 128))[:4] == [2048, 4096, 6144, 8192]
    assert sweep.sizes(size_multiple("all_reduce", 6))[:4] == [1024, 1536, 2048, 3072]
