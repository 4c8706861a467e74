"""Assembly: one observation a step, of whatever ranks report, in order."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.watch.assembly import Assembly
from predictor.watch.events import (
    COMMUNICATION,
    CPU_SECONDS,
    EVALUATION,
    FORWARD,
    NETWORK,
    Activity,
    DeviceSample,
    Message,
    Step,
)
from predictor.watch.observations import CAPPED, CLOCK, HOT, Observation, Profile


def assemble(events: Iterable[Step | Activity | Message | DeviceSample]) -> list[Observation]:
    assembly = Assembly()
    return [observation for event in events for observation in assembly.take(event)]


def test_ranks_of_a_step_are_joined() -> None:
    events = [
        Step(number, 0.1, rank=rank, parts={FORWARD: 0.05 + 0.02 * rank, COMMUNICATION: 0.03 - 0.02 * rank})
        for number in range(1, 20) for rank in (0, 1)
    ]  # fmt: skip
    observations = assemble(events)
    assert [observation.number for observation in observations] == list(range(1, 20))
    last = observations[-1]
    assert last.ranks.keys() == {0, 1}
    assert last.facts[FORWARD] == 0.07  # of the busiest rank
    assert last.facts[COMMUNICATION] == 0.03 - 0.02  # all ranks are at least so long in it


def test_a_rank_that_falls_silent_holds_nothing_up_for_long() -> None:
    events = [Step(number, 0.1, rank=rank) for number in range(1, 100) for rank in (0, 1) if rank == 0 or number < 20]
    assert assemble(events)[-1].number >= 96


def test_counters_are_increments_of_a_step() -> None:
    events = [Step(10 * n, 0.1, steps=10, rank=0, counters={CPU_SECONDS: 5.0 * n}) for n in range(1, 5)]
    assert [observation.facts.get(CPU_SECONDS) for observation in assemble(events)] == [None, 0.5, 0.5, 0.5]


def test_seconds_are_differences_of_times_where_not_stated() -> None:
    events = [Step(n, None, at=1000 + 2.0 * n) for n in range(5)]
    assert [observation.seconds for observation in assemble(events)] == [2.0] * 4


def test_work_beside_steps_is_known_to_the_steps_after_it() -> None:
    events: list[Step | Activity] = [Step(n, 0.1) for n in range(1, 11)]
    events.insert(5, Activity(EVALUATION, step=5))
    beside = [observation.number for observation in assemble(events) if observation.activities]
    assert beside == [6, 7]


def test_messages_and_devices_belong_to_the_next_step() -> None:
    events: list[Step | Message | DeviceSample] = [Step(1, 0.1), Message(NETWORK, "retransmission"), Step(2, 0.1)]
    events += [DeviceSample("0", sm_clock_mhz=1200.0, throttle_reasons=frozenset({"hw_thermal_slowdown"}))]
    events += [DeviceSample("1", sm_clock_mhz=1900.0), Step(3, 0.1), Step(4, 0.1)]
    first, second, third, fourth = assemble(events)
    assert f"message:{NETWORK}" in second.facts
    assert f"message:{NETWORK}" not in first.facts | third.facts
    assert third.facts[CLOCK] == 1200.0
    assert (third.facts[f"{HOT}GPU 0"], third.facts[f"{HOT}GPU 1"], third.facts[f"{CAPPED}GPU 0"]) == (1.0, 0.0, 0.0)
    assert CLOCK not in fourth.facts


def test_devices_of_two_hosts_are_two() -> None:
    events = [DeviceSample("0", host=host, sm_clock_mhz=1900.0) for host in ("node1", "node2")]
    (only,) = assemble([*events, Step(1, 0.1)])
    assert {name for name in only.facts if name.startswith(HOT)} == {f"{HOT}GPU 0 of node1", f"{HOT}GPU 0 of node2"}


def test_a_message_counts_beside_the_steps_that_had_none() -> None:
    profile = Profile()
    for observation in assemble([*(Step(n, 0.1) for n in range(1, 10)), Message(NETWORK, ""), Step(10, 0.1)]):
        profile.add(observation)
    assert profile.run[f"message:{NETWORK}"] == 0.1
