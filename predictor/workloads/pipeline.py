"""The distinct stages of a pipeline; equal stages are expanded, timed and sized once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from predictor.workloads.partition import chunk_layers
from predictor.workloads.run import TrainingRun
from predictor.workloads.transformer import LayerKind

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
        is_first, is_last: its place in the pipeline.
    """

    earliest: int
    chunk_index: tuple[int, ...]
    layers: Kinds
    is_first: bool
    is_last: bool


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
    num_chunks = run.virtual_pipeline_parallel_size
    alike = run.only_kind
    if alike is not None:
        return _of_one_kind(alike, run.layers_per_stage, num_chunks)
    stages = range(len(run.layers_per_stage))
    return _pipeline(
        [[tuple(run.layer_kinds(stage, chunk).items()) for chunk in range(num_chunks)] for stage in stages]
    )


@lru_cache(maxsize=1024)
def _of_one_kind(kind: LayerKind, layers_per_stage: tuple[int, ...], num_chunks: int) -> Pipeline:
    """Return the distinct stages of a pipeline whose layers are all of one kind."""
    stages = range(len(layers_per_stage))
    return _pipeline(
        [[((kind, layers),) for layers in chunk_layers(layers_per_stage, stage, num_chunks)] for stage in stages]
    )


def _pipeline(stages: list[list[Kinds]]) -> Pipeline:
    """Return the distinct stages of a pipeline, given as every stage's chunks."""
    numbers: dict[tuple[object, ...], int] = {}
    chunks: dict[Chunk, int] = {}
    distinct: list[Stage] = []
    index = []
    last_stage = len(stages) - 1
    for stage, own in enumerate(stages):
        is_first, is_last = stage == 0, stage == last_stage
        key = (is_first, is_last, *own)
        if key not in numbers:
            numbers[key] = len(distinct)
            placed = [
                Chunk(kinds, is_first and chunk == 0, is_last and chunk == len(own) - 1)
                for chunk, kinds in enumerate(own)
            ]
            chunk_index = tuple([chunks.setdefault(chunk, len(chunks)) for chunk in placed])
            distinct.append(Stage(stage, chunk_index, _summed(own), is_first, is_last))
        index.append(numbers[key])
    kinds = dict.fromkeys(kind for stage in distinct for kind, _ in stage.layers)
    return Pipeline(tuple(distinct), tuple(index), tuple(chunks), tuple(kinds))
