"""Replay order of non-blocking pipelines, cut into repeating rounds.

In a round the first stage runs so many slots and all others as many as that lets them. Between warm-up and cool-down
rounds repeat, so an order is a few distinct rounds with how often each comes, however many micro-batches a step has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from predictor.timeline.order import slot_orders
from predictor.timeline.schedules import BACKWARD, FORWARD, Schedule, Slot

# A slot: (stage, which duration, how many events back is the one that sends what it waits for, negative, or NOTHING).
# Durations count by pass, then stage, then chunk.
Event = tuple[int, int, int]
Round = tuple[Event, ...]
NOTHING = 0
# A step of fewer times the micro-batches that show warm-up, two equal rounds and cool-down is ordered slot by slot.
WORTH_REPEATING = 3


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """All slots of all stages, each after what it waits for.

    Attributes:
        rounds: distinct rounds with the number of times that each is repeated, one after the other.
        reach: how many events back a slot looks at most.
    """

    rounds: tuple[tuple[Round, int], ...]
    reach: int


def _rounds(
    orders: Sequence[Sequence[Slot]], num_micro_batches: int, num_chunks: int, slots_a_round: int
) -> list[Round]:
    """Order slots of which only a message's receiver waits; a round has so many of the first stage.

    Virtual stage chunk · num_stages + stage hands activations to the next one and gradients to the one before. Every
    micro-batch passes the first stage first and last, so that it is the one that holds up the others.
    """
    num_stages, m = len(orders), num_micro_batches
    passes = num_stages * num_chunks * m  # slots of one pass: forward slots are numbered from 0, backward from here
    not_made = -1
    made = [not_made] * (3 * passes)
    waiting: dict[int, int] = {}
    position = [0] * num_stages
    limits = [len(slots) for slots in orders]
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
                within = (chunk * num_stages + stage) * m + micro_batch
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
                    sender = made[needs] - count
                made[slot] = count
                count += 1
                events.append((stage, (kind * num_stages + stage) * num_chunks + chunk, sender))
                at += 1
                if slot in waiting:
                    ready.append(waiting.pop(slot))
            position[stage] = at
        rounds.append(tuple(events))
        ready = [0]
    assert position == [len(slots) for slots in orders], "the schedule deadlocks"
    return rounds


def _repeated(rounds: Sequence[Round]) -> list[tuple[Round, int]]:
    """Return rounds with the number of times that each follows itself."""
    found: list[tuple[Round, int]] = []
    for one in rounds:
        if found and found[-1][0] == one:
            found[-1] = (one, found[-1][1] + 1)
        else:
            found.append((one, 1))
    return found


def _steady(
    schedule: Schedule, num_stages: int, num_micro_batches: int, num_chunks: int
) -> list[tuple[Round, int]] | None:
    """Return the rounds of a long step, told from those of two short ones; None where they do not tell them.

    The two differ by the micro-batches of one round. If they have the same rounds, one of them once more often, a step
    that is longer by further rounds has that one more often still.
    """
    period = num_stages if schedule.chunks else 1
    least = 5 * period if schedule.chunks else 2 * num_stages + 4
    if num_micro_batches < WORTH_REPEATING * least:
        return None
    least += (num_micro_batches - least) % period
    slots_a_round = len(schedule.passes) * period * num_chunks
    short, longer = (
        _repeated(_rounds(slot_orders(schedule, num_stages, count, num_chunks), count, num_chunks, slots_a_round))
        for count in (least, least + period)
    )
    if [one for one, _ in short] != [one for one, _ in longer]:
        return None
    growth = [more - times for (_, times), (_, more) in zip(short, longer, strict=True)]
    if sorted(growth) != [*[0] * (len(growth) - 1), 1]:
        return None
    further = (num_micro_batches - least) // period
    return [(one, times + further * grown) for (one, times), grown in zip(short, growth, strict=True)]


# Slots decide who waits for whom, durations only how long, so one order serves every replay of a schedule: the point
# estimate, both ends of its interval, and most of a search.
@lru_cache(maxsize=64)
def waiting_order(schedule: Schedule, num_stages: int, num_micro_batches: int, num_chunks: int) -> WaitingOrder:
    """Return all slots of all stages, each after what it waits for; only a message's receiver waits for it."""
    rounds = None
    if schedule.has_steady_state:
        rounds = _steady(schedule, num_stages, num_micro_batches, num_chunks)
    if rounds is None:
        orders = slot_orders(schedule, num_stages, num_micro_batches, num_chunks)
        rounds = [(one, 1) for one in _rounds(orders, num_micro_batches, num_chunks, len(orders[0]))]
    return WaitingOrder(tuple(rounds), -min(sender for one, _ in rounds for _, _, sender in one))
