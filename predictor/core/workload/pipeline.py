"""The distinct stages of a pipeline; equal stages are expanded, timed and sized once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer import LayerKind

Kinds = tuple[tuple[LayerKind, int], ...]


class Chunk(NamedTuple):
    """One distinct chunk of a stage: its layers by kind, and whether it is the model's first and its last."""

    layers: Kinds
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """One distinct stage.

    Attributes:
        earliest: the first stage of its kind, which has the most micro-batches in flight.
        chunk_index: the numbers of its chunks among the pipeline's distinct ones.
        layers: all its layers by kind.
        is_first, is_last: it holds the model's beginning, its end.
        turns: its chunks follow each other in the model, where a pipeline turns back (V-shaped).
    """

    earliest: int
    chunk_index: tuple[int, ...]
    layers: Kinds
    is_first: bool
    is_last: bool
    turns: bool = False

    @property
    def num_messages(self) -> int:
        """Return the messages that it sends and receives per micro-batch."""
        return 2 * (2 * len(self.chunk_index) - self.is_first - self.is_last - 2 * self.turns)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The distinct stages of a pipeline.

    Attributes:
        index: of every stage, its number among the distinct ones.
        chunks: the distinct chunks of all stages.
        kinds: the kinds of layers that occur.
    """

    distinct: tuple[Stage, ...]
    index: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    kinds: tuple[LayerKind, ...]


def _summed(chunks: list[Kinds]) -> Kinds:
    """Return the layers of several chunks by kind."""
    counts: dict[LayerKind, int] = {}
    for chunk in chunks:
        for kind, count in chunk:
            counts[kind] = counts.get(kind, 0) + count
    return tuple(counts.items())


def pipeline(run: TrainingRun) -> Pipeline:
    """Return the distinct stages of a run."""
    v_shaped = SCHEDULES[run.schedule].v_shaped
    alike = run.only_kind
    if alike is not None:
        return _of_one_kind(alike, run.chunk_layers, v_shaped)
    stages, num_chunks = range(len(run.layers_per_stage)), run.virtual_pipeline_parallel_size
    return _pipeline(
        [[tuple(run.layer_kinds(stage, chunk).items()) for chunk in range(num_chunks)] for stage in stages], v_shaped
    )


@lru_cache(maxsize=1024)
def _of_one_kind(kind: LayerKind, layers: tuple[tuple[int, ...], ...], v_shaped: bool) -> Pipeline:
    """Return the distinct stages of a pipeline whose layers are all of one kind, given as those of every chunk."""
    return _pipeline([[((kind, count),) if count else () for count in chunks] for chunks in layers], v_shaped)


def _pipeline(stages: list[list[Kinds]], v_shaped: bool) -> Pipeline:
    """Return the distinct stages of a pipeline, given as every stage's chunks."""
    numbers: dict[tuple[object, ...], int] = {}
    chunks: dict[Chunk, int] = {}
    distinct: list[Stage] = []
    index = []
    last_stage = 0 if v_shaped else len(stages) - 1
    for stage, own in enumerate(stages):
        is_first, is_last = stage == 0, stage == last_stage
        turns = v_shaped and stage == len(stages) - 1
        key = (is_first, is_last, turns, *own)
        if key not in numbers:
            numbers[key] = len(distinct)
            placed = [
                Chunk(kinds, is_first and chunk == 0, is_last and chunk == len(own) - 1)
                for chunk, kinds in enumerate(own)
            ]
            chunk_index = tuple([chunks.setdefault(chunk, len(chunks)) for chunk in placed])
            distinct.append(Stage(stage, chunk_index, _summed(own), is_first, is_last, turns))
        index.append(numbers[key])
    kinds = dict.fromkeys(kind for stage in distinct for kind, _ in stage.layers)
    return Pipeline(tuple(distinct), tuple(index), tuple(chunks), tuple(kinds))
