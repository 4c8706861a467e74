"""The memory that one GPU of every stage needs: states, activations by recompute mode, buffers, and an allowance.

States per parameter follow Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054, section 3.1; activations follow
Korthikanti et al. 2022, arXiv:2205.05198, section 4, operator by operator, so that any architecture has its own sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from predictor.step.activations import embedding_bytes, gathered_edge_bytes, held_head_bytes, kept_bytes, working_bytes
from predictor.timeline.schedules import SCHEDULES, peak_in_flight
from predictor.workloads.run import FP32_BYTES, TrainingRun

GIB = 2**30
# Adam in mixed precision keeps fp32 weights and two moments; in fp32 the weights are there already.
MIXED_PRECISION_STATE_BYTES = 3 * FP32_BYTES
FP32_STATE_BYTES = 2 * FP32_BYTES
# What nobody computes and every run has. Assumed, not measured: context, libraries and communicators of one process,
# and blocks that the caching allocator cannot reuse, as a share of what tensors take.
RUNTIME_BYTES = 1.5 * GIB
FRAGMENTATION = 0.05


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a stage at its fullest moment.

    Attributes:
        weights, gradients, optimizer: what one rank holds of the stage's parameters and their states.
        activations: what forward passes keep for the backward passes of all micro-batches in flight.
        working: what exists besides while one micro-batch is computed: logits and loss, a recomputed layer, gathered
            weights.
        buffers: gradients on their way into a reduction.
        allowance: runtime and fragmentation; assumed, not computed.
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
    def total(self) -> float:
        """Return all of it."""
        return self.states + self.activations + self.working + self.buffers + self.allowance


def _states(run: TrainingRun, parameters: int, ranks: int) -> tuple[float, float, float]:
    """Return bytes of weights, gradients and optimizer states on one of ``ranks`` ranks that may share them out."""
    shared = [parameters / ranks if run.zero_stage >= stage else float(parameters) for stage in (3, 2, 1)]
    full = run.element_bytes == FP32_BYTES
    state_bytes = FP32_STATE_BYTES if full else MIXED_PRECISION_STATE_BYTES
    return shared[0] * run.element_bytes, shared[1] * run.gradient_bytes, shared[2] * state_bytes


def buffer_bytes(run: TrainingRun, stage: int) -> float:
    """Return bytes of gradients on their way into a reduction, where they are not reduced where they lie.

    DeepSpeed copies them into buckets: one, or two where one fills while the other travels. ZeRO-3 holds the whole
    gradient of the piece at work, and of the next one where that overlaps. fp32 gradients are accumulated in a buffer
    that is reduced in place, as Megatron-LM does.
    """
    if run.layout.gradient_ranks == 1:
        return 0.0
    copies = 2 if run.overlap_gradient_reduction else 1
    if run.zero_stage == 3:
        pieces = [run.layer_parameters(kind) for kind in run.stage_kinds(stage)]
        pieces.append(run.model.embedding_parameters(run.layout.tensor_parallel_size))
        return float(copies * max(pieces) * run.gradient_bytes)
    if run.fp32_gradients:
        return 0.0
    bucket = min(run.gradient_bucket_elements, run.stage_parameters(stage))
    return float(copies * bucket * run.gradient_bytes)


def state_bytes(run: TrainingRun, stage: int) -> tuple[float, float, float]:
    """Return bytes of weights, gradients and optimizer states on one GPU of a stage."""
    layout = run.layout
    dense = _states(run, run.dense_parameters(stage), layout.gradient_ranks)
    routed = _states(run, run.expert_parameters(stage), layout.expert_gradient_ranks)
    return dense[0] + routed[0], dense[1] + routed[1], dense[2] + routed[2]


def held_bytes(in_flight: int, pieces: int, kept: float, embedding: float) -> float:
    """Return the activations of everything in flight.

    Args:
        in_flight: micro-batches' pieces that the stage holds at most.
        pieces: of the stage.
        kept: bytes that one micro-batch keeps in all of them.
        embedding: bytes that it keeps of the embedding, which one piece has.
    """
    return in_flight * kept / pieces + ceil(in_flight / pieces) * embedding


def allowance_bytes(tensors: float) -> float:
    """Return what is set aside beside so many bytes of tensors."""
    return RUNTIME_BYTES + FRAGMENTATION * tensors


def stage_memory(run: TrainingRun, stage: int) -> StageMemory:
    """Return what one GPU of a stage needs."""
    weights, gradients, optimizer = state_bytes(run, stage)
    pieces, stages = run.virtual_pipeline_parallel_size, run.layout.pipeline_parallel_size
    in_flight = peak_in_flight(SCHEDULES[run.schedule], stage, stages, run.num_micro_batches, pieces)
    kinds = run.stage_kinds(stage)
    kept = sum(kept_bytes(run, kind) * count for kind, count in kinds.items())
    activations = held_bytes(in_flight, pieces, kept, embedding_bytes(run) if stage == 0 else 0.0)
    working = working_bytes(run, kinds) + (held_head_bytes(run) if stage == stages - 1 else 0.0)
    working += gathered_edge_bytes(run) if stage in (0, stages - 1) else 0.0
    buffers = buffer_bytes(run, stage)
    tensors = weights + gradients + optimizer + activations + working + buffers
    return StageMemory(weights, gradients, optimizer, activations, working, buffers, allowance_bytes(tensors))


def run_memory(run: TrainingRun) -> list[StageMemory]:
    """Return what one GPU of every stage needs."""
    return [stage_memory(run, stage) for stage in range(run.layout.pipeline_parallel_size)]
