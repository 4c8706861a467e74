"""Layers inside the slots of a predicted step's trace, each with its own parts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.prediction import Prediction
from predictor.core.step.spans import KERNELS, SlotKind, pass_parts
from predictor.core.step.stages import ChunkTime, PassTime, time_block
from predictor.core.timeline.pipeline import PASS_NAMES
from predictor.core.timeline.schedules import BACKWARD, FORWARD, WEIGHT
from predictor.core.timeline.spans import Span, parts_of
from predictor.core.timeline.trace import RECOMPUTE, StepTrace
from predictor.core.workload.step_tasks import BlockTasks

# Files of more are too large for viewers to open at once: 20,000 layers with their parts are about 10 MB.
MOST_LAYER_SPANS = 20_000
Place = tuple[int, int]  # stage, chunk


class _Piece(NamedTuple):
    """A part of a model chunk that follows another, in the order of the forward pass."""

    name: str
    time: ChunkTime
    is_gather: bool = False


def num_layer_spans(prediction: Prediction) -> int:
    """Return how many spans the layers of all slots are, their parts not counted."""
    pieces = sum(count for stage in prediction.tasks.stages for chunk in stage.chunks for _, count in chunk.blocks)
    splits = any(chunk.weight.cost.us for stage in prediction.stages for chunk in stage.chunks)
    return pieces * prediction.tasks.num_micro_batches * (3 if splits else 2)


def _model_order(trace: StepTrace) -> list[Place]:
    """Return stages' chunks as the first micro-batch passes them."""
    first = [slot for slot in trace.slots if slot.details["pass"] == PASS_NAMES[FORWARD]]
    first = [slot for slot in first if slot.details["micro_batch"] == 0]
    return [(slot.rank, int(str(slot.details["chunk"]))) for slot in sorted(first, key=lambda slot: slot.start_us)]


def _in_turn(prediction: Prediction, blocks: Sequence[BlockTasks], first: int) -> list[BlockTasks]:
    """Return a chunk's layers in the model's order; a chunk's tasks hold them kind by kind.

    Args:
        prediction: of a transformer.
        blocks: of the chunk's layers.
        first: number of its first layer.
    """
    run = prediction.run
    if run.only_kind is not None:
        return list(blocks)
    numbers = range(first, first + len(blocks))
    kinds = [run.kind(layer) if layer < run.model.num_layers else run.model.mtp_kind for layer in numbers]
    left = deque(blocks)
    of_kind = {kind: deque([left.popleft() for _ in range(count)]) for kind, count in Counter(kinds).items()}
    return [of_kind[kind].popleft() for kind in kinds]


def _name(prediction: Prediction, layer: int) -> str:
    """Return the name of a layer; those behind the last one predict further tokens."""
    further = layer - prediction.run.model.num_layers
    return f"layer {layer}" if further < 0 else f"further token {further + 1}"


def _pieces(prediction: Prediction, system: PublishedSystem, order: Sequence[Place]) -> dict[Place, list[_Piece]]:
    """Return what every chunk runs in its forward pass, one after the other."""
    timed: dict[BlockTasks, ChunkTime] = {}

    def time(block: BlockTasks) -> ChunkTime:
        if block not in timed:
            timed[block] = time_block(system, block)
        return timed[block]

    pieces: dict[Place, list[_Piece]] = {}
    first = 0
    for stage, chunk in order:
        (edge, _), *layers = prediction.tasks.stages[stage].chunks[chunk].blocks
        blocks = _in_turn(prediction, [block for block, count in layers for _ in range(count)], first)
        middle = [_Piece(_name(prediction, first + number), time(block)) for number, block in enumerate(blocks)]
        begins, ends = (stage, chunk) == order[0], (stage, chunk) == order[-1]
        if ends:
            name = "embedding, output and loss" if begins else "output and loss"
            pieces[stage, chunk] = [*middle, _Piece(name, time(edge))]
        else:
            name = "embedding" if begins else "gathered message"
            pieces[stage, chunk] = [_Piece(name, time(edge), not begins), *middle]
        first += len(blocks)
    return pieces


def _passes(piece: _Piece, step_pass: str) -> tuple[PassTime, ...]:
    """Return the passes that a piece runs in a slot, recomputation first."""
    if step_pass == PASS_NAMES[FORWARD]:
        return (piece.time.forward,)
    return (piece.time.recompute, piece.time.backward) if step_pass == PASS_NAMES[BACKWARD] else (piece.time.weight,)


def _turned(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the order of a backward pass: the reverse, but messages are gathered first."""
    return [*(p for p in pieces if p.is_gather), *(p for p in reversed(pieces) if not p.is_gather)]


def _layer_parts(pieces: Sequence[_Piece], step_pass: str) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Return names, durations and parts of what a slot runs; none of what is kernels alone."""
    listed = []
    for piece in pieces if step_pass == PASS_NAMES[FORWARD] else _turned(pieces):
        *recompute, last = _passes(piece, step_pass)
        parts = [*((RECOMPUTE, again.cost.us) for again in recompute), *pass_parts(last)]
        parts = [(name, us) for name, us in parts if us > 0.0]
        plain = [name for name, _ in parts] == [KERNELS]
        listed.append((piece.name, sum(us for _, us in parts), [] if plain else parts))
    return listed


def with_layers(trace: StepTrace, prediction: Prediction, system: PublishedSystem) -> StepTrace:
    """Return a transformer's trace with the layers of every slot, and the parts of layers, instead of the slot's.

    Layers are numbered from 0 through the model. What a chunk runs beside its layers has a name.

    Args:
        trace: of the prediction, with the parts of slots (``step_trace``).
        prediction: the predicted step.
        system: that predicted it.
    """
    order = _model_order(trace)
    pieces = _pieces(prediction, system, order)
    listed: Mapping[SlotKind, list[tuple[str, float, list[tuple[str, float]]]]] = {
        (stage, step_pass, chunk): _layer_parts(own, step_pass)
        for (stage, chunk), own in pieces.items()
        for step_pass in (PASS_NAMES[FORWARD], PASS_NAMES[BACKWARD], PASS_NAMES[WEIGHT])
    }
    inside: list[Span] = []
    for slot in trace.slots:
        layers = [layer for layer in listed[slot.rank, slot.details["pass"], slot.details["chunk"]] if layer[1] > 0.0]
        spans = parts_of(slot, [(name, us) for name, us, _ in layers])
        for span, (_, _, parts) in zip(spans, layers, strict=True):
            inside += [span, *parts_of(span, parts)]
    return replace(trace, spans=[*(span for span in trace.spans if not span.depth), *inside])
