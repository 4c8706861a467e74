"""Times of a candidate's parts as plain numbers: a chunk's work, a layer's, a stage's end, a schedule's durations."""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.interference import Slowdown


class Work(NamedTuple):
    """One micro-batch through one chunk, in microseconds.

    ``backward`` is recomputation and the whole backward pass, ``weight`` its part for the gradients of the weights.
    """

    forward: float
    backward: float
    weight: float


class LayerWork(NamedTuple):
    """A layer's work in a single micro-batch without recomputation.

    Attributes:
        again: time of its second forward pass, where it is recomputed.
        accumulation: time to add the weight gradients to those of earlier micro-batches.
        adds_up: the work of any candidate is a sum of these parts; not where the device waits for the host, nor where
            checkpoints are gathered.
    """

    work: Work
    again: float
    accumulation: float
    adds_up: bool


class End(NamedTuple):
    """A stage's end of the step in microseconds, what of it overlaps in buckets, and how it slows kernels beside it."""

    reduction: float
    tied: float
    optimizer: float
    gather: float
    buckets: int
    overlaps_reduction: bool
    overlaps_gather: bool
    beside_reduction: Slowdown
    beside_gather: Slowdown


class Timing(NamedTuple):
    """Arguments of a replay and its bound, in their order; durations per stage and chunk."""

    forward: list[list[float]]
    backward: list[list[float]]
    weight: list[list[float]]
    message: float
    ends: list[float]
    closing: float
