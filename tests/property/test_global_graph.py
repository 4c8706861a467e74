"""Whatever the ranks, their clocks and their times: replayed unchanged, every rank takes what it measured."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.replay.graph.global_graph import global_graph, with_locals
from predictor.replay.graph.global_replay import replay_global
from predictor.replay.whatif.batch_split import LocalTime, balanced_split
from predictor.replay.whatif.mixed import on_device, same_ratio
from tests.traces_made import MadeJob, make_job

TIME = st.floats(0.5, 5000.0)
CLOCK = st.floats(-1e5, 1e5)
EXACT = 1e-5  # µs: what is left of 64-bit floats at clocks of 10⁹ µs


class Case(NamedTuple):
    made: MadeJob
    jitter: float


@st.composite
def jobs(draw: st.DrawFn, jitter: float = 0.0) -> Case:
    ranks, layers = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    computing = [draw(st.lists(TIME, min_size=layers, max_size=layers)) for _ in range(ranks)]
    transfers = draw(st.lists(TIME, min_size=layers, max_size=layers))
    late = st.lists(st.floats(0.0, jitter), min_size=layers, max_size=layers)
    made = make_job(
        computing,
        transfers,
        starts_us=[draw(st.floats(0.0, 3000.0)) for _ in range(ranks)],
        offsets_us=[0.0, *(draw(CLOCK) for _ in range(ranks - 1))],
        jitter_us=[draw(late) for _ in range(ranks)],
        backend=draw(st.sampled_from(["cuda", "cpu"])),
    )
    return Case(made, jitter)


@given(jobs())
def test_unchanged_replay_is_the_measured_step(case: Case) -> None:
    made = case.made
    graph = global_graph(made.locals)
    replay = replay_global(graph)
    for rank, step in zip(replay.ranks, made.steps_us, strict=True):
        assert math.isclose(rank.step_us, step, abs_tol=EXACT)
    for clock, offset in zip(graph.clocks, made.offsets_us, strict=True):
        assert math.isclose(clock.offset_us, offset, abs_tol=EXACT)
        assert clock.low_us - EXACT <= offset <= clock.high_us + EXACT
    for collective, waits in zip(replay.collectives, made.waits_us, strict=True):
        for wait, truth in zip(collective.waits_us.values(), waits, strict=True):
            assert math.isclose(wait, truth, abs_tol=EXACT)


@given(jobs(jitter=40.0))
def test_where_ends_scatter_so_do_clocks_and_steps_and_no_more(case: Case) -> None:
    made = case.made
    graph = global_graph(made.locals)
    replay = replay_global(graph)
    for clock, offset in zip(graph.clocks, made.offsets_us, strict=True):
        assert abs(clock.offset_us - offset) <= 7 * case.jitter
    # A transfer that would end before it begins, by clocks so far apart, takes no time: all that is not exact.
    for rank, step in zip(replay.ranks, made.steps_us, strict=True):
        assert abs(rank.step_us - step) <= 7 * case.jitter * len(made.waits_us)


@settings(max_examples=50)
@given(jobs(), st.floats(0.1, 1.0), st.data())
def test_a_faster_rank_makes_no_rank_later(case: Case, ratio: float, data: st.DataObject) -> None:
    graph = global_graph(case.made.locals)
    rank = data.draw(st.sampled_from(range(len(graph.ranks))))
    faster = [on_device(local, same_ratio(ratio)) if local.rank == rank else local for local in graph.ranks]
    before, after = replay_global(graph), replay_global(with_locals(graph, faster))
    for one, other in zip(after.ranks, before.ranks, strict=True):
        assert one.step_us <= other.step_us + EXACT


@given(
    st.lists(st.builds(LocalTime, st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.just(1)), min_size=1, max_size=4),
    st.integers(0, 12),
)
def test_no_sample_moved_makes_a_split_better(times: list[LocalTime], more: int) -> None:
    whole = len(times) + more
    split = balanced_split(times, whole)
    assert sum(split) == whole
    longest = max(time.at(samples) for time, samples in zip(times, split, strict=True))

    def fewest(rank: int) -> int:
        """Return the most samples with which a rank is done before the longest local time."""
        return max([1, *(samples for samples in range(1, whole + 1) if times[rank].at(samples) < longest)])

    # Done before that time, all ranks together would have fewer samples, or a single one takes longer already.
    could_be_shorter = all(time.at(1) < longest for time in times)
    assert not could_be_shorter or sum(map(fewest, range(len(times)))) < whole
