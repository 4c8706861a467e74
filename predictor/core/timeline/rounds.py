"""Replay order of non-blocking pipelines, cut into repeating rounds.

In a round the first stage runs a fixed number of slots, and the others as many as can then start. Between warm-up and
cool-down rounds repeat, so an order is a few distinct rounds with their numbers of repetitions, however many
micro-batches a step has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from predictor.core.timeline.order import cached, slot_orders
from predictor.core.timeline.schedules import BACKWARD, FORWARD, Schedule, Slot

# A slot: (stage, index of its duration, negative offset to the event whose message it waits for, or NOTHING).
# Durations are indexed by pass, then stage, then chunk.
Event = tuple[int, int, int]
Round = tuple[Event, ...]
NOTHING = 0
# Steps with fewer micro-batches than so many short steps (``_extrapolated``) are ordered in one round.
WORTH_REPEATING = 3


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """All slots of all stages, each after the slots that it waits for.

    Attributes:
        rounds: successive distinct rounds, each with its number of repetitions.
        reach: largest offset to an earlier event.
    """

    rounds: tuple[tuple[Round, int], ...]
    reach: int


def _rounds(
    schedule: Schedule, orders: Sequence[Sequence[Slot]], num_micro_batches: int, num_chunks: int, slots_a_round: int
) -> list[Round]:
    """Order slots with messages that only the receiver waits for; ``slots_a_round`` are those of the first stage.

    Every virtual stage sends activations to the next and gradients to the previous one, where another stage holds it.
    Every micro-batch begins and ends on the first stage, which therefore paces the others.
    """
    num_stages, m = len(orders), num_micro_batches
    places, waits = _places(schedule, num_stages, num_chunks)
    passes = num_stages * num_chunks * m  # slots of one pass: forward slots are numbered from 0, backward from here
    not_made = -1
    made = [not_made] * (3 * passes)
    waiting: dict[int, int] = {}
    position = [0] * num_stages
    limits = [len(slots) for slots in orders]
    later = [schedule.delayed_sends(slots, stage, num_stages) for stage, slots in enumerate(orders)]
    together = [frozenset(held.values()) for held in later]
    pending: list[list[int]] = [[] for _ in orders]
    rounds: list[Round] = []
    count = 0
    ready = list(range(num_stages))
    for limit in range(slots_a_round, limits[0] + slots_a_round, slots_a_round):
        limits[0] = min(limit, len(orders[0]))
        events: list[Event] = []
        while ready:
            stage = ready.pop()
            slots, at, stop = orders[stage], position[stage], limits[stage]
            while at < stop:
                kind, micro_batch, chunk = slots[at]
                within = places[stage][chunk] * m + micro_batch
                slot = kind * passes + within
                sender = NOTHING
                waits_forward, waits_backward = (
                    kind is FORWARD and within >= m,
                    kind is BACKWARD and within < passes - m,
                )
                if waits_forward or waits_backward:
                    needs = slot - m if waits_forward else slot + m
                    if made[needs] == not_made:
                        waiting[needs] = stage
                        break
                    if waits[kind][stage][chunk]:
                        sender = made[needs] - count
                if at in later[stage]:
                    pending[stage].append(slot)
                else:
                    made[slot] = count
                    if slot in waiting:
                        ready.append(waiting.pop(slot))
                    if at in together[stage]:
                        ready += [waiting.pop(earlier) for earlier in pending[stage] if earlier in waiting]
                        for earlier in pending[stage]:
                            made[earlier] = count
                        pending[stage] = []
                events.append((stage, (kind * num_stages + stage) * num_chunks + chunk, sender))
                count += 1
                at += 1
            position[stage] = at
        rounds.append(tuple(events))
        ready = [0]
    assert position == [len(slots) for slots in orders], "the schedule deadlocks"
    return rounds


def _places(
    schedule: Schedule, num_stages: int, num_chunks: int
) -> tuple[list[list[int]], tuple[list[list[bool]], list[list[bool]]]]:
    """Return every chunk's place in the model, and whether its forward and backward pass wait for another stage."""
    stages, chunks = range(num_stages), range(num_chunks)
    places = [[schedule.virtual_stage(stage, chunk, num_stages) for chunk in chunks] for stage in stages]

    def comes_from_elsewhere(step: int) -> list[list[bool]]:
        return [
            [
                0 <= at + step < num_stages * num_chunks and schedule.holder(at + step, num_stages)[0] != stage
                for at in own
            ]
            for stage, own in enumerate(places)
        ]

    return places, (comes_from_elsewhere(-1), comes_from_elsewhere(1))


def _repeated(rounds: Sequence[Round]) -> list[tuple[Round, int]]:
    """Return successive distinct rounds with their numbers of repetitions."""
    return [(events, len(list(equal))) for events, equal in groupby(rounds)]


def _extrapolated(
    schedule: Schedule, num_stages: int, num_micro_batches: int, num_chunks: int
) -> list[tuple[Round, int]] | None:
    """Return the rounds of a long step by extrapolation from two short steps; None where these show no steady state.

    The short steps differ by the micro-batches of a round. If they have the same rounds and the longer step repeats a
    single round once more, each further round of a long step repeats it once more too.
    """
    period = schedule.period(num_stages)
    least = 5 * period if period > 1 else (6 if schedule.v_shaped else 2) * num_stages + 4
    if num_micro_batches < WORTH_REPEATING * least:
        return None
    least += (num_micro_batches - least) % period
    slots_a_round = len(schedule.passes) * period * num_chunks
    short, longer = (
        _repeated(
            _rounds(schedule, slot_orders(schedule, num_stages, count, num_chunks), count, num_chunks, slots_a_round)
        )
        for count in (least, least + period)
    )
    if [events for events, _ in short] != [events for events, _ in longer]:
        return None
    growth = [more - times for (_, times), (_, more) in zip(short, longer, strict=True)]
    if sorted(growth) != [*[0] * (len(growth) - 1), 1]:
        return None
    further = (num_micro_batches - least) // period
    return [(events, times + further * grown) for (events, times), grown in zip(short, growth, strict=True)]


# The order does not depend on durations, so point estimate, both ends of its interval and most of a search share it.
@cached
def waiting_order(schedule: Schedule, num_stages: int, num_micro_batches: int, num_chunks: int) -> WaitingOrder:
    """Return all slots of all stages, each after the slots that it waits for; only receivers wait for messages."""
    rounds = None
    if schedule.has_steady_state:
        rounds = _extrapolated(schedule, num_stages, num_micro_batches, num_chunks)
    if rounds is None:
        orders = slot_orders(schedule, num_stages, num_micro_batches, num_chunks)
        rounds = [(events, 1) for events in _rounds(schedule, orders, num_micro_batches, num_chunks, len(orders[0]))]
    return WaitingOrder(tuple(rounds), -min(sender for events, _ in rounds for _, _, sender in events))
