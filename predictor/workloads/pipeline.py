"""The distinct stages of a pipeline: most are alike, and what is alike is expanded, timed and sized once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
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
    pieces = run.virtual_pipeline_parallel_size
    alike = run.model.only_kind
    if alike is not None:
        return _of_one_kind(alike, run.layers_per_stage, pieces)
    stages = range(len(run.layers_per_stage))
    return _pipeline([[tuple(run.layer_kinds(stage, piece).items()) for piece in range(pieces)] for stage in stages])


@lru_cache(maxsize=1024)
def _of_one_kind(kind: LayerKind, layers_per_stage: tuple[int, ...], pieces: int) -> Pipeline:
    """Return the distinct stages of a pipeline whose layers are all of one kind."""
    return _pipeline([[((kind, layers // pieces),)] * pieces for layers in layers_per_stage])


def _pipeline(stages: list[list[Kinds]]) -> Pipeline:
    """Return the distinct stages of a pipeline, given as every stage's pieces."""
    found: dict[tuple[object, ...], int] = {}
    pieces: dict[Piece, int] = {}
    distinct: list[Stage] = []
    index = []
    last_stage = len(stages) - 1
    for stage, own in enumerate(stages):
        is_first, is_last = stage == 0, stage == last_stage
        key = (is_first, is_last, *own)
        if key not in found:
            found[key] = len(distinct)
            placed = [
                Piece(kinds, is_first and piece == 0, is_last and piece == len(own) - 1)
                for piece, kinds in enumerate(own)
            ]
            piece_index = tuple([pieces.setdefault(piece, len(pieces)) for piece in placed])
            distinct.append(Stage(stage, piece_index, _summed(own), is_first, is_last))
        index.append(found[key])
    kinds = dict.fromkeys(kind for one in distinct for kind, _ in one.layers)
    return Pipeline(tuple(distinct), tuple(index), tuple(pieces), tuple(kinds))
