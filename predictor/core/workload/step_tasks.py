"""One training step as a value: stages, their model chunks, passes, tasks, and the step's end.

A maker per kind of workload expands a run into it once; timing, memory, breakdown and search read nothing else, so
nothing here names a model. Parts that are alike are the same object: a pipeline of 128 equal stages holds one
expansion, and a reader that caches results per object reads each distinct part once. For the same reason parts compare
by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from predictor.core.workload.tasks import PassTasks, Task


class HostWork(NamedTuple):
    """The host's share of a block's passes, each in launches' worth of host time.

    Attributes:
        takes_turns: the host waits for the device after every pass; otherwise it launches ahead.
        counted: tasks of the forward pass whose sizes the host reads from the device before it launches them, so that
            the device has nothing to do when their launches begin.
        counted_launches: of those.
        lead: share of the time by which the host is ahead of the device in one direction's pass that it keeps for the
            passes of the other direction, between which it never waits for the device.
    """

    forward: float
    recompute: float
    backward: float
    takes_turns: bool
    counted: tuple[Task, ...] = ()
    counted_launches: float = 0.0
    lead: float = 0.0


class BlockMemory(NamedTuple):
    """Bytes on one GPU that a block holds beside the states of its parameters, per micro-batch.

    Attributes:
        kept: activations from its forward to its backward pass.
        working: recomputed activations and gathered weights; exist while the block is computed.
        kept_first: as ``kept``, of the model's beginning, whose chunk has the most micro-batches in flight.
        kept_last: as ``kept``, of the model's end, whose backward pass follows at once where the schedule lets it.
        deferred: the part of ``kept_last`` that the gradients of weights need.
        ending: exists beside ``kept_last`` in that backward pass.
        gathered: weights that stay gathered while other blocks are computed.
    """

    kept: float = 0.0
    working: float = 0.0
    kept_first: float = 0.0
    kept_last: float = 0.0
    deferred: float = 0.0
    gathered: float = 0.0
    ending: float = 0.0


NO_MEMORY = BlockMemory()


class StageStates(NamedTuple):
    """Bytes on one GPU that a stage holds throughout the step.

    Attributes:
        weights, gradients, optimizer: a rank's share of the parameters and their states.
        buffers: gradients on their way into a reduction or an update, and workspaces of cuBLAS.
        communicators: NCCL's buffers, outside the framework's allocator.
    """

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    communicators: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class BlockTasks:
    """One micro-batch through the smallest part of a model that repeats, such as a layer.

    Attributes:
        recompute: of the forward pass, before the backward pass.
        backward: the whole backward pass.
        weight: the part of it that a schedule runs in slots of its own; empty where the schedule does not split it.
        host: None where the host's launches are not counted.
        accumulation: adds weight gradients to those of earlier micro-batches; the backward pass has a micro-batch's
            mean share of it, as the first micro-batch needs none.
    """

    forward: PassTasks
    recompute: PassTasks
    backward: PassTasks
    weight: list[Task]
    host: HostWork | None
    memory: BlockMemory = NO_MEMORY
    accumulation: Sequence[Task] = ()

    def calls(self) -> list[Task]:
        """Return everything that runs, hidden traffic included; ``weight`` is in the backward pass."""
        return self.forward.calls() + self.recompute.calls() + self.backward.calls()


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTasks:
    """One model chunk on one stage: blocks, each with how often it stands there."""

    blocks: tuple[tuple[BlockTasks, int], ...]


class HostUpdate(NamedTuple):
    """The update of parameters whose states are in host memory, one after the other or beside each other.

    Attributes:
        down: gradients to host memory.
        update: by the CPU.
        up: new weights to the GPU.
        overlaps: all three run beside each other, parameter by parameter.
    """

    down: list[Task]
    update: list[Task]
    up: list[Task]
    overlaps: bool


@dataclass(frozen=True, slots=True, eq=False)
class EndTasks:
    """What a stage runs after its last micro-batch.

    Attributes:
        reduction: of gradients over replicas; may run beside the last backward passes.
        tied: reduction of gradients that other stages share; waits for the end of both.
        gather: of updated weights; may run beside the next step's first forward passes.
        buckets: in which reduction and gathering overlap with them.
        on_host: beside the optimizer's own update; None: all states are on the GPU.
        launches: of the host beside the optimizer's kernels, in launches' worth of its time.
        exposed_launches: of the host while the device has nothing to do, as it was asked for a number.
    """

    reduction: list[Task]
    tied: list[Task]
    optimizer: list[Task]
    gather: list[Task]
    buckets: int
    on_host: HostUpdate | None = None
    launches: float = 0.0
    exposed_launches: float = 0.0

    def calls(self) -> list[Task]:
        """Return everything that runs."""
        on_host = [] if self.on_host is None else self.on_host.down + self.on_host.update + self.on_host.up
        return self.reduction + self.tied + self.optimizer + on_host + self.gather


@dataclass(frozen=True, slots=True, eq=False)
class StageTasks:
    """One pipeline stage.

    Attributes:
        parameters: that one of its ranks holds.
        num_messages: that it sends and receives per micro-batch.
    """

    num_layers: int
    parameters: int
    chunks: tuple[ChunkTasks, ...]
    num_messages: int
    end: EndTasks
    states: StageStates


@dataclass(frozen=True, slots=True, eq=False)
class StepTasks:
    """One training step.

    Attributes:
        stages: of the pipeline; equal stages are one object.
        message: one transfer between neighbouring stages; empty for a single stage.
        num_micro_batches: per step.
        schedule: name of the order of a stage's passes.
        blocking_transfers: sender and receiver both wait for a message.
        overlap_gradient_reduction: gradients are reduced beside backward passes.
        overlap_parameter_gather: updated weights are gathered beside forward passes.
    """

    stages: tuple[StageTasks, ...]
    message: list[Task]
    num_micro_batches: int
    schedule: str
    blocking_transfers: bool
    overlap_gradient_reduction: bool
    overlap_parameter_gather: bool

    def calls(self, stage: StageTasks) -> Iterator[tuple[Task, float]]:
        """Return every task of a stage with the number of times that one step runs it."""
        count = self.num_micro_batches
        for chunk in stage.chunks:
            for block, times in chunk.blocks:
                for task in block.calls():
                    yield task, task.times * times * count
        for task in self.message:
            yield task, task.times * stage.num_messages * count
        for task in stage.end.calls():
            yield task, task.times
