"""When every slot and every message of a replay starts and ends, for a trace and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from predictor.timeline.graph import replay_graph
from predictor.timeline.pipeline import MESSAGE_NAMES, Stream, pipeline_tasks
from predictor.timeline.replay import PerChunk
from predictor.timeline.schedules import BACKWARD, FORWARD, Pass, Schedule


class SlotTime(NamedTuple):
    """One slot of one stage."""

    stage: int
    kind: Pass
    micro_batch: int
    chunk: int
    start: float
    end: float


class MessageTime(NamedTuple):
    """One message: the activations that a forward slot made, or the gradients of a backward slot."""

    sender: int
    receiver: int
    kind: Pass
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A replay in full, in the unit of its durations.

    Attributes:
        slots: of each stage in the order in which it runs them.
        messages: by their sender's chunk; those that block start when both sides are there.
        finished: when each stage ends its last slot and its last message, as ``Replay`` has it.
    """

    slots: tuple[SlotTime, ...]
    messages: tuple[MessageTime, ...]
    finished: tuple[float, ...]


def record(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    transfer: float,
    blocking: bool = True,
) -> Recording:
    """Time a schedule as ``replay`` does, and keep when everything happened."""
    tasks = pipeline_tasks(schedule, num_micro_batches, forward, backward, weight, transfer, blocking)
    num_stages, num_chunks = len(forward), len(forward[0])
    orders = [schedule.order(stage, num_stages, num_micro_batches, num_chunks) for stage in range(num_stages)]
    spans = replay_graph(tasks).spans
    each = [(stage, slot) for stage, order in enumerate(orders) for slot in order]
    slots = tuple(
        SlotTime(stage, *slot, span.start_us, span.end_us)
        for (stage, slot), span in zip(each, spans[: len(each)], strict=True)
    )
    messages = []
    for send, receive in zip(spans[len(each) :: 2], spans[len(each) + 1 :: 2], strict=True):
        kind = FORWARD if send.name.startswith(MESSAGE_NAMES[FORWARD]) else BACKWARD
        micro_batch, chunk = (int(str(send.details[key])) for key in ("micro_batch", "chunk"))
        messages.append(MessageTime(send.rank, receive.rank, kind, micro_batch, chunk, send.start_us, send.end_us))
    finished = [0.0] * num_stages
    for span in spans:
        if blocking or span.stream == Stream.COMPUTE:
            finished[span.rank] = max(finished[span.rank], span.end_us)
    return Recording(slots, tuple(messages), tuple(finished))
