"""Memory of every stage over a predicted step, for the counters of its trace."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.core.base.collector import paused_collector
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.prediction import Prediction
from predictor.core.timeline.pipeline import PASS_NAMES
from predictor.core.timeline.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import Counter, StepTrace
from predictor.core.workload.step_tasks import StageTasks

TOTAL, PARTS = "memory, GiB", "memory by part, GiB"
Moment = tuple[float, list[int], bool]  # time, micro-batches in flight of every chunk, computing


def _moments(slots: Sequence[Span], num_chunks: int, last_pass: str) -> list[Moment]:
    """Return when what a stage holds changes, in order.

    A micro-batch's activations exist from the start of its forward pass to the end of its last one.
    """
    changes: list[tuple[float, int, int, int]] = []  # time, starts after ends, chunk, micro-batches more
    for slot in slots:
        chunk, step_pass = int(str(slot.details["chunk"])), slot.details["pass"]
        changes.append((slot.start_us, 1, chunk, int(step_pass == PASS_NAMES[FORWARD])))
        changes.append((slot.end_us, 0, chunk, -int(step_pass == last_pass)))
    flights, running = [0] * num_chunks, 0
    moments: list[Moment] = [(0.0, list(flights), False)]
    for at_us, starts, chunk, more in sorted(changes):
        flights[chunk] += more
        running += 1 if starts else -1
        if moments[-1][0] == at_us:
            moments.pop()
        moments.append((at_us, list(flights), running > 0))
    return moments


def _kept(stage: StageTasks, flights: Sequence[int]) -> float:
    """Return the bytes of activations that micro-batches in flight keep, the model's end aside."""
    return sum(
        count * flight * (block.memory.kept + block.memory.kept_first)
        for chunk, flight in zip(stage.chunks, flights, strict=True)
        for block, count in chunk.blocks
    )


def _counters(number: int, stage: StageTasks, memory: StageMemory, moments: Sequence[Moment]) -> list[Counter]:
    """Return a stage's counters.

    Activations follow the bytes that micro-batches in flight keep; at the fullest moment they are the predicted ones.
    """
    kept = [_kept(stage, flights) for _, flights, _ in moments]
    fullest = max(kept) or 1.0
    counters = []
    for (at_us, _, is_computing), held in zip(moments, kept, strict=True):
        parts = {
            "weights, gradients, optimizer": memory.states,
            "buffers": memory.buffers,
            "activations": memory.activations * (held / fullest),
            "at work": memory.working if is_computing else 0.0,
            "allowance": memory.allowance,
        }
        in_gib = {name: size / GIB for name, size in parts.items()}
        counters.append(Counter(TOTAL, number, at_us, {"total": sum(in_gib.values())}))
        counters.append(Counter(PARTS, number, at_us, in_gib))
    return counters


@paused_collector()
def memory_counters(prediction: Prediction, trace: StepTrace) -> list[Counter]:
    """Return the memory of one GPU of every stage over the step, its total and its parts, in GiB.

    Weights, gradients, optimizer states, buffers and the allowance stand throughout. Activations rise with every
    forward pass and fall with every backward pass, where that is split with the gradients of the weights; what is at
    work exists while the stage computes. The largest total of a stage is its predicted memory.
    """
    step = prediction.tasks
    last_pass = PASS_NAMES[WEIGHT if SCHEDULES[step.schedule].splits_backward else BACKWARD]
    slots: list[list[Span]] = [[] for _ in step.stages]
    for slot in trace.slots:
        slots[slot.rank].append(slot)
    counters: list[Counter] = []
    for number, (stage, memory) in enumerate(zip(step.stages, step_memory(step), strict=True)):
        counters += _counters(number, stage, memory, _moments(slots[number], len(stage.chunks), last_pass))
    return counters
