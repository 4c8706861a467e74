"""Peak memory of one GPU per stage: states, activations of all micro-batches in flight, buffers, and an allowance.

A workload gives the bytes of blocks and stages (``BlockMemory``, ``StageStates``), a schedule the micro-batches in
flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from operator import mul

from predictor.core.timeline.in_flight import flights, peak_in_flight
from predictor.core.timeline.schedules import SCHEDULES, V_CHUNKS, Schedule
from predictor.core.workload.step_tasks import BlockMemory, StageTasks, StepTasks

GIB = 2**30
# Assumed, not measured: context and libraries of one process, cuBLAS's workspaces aside, and blocks that the caching
# allocator cannot reuse, as a share of what tensors take.
RUNTIME_BYTES = 0.5 * GIB
FRAGMENTATION = 0.02


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a stage at its fullest moment.

    Attributes:
        weights, gradients, optimizer: what one rank holds of the stage's parameters and their states.
        activations: what forward passes keep for the backward passes of all micro-batches in flight.
        working: what exists besides while one micro-batch is computed: logits and loss, a recomputed layer, gathered
            weights.
        buffers: gradients on their way into a reduction, and workspaces of cuBLAS.
        allowance: runtime, communicators and fragmentation; assumed, not computed.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    working: float
    buffers: float
    allowance: float

    @property
    def states(self) -> float:
        """Return weights, gradients and optimizer states together."""
        return self.weights + self.gradients + self.optimizer

    @property
    def allocated(self) -> float:
        """Return what tensors take, as torch.cuda.max_memory_allocated counts it."""
        return self.states + self.activations + self.working + self.buffers

    @property
    def reserved(self) -> float:
        """Return what the caching allocator takes, as torch.cuda.max_memory_reserved counts it."""
        return self.allocated * (1.0 + FRAGMENTATION)

    @property
    def total(self) -> float:
        """Return the sum of all parts, as nvidia-smi shows it."""
        return self.allocated + self.allowance


def together(blocks: Iterable[tuple[BlockMemory, int]]) -> BlockMemory:
    """Return what a stage's blocks, each so many times, hold together."""
    kept = working = kept_first = kept_last = deferred = gathered = ending = 0.0
    for block, count in blocks:
        kept += block.kept * count
        working = max(working, block.working)
        kept_first += block.kept_first
        kept_last += block.kept_last
        deferred += block.deferred
        gathered += block.gathered * count
        ending += block.ending
    return BlockMemory(kept, working, kept_first, kept_last, deferred, gathered, ending)


def activation_bytes(held: BlockMemory, in_flight: int, num_chunks: int) -> float:
    """Return the activations of all micro-batches in flight, the model's end aside.

    Args:
        held: by the stage's blocks together.
        in_flight: micro-batches' chunks that the stage holds at most.
        num_chunks: of the stage.
    """
    return in_flight * held.kept / num_chunks + ceil(in_flight / num_chunks) * held.kept_first


def end_bytes(schedule: Schedule, held: BlockMemory, num_stages: int, num_micro_batches: int) -> float:
    """Return the activations of the model's end on the last stage, and the gradients that exist beside them.

    1F1B, interleaved or not, runs the backward pass at once. AFAB keeps the activations of all micro-batches, ZB-H1
    those that the gradients of weights need. V-shaped schedules have the model's end on the first stage.
    """
    one = held.kept_last + held.ending
    if schedule.v_shaped:
        moments = flights(schedule, 0, num_stages, num_micro_batches, V_CHUNKS)
        return one + (max(moment[-1] for moment in moments) - 1) * held.deferred
    in_flight = peak_in_flight(schedule, num_stages - 1, num_stages, num_micro_batches, 1)
    if schedule.splits_backward:
        return one + (in_flight - 1) * held.deferred
    return one if schedule.chunks else one + (in_flight - 1) * held.kept_last


def working_bytes(held: BlockMemory, end: float) -> float:
    """Return what exists besides at the fullest moment: in a layer's backward pass, or with the model's end.

    Logits and their gradients are gone when the last layer's backward pass starts; weights that stay gathered are not.

    Args:
        held: by the stage's blocks together.
        end: activations of the model's end; 0 where the stage has none.
    """
    return max(held.working, end) + held.gathered


def allowance_bytes(size_bytes: float) -> float:
    """Return what is set aside beside so many bytes of tensors and communicators."""
    return RUNTIME_BYTES + FRAGMENTATION * size_bytes


def stage_activations(
    schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, held: BlockMemory, chunks: Sequence[float]
) -> float:
    """Return the activations of all micro-batches in flight on a stage, the model's end aside.

    Args:
        schedule: orders the slots.
        stage: its number.
        num_stages: of the pipeline.
        num_micro_batches: per step.
        held: by the stage's blocks together.
        chunks: what each of its chunks keeps per micro-batch.
    """
    sizes = stage, num_stages, num_micro_batches, len(chunks)
    if min(chunks) == max(chunks) and not schedule.v_shaped:
        return activation_bytes(held, peak_in_flight(schedule, *sizes), len(chunks))
    moments = flights(schedule, *sizes)
    return max([sum(map(mul, moment, chunks), moment[0] * held.kept_first) for moment in moments])


def _stage_memory(step: StepTasks, number: int, held: BlockMemory) -> StageMemory:
    """Return what one GPU of a stage needs whose blocks together hold ``held`` per micro-batch."""
    stage, schedule, num_stages = step.stages[number], SCHEDULES[step.schedule], len(step.stages)
    kept = [sum([block.memory.kept * count for block, count in chunk.blocks]) for chunk in stage.chunks]
    activations = stage_activations(schedule, number, num_stages, step.num_micro_batches, held, kept)
    end = end_bytes(schedule, held, num_stages, step.num_micro_batches) if held.kept_last else 0.0
    working = working_bytes(held, end)
    weights, gradients, optimizer, buffers, communicators = stage.states
    tensors = weights + gradients + optimizer + activations + working + buffers
    allowance = communicators + allowance_bytes(tensors + communicators)
    return StageMemory(weights, gradients, optimizer, activations, working, buffers, allowance)


def step_memory(step: StepTasks) -> list[StageMemory]:
    """Return what one GPU of every stage needs."""
    held: dict[StageTasks, BlockMemory] = {}
    for stage in step.stages:
        if stage not in held:
            blocks = [(block.memory, count) for chunk in stage.chunks for block, count in chunk.blocks]
            held[stage] = together(blocks)
    return [_stage_memory(step, number, held[stage]) for number, stage in enumerate(step.stages)]
