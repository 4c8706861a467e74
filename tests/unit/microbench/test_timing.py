"""How a collective is timed in blocks, what is flushed before a pass, and how operators share a budget."""

from __future__ import annotations

import doctest
import time
from typing import Any

import pytest

from microbench import profile as profiling
from microbench.device import Device
from microbench.timing import FLUSH_TIMES_CACHE, PILOT_CALLS, PILOTS, Blocks, Policy, clock_for

POLICY = Policy(precision=0.1, fewest_samples=3, most_samples=6, budget_ms=1000, warmup_ms=1)


def blocks_taken(blocks: Blocks, call_us: float, others: float = 1.0) -> tuple[list[float], list[int]]:
    """Return samples and the sizes of all blocks, where the slowest rank takes ``others`` times as long."""
    sizes: list[int] = []

    def time_us(calls: int) -> float:
        sizes.append(calls)
        return call_us * calls

    return blocks.take(time_us, lambda mine: [us * others for us in mine]), sizes


def test_pilots_decide_how_many_calls_make_a_block() -> None:
    samples, sizes = blocks_taken(Blocks(samples=4, block_us=1000.0, most_calls=50), 100.0)
    assert sizes == [PILOT_CALLS] * PILOTS + [10] * 4
    assert samples == [100.0] * 4


def test_a_block_is_as_long_as_on_the_slowest_rank() -> None:
    samples, sizes = blocks_taken(Blocks(samples=1, block_us=1000.0, most_calls=50), 100.0, others=5.0)
    assert (samples, sizes[-1]) == ([500.0], 2)


@pytest.mark.parametrize(("call_us", "calls"), [(1.0, 50), (1e9, 1), (0.0, 50)])
def test_a_block_has_at_least_one_call_and_no_more_than_allowed(call_us: float, calls: int) -> None:
    assert blocks_taken(Blocks(samples=1, block_us=1000.0, most_calls=50), call_us)[1][-1] == calls


def test_a_sweep_says_what_is_flushed_else_the_last_cache_is() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    device = Device("cpu", "CPU", None, 1_000_000, 1, 2**30, ("fp32",))

    def flushed(policy: Policy) -> int:
        buffer: Any = clock_for(device, policy)._buffer
        return int(buffer.numel() * buffer.element_size())

    assert flushed(POLICY) == 1_000_000 * FLUSH_TIMES_CACHE
    assert flushed(POLICY.model_copy(update={"flush_mb": 0.4})) == 400_000


def test_operators_share_a_budget_equally_and_pass_on_what_they_leave() -> None:
    assert doctest.testmod(profiling).failed == 0
    now, deadline = time.monotonic(), time.monotonic() + 60.0
    ends = [profiling.share_end(now, deadline, left) for left in (3, 2, 1)]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(deadline)
