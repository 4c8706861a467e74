"""Pipeline schedules: each is one function that orders a stage's slots, without durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, partial
from typing import NamedTuple


class Pass(IntEnum):
    """A slot's pass; BACKWARD includes the weight gradients where the schedule does not split them off."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


FORWARD, BACKWARD, WEIGHT = Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHT


class Slot(NamedTuple):
    """One micro-batch's pass through one model chunk of one stage."""

    kind: Pass
    micro_batch: int
    chunk: int = 0


V_CHUNKS = 2  # of every stage in V-shaped schedules: one on the way down the stages, one on the way up
# (stage, num_stages, num_micro_batches, num_chunks) → the stage's slots in the order in which it runs them.
SlotOrder = Callable[[int, int, int, int], list[Slot]]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A schedule: the order of a stage's slots, and its properties.

    Attributes:
        order: the slots of one stage.
        splits_backward: the gradients of the input (BACKWARD) and of the weights (WEIGHT) are slots of their own.
        chunks: a stage may hold several model chunks (virtual stages).
        may_block: its messages may make sender and receiver wait for each other.
        has_steady_state: between warm-up and cool-down every stage repeats the same slots with later micro-batches.
        v_shaped: stages hold two chunks, the second ones in reverse: the first stage has the model's both ends.
        pairs: a forward pass and the other chunk's backward pass behind it run as one, and send their results together.
        least_micro_batches: per stage of the pipeline.
        is_searched: a search for the fastest layout tries it.
        all_forward: all forward passes run before the first backward pass, so that a stage holds every micro-batch.
        group: micro-batches that pass a chunk before the first of them passes the next; 0: as many as stages.
    """

    name: str
    label: str
    order: SlotOrder
    source: str
    splits_backward: bool = False
    chunks: bool = False
    may_block: bool = True
    has_steady_state: bool = False
    v_shaped: bool = False
    pairs: bool = False
    least_micro_batches: int = 0
    all_forward: bool = False
    is_searched: bool = True
    group: int = 0

    def virtual_stage(self, stage: int, chunk: int, num_stages: int) -> int:
        """Return the place of a stage's chunk in the model, counted from 0."""
        turns = self.v_shaped and chunk % 2
        return chunk * num_stages + (num_stages - 1 - stage if turns else stage)

    def holder(self, virtual_stage: int, num_stages: int) -> tuple[int, int]:
        """Return the stage that holds the chunk at a place in the model, and its number there."""
        chunk, along = divmod(virtual_stage, num_stages)
        turns = self.v_shaped and chunk % 2
        return num_stages - 1 - along if turns else along, chunk

    def delayed_sends(self, slots: Sequence[Slot], stage: int, num_stages: int) -> dict[int, int]:
        """Return the slots whose results leave with those of a later slot, each with that slot; by their positions.

        The turning stage does not pair its first: its other chunk waits for it (dualpipev.py, "to further reduce
        bubble size").
        """
        if not self.pairs:
            return {}
        pairs = [
            at
            for at, (first, then, last) in enumerate(zip(slots, slots[1:], slots[2:], strict=False))
            if (first.kind, then.kind, last.kind) == (FORWARD, BACKWARD, WEIGHT)
            and first.chunk != then.chunk
            and then[1:] == last[1:]
        ]
        if stage == num_stages - 1:
            pairs = pairs[1:]
        return {at + behind: at + 2 for at in pairs for behind in (0, 1)}

    def period(self, num_stages: int) -> int:
        """Return the micro-batches after which a stage's order repeats in the steady state."""
        return (self.group or num_stages) if self.chunks and not self.v_shaped else 1

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes of every micro-batch."""
        return (FORWARD, BACKWARD, WEIGHT) if self.splits_backward else (FORWARD, BACKWARD)


def all_forward_all_backward(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """AFAB (GPipe): all forwards, then all backwards in reverse order."""
    forwards = [Slot(FORWARD, i) for i in range(num_micro_batches)]
    return forwards + [Slot(BACKWARD, i) for i in reversed(range(num_micro_batches))]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """1F1B (PipeDream-flush): warm up, alternate, cool down."""
    warmup = min(num_stages - stage - 1, num_micro_batches)
    slots = [Slot(FORWARD, i) for i in range(warmup)]
    for i in range(num_micro_batches - warmup):
        slots += [Slot(FORWARD, warmup + i), Slot(BACKWARD, i)]
    return slots + [Slot(BACKWARD, i) for i in range(num_micro_batches - warmup, num_micro_batches)]


def interleaved_1f1b(
    stage: int, num_stages: int, num_micro_batches: int, num_chunks: int, group_size: int = 0
) -> list[Slot]:
    """Interleaved 1F1B: 1F1B over virtual stages, one micro-batch per stage and chunk in turn.

    Groups of ``group_size`` micro-batches, ``num_stages`` if 0, pass the first chunk, then the second, and so on;
    backwards in reverse. The last group has what is left. Source of groups and warm-up: Megatron-LM
    ``core/pipeline_parallel/schedules.py``, get_schedule_table and get_pp_rank_microbatches.
    """
    group = group_size or num_stages
    order = [
        (micro_batch, chunk)
        for first in range(0, num_micro_batches, group)
        for chunk in range(num_chunks)
        for micro_batch in range(first, min(first + group, num_micro_batches))
    ]

    def slot(kind: Pass, index: int) -> Slot:
        micro_batch, chunk = order[index]
        return Slot(kind, micro_batch, chunk if kind is FORWARD else num_chunks - 1 - chunk)

    count = len(order)
    warmup = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * group, count)
    slots = [slot(FORWARD, i) for i in range(warmup)]
    for i in range(count - warmup):
        slots += [slot(FORWARD, warmup + i), slot(BACKWARD, i)]
    return slots + [slot(BACKWARD, i) for i in range(count - warmup, count)]


def looped_bfs(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Slot]:
    """Breadth-first: all micro-batches pass a chunk before the next one; backward the last chunk first, in reverse.

    Source of the order: PyTorch torch/distributed/pipelining/schedules.py, ScheduleLoopedBFS.
    """
    order = [(micro_batch, chunk) for chunk in range(num_chunks) for micro_batch in range(num_micro_batches)]
    return [Slot(FORWARD, *each) for each in order] + [Slot(BACKWARD, *each) for each in reversed(order)]


def zero_bubble_h1(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """ZB-H1: 1F1B with weight gradients that stage s delays by s backwards, to fill the cool-down.

    A stage holds no more micro-batches than the first stage of 1F1B.
    """
    warmup = min(num_stages - stage - 1, num_micro_batches)
    slots = [Slot(FORWARD, i) for i in range(warmup)]
    for i in range(num_micro_batches):
        if warmup + i < num_micro_batches:
            slots.append(Slot(FORWARD, warmup + i))
        slots.append(Slot(BACKWARD, i))
        if i >= stage:
            slots.append(Slot(WEIGHT, i - stage))
    return slots + [Slot(WEIGHT, i) for i in range(max(0, num_micro_batches - stage), num_micro_batches)]


class _InTurn:
    """A stage's slots as they are added, every pass of a chunk over its micro-batches in turn."""

    def __init__(self, num_micro_batches: int) -> None:
        self.slots: list[Slot] = []
        self._limit = num_micro_batches
        self._count: Counter[tuple[Pass, int]] = Counter()

    def add(self, kind: Pass, chunk: int) -> None:
        """Run a pass of the next micro-batch through a chunk; beyond the last one nothing runs."""
        micro_batch = self._count[kind, chunk]
        self._count[kind, chunk] += 1
        if micro_batch < self._limit:
            self.slots.append(Slot(kind, micro_batch, chunk))

    def done(self, kind: Pass, chunk: int) -> int:
        """Return how many micro-batches have had a pass."""
        return self._count[kind, chunk]


def zero_bubble_v(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 2) -> list[Slot]:
    """ZB-V: two chunks per stage, down and up again; gradients of weights follow at once, but for the cool-down's.

    Warm-up: forwards down until the first comes back up, then down and up in turn; from the first turn on a stage runs
    a backward pass of the upper chunk behind each of its forwards. Steps with fewer than 2p − 1 micro-batches run the
    order of 2p − 1 without those that they have not.
    """
    ahead, run = num_stages - stage, _InTurn(num_micro_batches)
    whole = max(num_micro_batches, 2 * num_stages - 1)
    for _ in range(2 * ahead - 1):
        run.add(FORWARD, 0)
    for _ in range(stage):
        run.add(FORWARD, 1)
        run.add(FORWARD, 0)
    for _ in range(ahead):
        for kind in (FORWARD, BACKWARD, WEIGHT):
            run.add(kind, 1)
    while run.done(FORWARD, 1) < whole:
        if run.done(FORWARD, 0) < whole:
            run.add(FORWARD, 0)
        run.add(BACKWARD, 0)
        run.add(WEIGHT, 0)
        for kind in (FORWARD, BACKWARD, WEIGHT):
            run.add(kind, 1)
    for _ in range(stage):
        run.add(BACKWARD, 0)
        run.add(BACKWARD, 1)
    for _ in range(ahead):
        run.add(BACKWARD, 0)
        run.add(WEIGHT, 0)
    for chunk in (1, 0):
        while run.done(WEIGHT, chunk) < whole:
            run.add(WEIGHT, chunk)
    return run.slots


def dualpipe_v(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 2) -> list[Slot]:
    """DualPipeV: ZB-V's two chunks per stage, a forward pass of one beside a backward pass of the other.

    Gradients of weights are put off only where a stage would wait: in the warm-up, and in the cool-down's second half.
    Phases as DeepSeek numbers them: 1 down, 2 down and up, 3 backward and forward up, 4 steady, 5 and 6 without new
    forwards, 7 the lower chunk's last backward passes, 8 the weights that are left.
    """
    ahead, run = num_stages - stage - 1, _InTurn(num_micro_batches)
    owed: list[int] = []  # chunks whose gradients of weights are put off, the first first

    def backward(chunk: int, puts_off: bool = False) -> None:
        run.add(BACKWARD, chunk)
        if puts_off:
            owed.append(chunk)
        else:
            run.add(WEIGHT, chunk)

    for _ in range(2 * ahead):
        run.add(FORWARD, 0)
    for _ in range(stage + 1):
        run.add(FORWARD, 0)
        run.add(FORWARD, 1)
    for _ in range(ahead):
        backward(1)
        run.add(FORWARD, 1)
    for _ in range(num_micro_batches - num_stages - ahead):
        run.add(FORWARD, 0)
        backward(1)
        run.add(FORWARD, 1)
        backward(0)
    for _ in range(ahead):
        backward(1)
        run.add(FORWARD, 1)
        backward(0)
    half, is_odd = divmod(stage + 1, 2)
    for i in range(stage + 1):
        backward(1, puts_off=i > half or (i == half and not is_odd))
        backward(0, puts_off=i >= half)
    for _ in range(ahead):
        run.add(WEIGHT, owed.pop(0))
        backward(0, puts_off=True)
    for chunk in owed:
        run.add(WEIGHT, chunk)
    return run.slots


IN_GROUPS = "interleaved_1f1b/"  # and the micro-batches of a group: the name of a schedule with groups of its own


class _Schedules(dict[str, Schedule]):
    """Schedules by name; interleaved 1F1B in any groups, which are not listed."""

    def __missing__(self, name: str) -> Schedule:
        if not name.startswith(IN_GROUPS):
            raise KeyError(name)
        return _in_groups(self["interleaved_1f1b"], int(name.removeprefix(IN_GROUPS)))


@cache
def _in_groups(schedule: Schedule, size: int) -> Schedule:
    return replace(
        schedule,
        name=f"{IN_GROUPS}{size}",
        label=f"{schedule.label} in groups of {size}",
        order=partial(interleaved_1f1b, group_size=size),
        group=size,
    )


SCHEDULES: Mapping[str, Schedule] = _Schedules(
    {
        schedule.name: schedule
        for schedule in (
            Schedule(
                "1f1b",
                "1F1B",
                one_forward_one_backward,
                "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
                has_steady_state=True,
            ),
            Schedule(
                "all_forward_all_backward",
                "AFAB",
                all_forward_all_backward,
                "Huang et al. 2019, arXiv:1811.06965",
                all_forward=True,
            ),
            Schedule(
                "interleaved_1f1b",
                "interleaved 1F1B",
                interleaved_1f1b,
                "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
                chunks=True,
                may_block=False,
                has_steady_state=True,
            ),
            Schedule(
                "looped_bfs",
                "looped BFS",
                looped_bfs,
                "Lamy-Poirier 2022, arXiv:2211.05953",
                chunks=True,
                may_block=False,
                all_forward=True,
                is_searched=False,
            ),
            Schedule(
                "zero_bubble_h1",
                "ZB-H1",
                zero_bubble_h1,
                "Qi et al. 2023, arXiv:2401.10241, section 2",
                splits_backward=True,
                may_block=False,
                has_steady_state=True,
            ),
            Schedule(
                "zbv",
                "ZB-V",
                zero_bubble_v,
                "Qi et al. 2024, arXiv:2405.15362, section 3; order for equal passes: PyTorch "
                "torch/distributed/pipelining/schedules.py, ScheduleZBVZeroBubble",
                splits_backward=True,
                chunks=True,
                may_block=False,
                has_steady_state=True,
                v_shaped=True,
            ),
            Schedule(
                "dualpipe_v",
                "DualPipeV",
                dualpipe_v,
                "DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe, dualpipe/dualpipev.py",
                splits_backward=True,
                chunks=True,
                may_block=False,
                has_steady_state=True,
                v_shaped=True,
                pairs=True,
                least_micro_batches=2,
            ),
        )
    }
)


def messages_sent(schedule: Schedule, stage: int, num_stages: int, num_chunks: int) -> tuple[int, int]:
    """Return the messages that a stage sends per micro-batch forward and backward; chunks side by side send none."""
    last = num_stages * num_chunks - 1
    forward = backward = 0
    for chunk in range(num_chunks):
        at = schedule.virtual_stage(stage, chunk, num_stages)
        forward += at < last and schedule.holder(at + 1, num_stages)[0] != stage
        backward += at > 0 and schedule.holder(at - 1, num_stages)[0] != stage
    return forward, backward
