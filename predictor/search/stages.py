"""The distinct stages of a pipeline: most are alike, and what is alike is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from predictor.search.space import Plan, Space
from predictor.workloads.run import TrainingRun
from predictor.workloads.transformer import LayerKind

Key = tuple[object, ...]
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


def pipeline(run: TrainingRun) -> Pipeline:
    """Return the distinct stages of a run."""
    found: dict[tuple[object, ...], int] = {}
    pieces: dict[Piece, int] = {}
    distinct: list[Stage] = []
    index = []
    last_stage, last_piece = run.layout.pipeline_parallel_size - 1, run.virtual_pipeline_parallel_size - 1
    for stage in range(last_stage + 1):
        own = [
            Piece(
                tuple(run.layer_kinds(stage, piece).items()),
                stage == 0 and piece == 0,
                stage == last_stage and piece == last_piece,
            )
            for piece in range(last_piece + 1)
        ]
        piece_index = tuple(pieces.setdefault(piece, len(pieces)) for piece in own)
        key = (piece_index, stage == 0, stage == last_stage)
        if key not in found:
            found[key] = len(distinct)
            layers = tuple(run.stage_kinds(stage).items())
            distinct.append(Stage(stage, piece_index, layers, stage == 0, stage == last_stage))
        index.append(found[key])
    kinds = dict.fromkeys(kind for stage in distinct for kind, _ in stage.layers)
    return Pipeline(tuple(distinct), tuple(index), tuple(pieces), tuple(kinds))


class Pipelines:
    """The distinct stages of every pipeline of a space."""

    def __init__(self, space: Space) -> None:
        """Prepare for a space."""
        self._space = space
        self._found: dict[tuple[int, int], Pipeline] = {}

    def of(self, plan: Plan) -> Pipeline:
        """Return the distinct stages of a candidate."""
        key = plan.degrees.pipeline, plan.pieces
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = pipeline(self._space.run(plan))
        return found


def shared_key(plan: Plan) -> Key:
    """Return what a piece of the model depends on; sharing out gradients and weights makes it depend on replicas."""
    degrees = plan.degrees
    shares = (plan.zero_stage, degrees) if plan.zero_stage >= 2 else degrees.expert
    return degrees.tensor, degrees.context, plan.sequence_parallel, plan.micro_batch_size, shares
