"""Ranks on different devices, another number of ranks, and the split of a batch that balances them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.global_graph import GlobalGraph, global_graph
from predictor.replay.graph.global_replay import GlobalReplay, replay_global
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.graph.rank_count import ring_traffic
from predictor.replay.whatif.batch_split import (
    Balance,
    LocalTime,
    balance,
    balanced_split,
    local_time,
    local_time_of_two,
    local_us,
)
from predictor.replay.whatif.mixed import Place, measured_jobs, mixed_graph, on_device, same_ratio
from tests.traces_made import make_job

SLOW, FAST = [300.0, 200.0, 250.0], [100.0, 70.0, 90.0]
TRANSFERS = [30.0, 45.0, 25.0]


def job(computing: list[float], ranks: int = 2, transfers: list[float] | None = None) -> GlobalGraph:
    return global_graph(make_job([computing] * ranks, transfers or TRANSFERS[: len(computing)]).locals)


def steps(replay: GlobalReplay) -> list[float]:
    return [rank.step_us for rank in replay.ranks]


def test_traces_of_two_devices_meet_at_every_collective() -> None:
    places = [Place(job(SLOW), 0), Place(job(FAST), 1)]
    replay = replay_global(mixed_graph(places))
    truth = make_job([SLOW, FAST], TRANSFERS)
    assert steps(replay) == pytest.approx(truth.steps_us)
    assert [list(coll.waits_us.values()) for coll in replay.collectives] == [
        pytest.approx(waits, abs=1e-6) for waits in truth.waits_us
    ]
    assert {coll.last_rank for coll in replay.collectives} == {0}
    assert [rank.device_name for rank in replay.ranks] == ["device 0", "device 1"]


def test_ranks_of_one_device_share_a_trace_and_transfers_grow_with_the_ring() -> None:
    slow, fast = Place(job(SLOW), 0), Place(job(FAST), 0)
    replay = replay_global(mixed_graph([slow, slow, fast, fast]))
    truth = make_job([SLOW, SLOW, FAST, FAST], [us * 1.5 for us in TRANSFERS])  # 2·3/4 over 2·1/2
    assert steps(replay) == pytest.approx(truth.steps_us)


def test_the_slower_links_set_the_pace() -> None:
    places = [Place(job(FAST, transfers=[60.0] * 3), 0), Place(job(FAST, transfers=[20.0] * 3), 1)]
    assert steps(replay_global(mixed_graph(places))) == pytest.approx(make_job([FAST] * 2, [60.0] * 3).steps_us)


def test_another_device_by_its_ratio_is_the_trace_of_it() -> None:
    (slow, other) = make_job([SLOW, [us * 3.0 for us in SLOW]], TRANSFERS, optimizer_us=20.0).locals
    scaled = on_device(slow, lambda local, at: 1.0 if local.operators[at].step_pass == "optimizer" else 3.0, "T4")
    assert scaled.device_name == "T4"
    kernels = [(task.name, task.duration_us) for task in scaled.tasks if task.name.endswith("kernel")]
    assert kernels == [(task.name, task.duration_us) for task in other.tasks if task.name.endswith("kernel")]
    place = Place(job(SLOW), 0)
    mixed = mixed_graph([place, place._replace(ratio=same_ratio(0.5))])
    truth = make_job([SLOW, [us / 2 for us in SLOW]], TRANSFERS)
    # The optimizer runs last, so that its own half of 20 µs shortens rank 1 alone.
    assert steps(replay_global(mixed)) == pytest.approx([truth.steps_us[0], truth.steps_us[1] - 10.0])


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_is_finite_and_positive(ratio: float) -> None:
    with pytest.raises(RecordError, match="the ratio of layer0 is"):
        on_device(job(SLOW).local(0), same_ratio(ratio))


def test_ranks_of_one_job_are_told_from_those_of_another() -> None:
    first = make_job([SLOW, FAST], TRANSFERS).locals
    later = [replace(local, begin_us=local.begin_us + 1e6) for local in make_job([FAST, FAST], TRANSFERS).locals]
    jobs = measured_jobs([*first, *later])
    assert [len(job.ranks) for job in jobs] == [2, 2]
    # Waiting in the first job is known, so it is not taken for a slow transfer.
    replay = replay_global(mixed_graph([Place(jobs[0], 1), Place(jobs[0], 0)]))
    assert steps(replay) == pytest.approx(make_job([FAST, SLOW], TRANSFERS).steps_us)


def test_all_ranks_of_one_job_start_as_they_did() -> None:
    made = make_job([SLOW, FAST], TRANSFERS, starts_us=[0.0, 700.0])
    graph = global_graph(made.locals)
    replay = replay_global(mixed_graph([Place(graph, 0), Place(graph, 1)]))
    assert steps(replay) == pytest.approx(made.steps_us)
    assert replay.ranks[1].start_us == pytest.approx(700.0)


def test_a_trace_without_its_peers_counts_waiting_as_transfer() -> None:
    lone = [global_graph(make_job([times] * 2, TRANSFERS).locals[:1]) for times in (SLOW, FAST)]
    graph = mixed_graph([Place(measured, 0) for measured in lone])
    assert any("counts as transfer" in note for note in graph.notes)
    assert not any("counts as transfer" in note for note in mixed_graph([Place(job(SLOW), 0)] * 2).notes)


def test_traces_of_one_gpu_do_not_wait() -> None:
    alone = [replace(job(times, 1).local(0), collectives=[]) for times in (SLOW, FAST)]
    graph = mixed_graph([Place(global_graph([local]), 0) for local in alone])
    assert any("do not wait for each other" in note for note in graph.notes)
    assert steps(replay_global(graph)) == pytest.approx([local.step_us for local in alone])


def test_a_mixed_job_has_ranks() -> None:
    with pytest.raises(RecordError, match="no ranks"):
        mixed_graph([])


# --- bytes of collectives


def test_ring_traffic_is_that_of_nccl_tests() -> None:
    assert ring_traffic("all_gather", 1000, 4) == ring_traffic("reduce_scatter", 1000, 4) == 750.0
    assert ring_traffic("broadcast", 1000, 4) == 1000.0


# --- the split of a batch


def compositions(whole: int, parts: int) -> list[tuple[int, ...]]:
    return [split for split in product(range(1, whole + 1), repeat=parts) if sum(split) == whole]


@pytest.mark.parametrize("case", range(12))
def test_the_split_is_the_best_of_all(case: int) -> None:
    ranks, whole = 2 + case % 3, 6 + case % 5
    times = [LocalTime(17.0 * ((case * 5 + rank * 3) % 7), 1.0 + (case * 3 + rank * 5) % 8, 1) for rank in range(ranks)]

    def longest(split: tuple[int, ...]) -> float:
        return max(time.at(samples) for time, samples in zip(times, split, strict=True))

    split = balanced_split(times, whole)
    assert sum(split) == whole
    assert longest(split) == min(map(longest, compositions(whole, ranks)))


def test_a_split_keeps_to_multiples() -> None:
    split = balanced_split([LocalTime(0.0, 3.0, 1), LocalTime(0.0, 1.0, 1)], 32, multiple=4)
    assert split == (8, 24)


def test_a_split_keeps_to_what_fits() -> None:
    times = [LocalTime(0.0, 3.0, 1), LocalTime(0.0, 1.0, 1), LocalTime(0.0, 1.0, 1)]
    assert balanced_split(times, 28) == (4, 12, 12)
    assert balanced_split(times, 28, most=[100, 8, 100]) == (5, 8, 15)
    with pytest.raises(RecordError, match=r"at most \[1, 8, 8\] samples fit"):
        balanced_split(times, 28, most=[1, 8, 8])


@pytest.mark.parametrize(("whole", "multiple"), [(1, 1), (10, 4), (4, 4)])
def test_a_batch_that_cannot_be_split_is_refused(whole: int, multiple: int) -> None:
    with pytest.raises(RecordError, match=f"the global batch is {whole} for 2 ranks"):
        balanced_split([LocalTime(0.0, 1.0, 1)] * 2, whole, multiple=multiple)


def test_a_local_time_does_not_wait() -> None:
    waits = global_graph(make_job([SLOW, FAST], TRANSFERS).locals)
    assert local_us(Place(waits, 1)) == pytest.approx(make_job([FAST], TRANSFERS).steps_us[0])


def test_one_trace_tells_the_part_that_grows() -> None:
    time = local_time(Place(job([400.0, 400.0]), 0), 8)
    # 800 µs of kernels for 8 samples; a launch before them, the last transfer, the optimizer and its launch are fixed.
    assert time.per_sample_us == pytest.approx(100.0)
    assert time.at(8) == pytest.approx(job([400.0, 400.0]).local(0).step_us)
    assert "one batch size" in time.source


def test_two_traces_tell_it_without_an_assumption() -> None:
    small, large = (Place(job([50.0 + us, 50.0 + us]), 0) for us in (100.0, 200.0))
    time = local_time_of_two(small, 4, large, 8)
    assert time.per_sample_us == pytest.approx(50.0)
    assert time.at(8) == pytest.approx(local_us(large))
    assert time == local_time_of_two(large, 8, small, 4)
    with pytest.raises(RecordError, match="the larger one taking longer"):
        local_time_of_two(small, 8, large, 4)


def balanced() -> Balance:
    slow, fast = Place(job([600.0, 600.0]), 0), Place(job([200.0, 200.0]), 0)
    return balance([slow, fast], [8, 8])


def test_a_balanced_split_waits_less() -> None:
    answer = balanced()
    assert answer.even == (8, 8)
    assert answer.split == (4, 12)
    assert answer.before.step_us == pytest.approx(make_job([[600.0, 600.0], [200.0, 200.0]], TRANSFERS[:2]).steps_us[0])
    assert answer.after.step_us == pytest.approx(make_job([[300.0, 300.0], [300.0, 300.0]], TRANSFERS[:2]).steps_us[0])
    assert sum(answer.after.waited_for_us().values()) == pytest.approx(0.0, abs=1e-6)


def test_another_global_batch_is_split_as_well() -> None:
    slow, fast = Place(job([600.0, 600.0]), 0), Place(job([200.0, 200.0]), 0)
    answer = balance([slow, fast], [8, 8], 32)
    assert answer.even == (16, 16)
    assert answer.split == (8, 24)


def test_samples_are_given_for_each_rank() -> None:
    with pytest.raises(RecordError, match="expected one number of 1 or more for each of 2 ranks"):
        balance([Place(job(SLOW), 0), Place(job(FAST), 0)], [8])


def test_a_ratio_sees_the_operator() -> None:
    names: list[str] = []

    def ratio(local: LocalGraph, operator: int) -> float:
        names.append(local.operators[operator].name)
        return 1.0

    on_device(job(FAST).local(0), ratio)
    assert names == ["layer0", "layer1", "layer2", "step"]
