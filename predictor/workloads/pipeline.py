"""The distinct stages of a pipeline: most are alike, and what is alike is expanded, timed and sized once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from predictor.workloads.run import TrainingRun
from predictor.workloads.transformer import LayerKind

Kinds = tuple[tuple[LayerKind, int], ...]


class Piece(NamedTuple):
    """One distinct piece of a stage: its layers by kind, and whether it is the model's first and its last."""

    layers: Kinds
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """One distinct stage.

    Attributes:
        earliest: the first stage that is it: of all alike, the one with most micro-batches in flight.
        piece_index: the numbers of its pieces among the pipeline's distinct ones.
        layers: all its layers by kind.
        is_first, is_last: its place in the pipeline.
    """

    earliest: int
    piece_index: tuple[int, ...]
    layers: Kinds
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The distinct stages of a pipeline.

    Attributes:
        index: for every stage the number of the distinct one that it is.
        pieces: the distinct pieces of all stages.
        kinds: the kinds of layers that occur.
    """

    distinct: tuple[Stage, ...]
    index: tuple[int, ...]
    pieces: tuple[Piece, ...]
    kinds: tuple[LayerKind, ...]


def _summed(pieces: list[Kinds]) -> Kinds:
    """Return the layers of several pieces by kind."""
    counts: dict[LayerKind, int] = {}
    for piece in pieces:
        for kind, count in piece:
            counts[kind] = counts.get(kind, 0) + count
    return tuple(counts.items())


def pipeline(run: TrainingRun) -> Pipeline:
    """Return the distinct stages of a run."""
    found: dict[tuple[object, ...], int] = {}
    pieces: dict[Piece, int] = {}
    distinct: list[Stage] = []
    index = []
    last_stage, last_piece = run.layout.pipeline_parallel_size - 1, run.virtual_pipeline_parallel_size - 1
    alike = run.model.only_kind
    for stage, layers in enumerate(run.layers_per_stage):
        is_first, is_last = stage == 0, stage == last_stage
        own: list[Kinds]
        if alike is not None:
            own = [((alike, layers // (last_piece + 1)),)] * (last_piece + 1)
        else:
            own = [tuple(run.layer_kinds(stage, piece).items()) for piece in range(last_piece + 1)]
        key = (is_first, is_last, *own)
        if key not in found:
            found[key] = len(distinct)
            placed = [
                Piece(kinds, is_first and piece == 0, is_last and piece == last_piece)
                for piece, kinds in enumerate(own)
            ]
            piece_index = tuple([pieces.setdefault(piece, len(pieces)) for piece in placed])
            distinct.append(Stage(stage, piece_index, _summed(own), is_first, is_last))
        index.append(found[key])
    kinds = dict.fromkeys(kind for stage in distinct for kind, _ in stage.layers)
    return Pipeline(tuple(distinct), tuple(index), tuple(pieces), tuple(kinds))
