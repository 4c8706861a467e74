"""Monitor: changes of synthetic series, numbers of health, and what must not move it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from predictor.watch.events import (
    CHECKPOINT,
    CPU_SECONDS,
    EVALUATION,
    FORWARD,
    Activity,
    DeviceSample,
    End,
    Event,
    Message,
    Start,
    Step,
)
from predictor.watch.health import ChangeKind, Expected, Finding, Health, State
from predictor.watch.monitor import Monitor
from tests.unit.watch.fake_runs import steps, times, watch

ONSET = 150


def alarms(health: Health) -> list[Finding]:
    return [finding for finding in health.findings if not finding.is_expected]


def kinds(health: Health) -> set[ChangeKind]:
    return {finding.change.kind for finding in alarms(health)}


FAULTS: dict[ChangeKind, Callable[[int, random.Random], float]] = {
    ChangeKind.JUMP: lambda since, draw: 1.06,
    ChangeKind.PERIODIC: lambda since, draw: 2.0 if since % 8 == 0 else 1.0,
    ChangeKind.SINGLE: lambda since, draw: 60.0 if since == 0 else 1.0,
    ChangeKind.IRREGULAR: lambda since, draw: draw.uniform(1.5, 3) if draw.random() < 0.35 else 1.0,
}


def faulty(kind: ChangeKind, seed: int, after: int) -> list[float]:
    draw = random.Random(seed)
    healthy = times(ONSET + after, seed)
    return healthy[:ONSET] + [
        seconds * FAULTS[kind](since, draw) for since, seconds in enumerate(healthy[ONSET:])
    ]  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_alarms_within_twenty_steps(kind: ChangeKind) -> None:
    found = sum(bool(alarms(watch(steps(faulty(kind, seed, 20))))) for seed in range(20))
    assert found >= 18


@pytest.mark.parametrize("kind", FAULTS)
def test_shape_of_a_fault_is_named(kind: ChangeKind) -> None:
    health = watch(steps(faulty(kind, 1, 60)))
    assert kinds(health) == {kind}
    assert abs(alarms(health)[0].change.first_step - ONSET) <= 4


def test_period_is_told() -> None:
    (finding,) = alarms(watch(steps(faulty(ChangeKind.PERIODIC, 3, 60))))
    assert finding.change.period == 8
    assert finding.change.extra_s == pytest.approx(0.1, rel=0.1)


def test_drift_is_found() -> None:
    seconds = [value * (1 + 0.002 * max(0, at - ONSET)) for at, value in enumerate(times(ONSET + 120, 5))]
    assert kinds(watch(steps(seconds))) & {ChangeKind.DRIFT, ChangeKind.JUMP}


def test_slow_drift_after_a_steady_time_is_found_and_one_from_the_start_is_no_alarm() -> None:
    late = [value * (1 + 1e-4 * max(0, at - 600)) for at, value in enumerate(times(2000, 6, sigma=0.01))]
    assert ChangeKind.DRIFT in kinds(watch(steps(late)))
    usual = [value * (1 + 1e-4 * at) for at, value in enumerate(times(2000, 6, sigma=0.01))]
    health = watch(steps(usual))
    assert not alarms(health)
    assert health.trend == pytest.approx(0.1, rel=0.3)


def test_jump_that_goes_back_ends() -> None:
    seconds = times(100) + [1.5 * value for value in times(100, 1)] + times(100, 2)
    (finding,) = [f for f in watch(steps(seconds)).findings if f.change.kind is ChangeKind.JUMP]
    assert finding.change.last_step is not None
    assert abs(finding.change.last_step - 200) <= 2
    assert finding.change.lost_s == pytest.approx(5.0, rel=0.1)


def test_healthy_series_alarm_no_more_often_than_stated() -> None:
    count = sum(len(alarms(watch(steps(times(2500, seed, sigma=0.01 * (1 + seed % 5)))))) for seed in range(20))
    assert count <= 3  # one expected in 10⁵ steps of each test; 5 · 10⁴ steps seen


@pytest.mark.parametrize("factor", [1e-2, 7.3, 1000.0])
def test_scale_of_the_times_changes_no_finding(factor: float) -> None:
    seconds = faulty(ChangeKind.JUMP, 2, 40) + faulty(ChangeKind.PERIODIC, 2, 60)

    def shapes(health: Health) -> list[tuple[ChangeKind, int, int | None, float | None, bool]]:
        return [
            (f.change.kind, f.change.first_step, f.change.last_step, f.change.period, f.is_expected)
            for f in health.findings
        ]

    scaled = watch(steps([factor * value for value in seconds]))
    assert shapes(scaled) == shapes(watch(steps(seconds)))


def test_looking_in_between_changes_nothing() -> None:
    events = list(steps(faulty(ChangeKind.IRREGULAR, 4, 80)))
    looked = Monitor()
    for event in events:
        looked.take(event)
        looked.health()
    assert looked.health() == watch(events)


def test_alternating_kinds_of_steps_are_usual() -> None:
    seconds = [value * (1.25 if at % 2 else 1.0) for at, value in enumerate(times(400, 7))]
    health = watch(steps(seconds))
    assert not alarms(health)
    slower = seconds[:300] + [1.08 * value for value in seconds[300:]]
    assert kinds(watch(steps(slower))) == {ChangeKind.JUMP}


def test_rounded_times_are_no_changes() -> None:
    total, seconds, before = 0.0, [], 0
    for value in times(600, 8, step_s=0.0314, sigma=0.005):
        total += value
        seconds.append((round(total * 1e3) - before) / 1e3)
        before = round(total * 1e3)
    assert not alarms(watch(steps(seconds)))


def test_first_steps_are_named_and_expected() -> None:
    seconds = [30.0, 2.0, 0.3, *times(100)]
    health = watch(steps(seconds))
    (finding,) = health.findings
    assert finding.is_expected
    assert finding.explanations[0].cause == "warm_up"
    assert finding.change.lost_s == pytest.approx(32, rel=0.01)


def test_evaluations_and_checkpoints_are_expected() -> None:
    events: list[Event] = []
    for event in steps(times(400)):
        events.append(event)
        if isinstance(event, Step) and event.number % 100 == 0:
            events.append(Activity(CHECKPOINT, step=event.number, seconds=20.0))
        if isinstance(event, Step) and event.number % 50 == 0:
            events.append(Activity(EVALUATION, step=event.number, seconds=5.0))
    health = watch(events)
    assert not alarms(health)
    causes = {finding.explanations[0].cause: finding.change for finding in health.findings}
    assert causes["checkpointing"].period == 100
    assert causes["evaluation"].lost_s == pytest.approx(40, rel=0.05)


def test_restart_is_expected_and_its_repeated_steps_are_lost() -> None:
    events = [*steps(times(200)), *list(steps(times(100, 1), first=151))[1:]]
    health = watch(events)
    assert health.restarts == 1
    assert not alarms(health)
    (finding,) = [f for f in health.findings if f.explanations[0].cause == "restart"]
    assert finding.change.lost_s == pytest.approx(50 * 0.1, rel=0.05)


def test_slower_nodes_after_a_restart_are_told() -> None:
    before, after = list(steps(times(200))), list(steps([1.15 * value for value in times(100, 1)], first=201))
    before[0], after[0] = Start(hosts=("node1", "node2")), Start(hosts=("node1", "node7"), resumed_step=200)
    (finding,) = alarms(watch([*before, *after]))
    assert finding.change.kind is ChangeKind.JUMP
    assert finding.explanations[0].cause == "restart"
    assert not alarms(watch([*before, after[0], *list(steps(times(100, 1), first=201))[1:]]))


def test_silence_beyond_the_runs_own_pauses_is_a_stall() -> None:
    events = list(steps(times(100)))
    last = watch(events).last_at
    assert last is not None
    assert watch(events, now=last + 30).state is State.HEALTHY
    health = watch(events, now=last + 120)
    assert health.state is State.STALLED
    assert ChangeKind.STALL in kinds(health)
    long = [*events, Activity(EVALUATION, step=100, at=last + 200), Step(101, 0.1, at=last + 200.1)]
    assert watch(long, now=last + 320).state is State.HEALTHY
    assert watch([*events, End("completed")], now=last + 1e6).state is State.ENDED


def test_end_is_dated_from_the_target() -> None:
    events = list(steps(times(200)))
    events[0] = Start(at=1_000_000.0, target_step=1200)
    health = watch(events)
    assert health.remaining_steps == 1000
    assert health.last_at is not None
    assert health.end_at == pytest.approx(health.last_at + 100, rel=1e-3)


def test_steps_logged_in_groups_are_followed() -> None:
    seconds = times(60, sigma=0.005) + [1.2 * value for value in times(20, 1, sigma=0.005)]
    events = [Step(100 * number, value, steps=100) for number, value in enumerate(seconds, 1)]
    health = watch(events)
    assert health.steps == 8000
    assert kinds(health) == {ChangeKind.JUMP}
    assert alarms(health)[0].change.first_step == 6100


def test_changed_tokens_explain_a_jump() -> None:
    events = [
        Step(n, value * (1 if n < 100 else 2), tokens=1e6 if n < 100 else 2e6) for n, value in enumerate(times(200))
    ]
    health = watch(events)
    assert not alarms(health)
    assert any(finding.explanations[0].cause == "workload_changed" for finding in health.findings)
    same = [Step(n, value * (1 if n < 100 else 2), tokens=1e6) for n, value in enumerate(times(200))]
    assert kinds(watch(same)) == {ChangeKind.JUMP}


def test_same_step_of_another_run_explains_a_jump() -> None:
    seconds = [value * (1.0 if at < 150 else 1.2) for at, value in enumerate(times(300))]
    other = watch(steps([value * (1.0 if at < 150 else 1.2) for at, value in enumerate(times(300, 9))]))
    monitor = Monitor()
    monitor.compare_with(other)
    for event in steps(seconds):
        monitor.take(event)
    assert not alarms(monitor.health())
    assert alarms(watch(steps(seconds)))


def test_what_a_log_lacks_is_noted() -> None:
    notes = watch(steps([round(value, 2) for value in times(100, sigma=0.1)])).notes
    assert [note for note in notes if "rounds" in note and "10 ms" in note]
    assert [note for note in notes if "no tokens" in note]


def test_expected_step_is_calibrated_and_a_slow_run_is_told() -> None:
    expected = Expected(0.095, 0.08, 0.115, parts={"compute": 0.07, "communication": 0.02})
    monitor = Monitor(expected)
    for event in steps(times(200)):
        monitor.take(event)
    health = monitor.health()
    assert health.expected is not None
    assert health.expected.calibrated_s == pytest.approx(0.1, rel=0.01)
    assert not alarms(health)
    slow = Monitor(expected)
    for event in steps([1.5 * value for value in times(200)]):
        slow.take(event)
    (finding,) = alarms(slow.health())
    assert finding.change.kind is ChangeKind.WHOLE
    assert finding.change.extra_s == pytest.approx(0.055, rel=0.02)
    assert any("communication" in sentence for sentence in finding.explanations[0].evidence)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e300, 1e-300])
def test_values_of_a_hostile_log_do_no_harm(seconds: float) -> None:
    events = list(steps(times(100)))
    hostile: list[Event] = [
        Step(-5, seconds), Step(10**30, seconds), Step(50, seconds, steps=-3, rank=-1, at=math.nan),
        Step(101, seconds, parts={FORWARD: math.nan, "": 1.0}, counters={CPU_SECONDS: -math.inf}, tokens=math.nan),
        Activity("", step=None, seconds=math.nan), Message("", "", step=-1), DeviceSample("", sm_clock_mhz=math.nan),
        Start(at=math.inf, resumed_step=-7, world_size=-1), End(""),
    ]  # fmt: skip
    health = watch([*events, *hostile, *events])
    assert health.steps > 0
    assert health.median_s == pytest.approx(0.1, rel=0.02)


def test_a_jump_that_goes_on_has_lost_what_its_latest_steps_lost() -> None:
    events: list[Event] = [Step(10 * at, 1.0 if at < 60 else 1.5, steps=10) for at in range(1, 101)]
    (finding,) = alarms(watch(events))
    assert finding.change.lost_s == pytest.approx(41 * 10 * 0.5)
    assert finding.change.extra_s == pytest.approx(0.5)


def test_a_restart_forgets_nothing_that_a_jump_has_lost() -> None:
    slow = [Step(at, 1.0 if at < 60 else 1.5) for at in range(1, 121)]
    events: list[Event] = [*slow, Start(resumed_step=120), *(Step(at, 1.0) for at in range(121, 181))]
    (finding,) = [one for one in watch(events).findings if one.change.kind is ChangeKind.JUMP]
    assert finding.change.lost_s == pytest.approx(61 * 0.5)


def test_a_stall_names_the_last_step() -> None:
    events = list(steps(times(100)))
    (finding,) = alarms(watch(events, now=(events[-1].at or 0.0) + 3600))
    assert (finding.change.kind, finding.change.first_step) == (ChangeKind.STALL, 100)


def test_what_is_unexplained_but_no_alarm_says_why() -> None:
    seconds = times(300)
    seconds[200] *= 3
    (finding,) = watch(steps(seconds)).findings
    assert finding.is_expected
    assert finding.tolerated == "it costs less than 3% of the time, over 1,000 steps or more"
