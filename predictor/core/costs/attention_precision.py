"""Exact attention in 8 bits: how much longer or shorter it takes than in 16, by ``attention_precision.yaml``.

Both products of the forward pass and all five of the backward pass run in 8 bits; the softmax between them does not,
and takes as long as ever.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import log
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel

from predictor.core.base.errors import PublishedError
from predictor.core.base.read_yaml import read_valid
from predictor.core.costs.operator import Direction, Operator, Shape

FILE = Path(__file__).with_name("attention_precision.yaml")
# The implementation whose ratios those are; no other one trains in 8 bits. Source: Transformer Engine,
# pytorch/attention/dot_product_attention/utils.py, get_attention_backend.
KERNEL = "cudnn"
# Wider heads are those of latent attention.
WIDEST_HEAD = 128


class Ratios(BaseModel):
    """Ratios of one width of heads, by sequence length; see ``attention_precision.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    forward: dict[int, float] = Field(min_length=1)
    backward: dict[int, float] = Field(min_length=1)
    backward_causal: dict[int, float] = Field(min_length=1)


class PrecisionRatios(BaseModel):
    """Ratios of one precision; ``latent`` is None where it does not take such heads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heads: Ratios
    latent: Ratios | None = None
    log_error: float = Field(ge=0)
    source: str = Field(min_length=1)


class _File(RootModel[dict[str, dict[str, PrecisionRatios]]]):
    model_config = ConfigDict(frozen=True)


@cache
def precision_ratios(instruction: str | None) -> dict[str, PrecisionRatios]:
    """Return the precisions that attention runs in on GPUs of one kind of matrix instruction; often none."""
    return read_valid(FILE, _File, PublishedError).root.get(instruction or "", {})


def at_length(points: dict[int, float], length: int) -> float:
    """Return a ratio at a sequence length: linear in the logarithm of the length, constant beyond the ends."""
    lengths = sorted(points)
    if length <= lengths[0]:
        return points[lengths[0]]
    for low, high in pairwise(lengths):
        if length <= high:
            place = log(length / low) / log(high / low)
            return points[low] + place * (points[high] - points[low])
    return points[lengths[-1]]


def over_16_bits(
    operator: Operator, direction: Direction, shape: Shape, instruction: str, width: int
) -> tuple[float, float]:
    """Return the time of a call of attention in few bits over that in 16, and its error as a log.

    Args:
        operator: attention, ``computed_in`` few bits.
        direction: of the call.
        shape: of the call.
        instruction: matrix instruction of the GPU.
        width: of a head.

    Raises:
        PublishedError: it does not run in that precision there, or not on such heads.
    """
    known = precision_ratios(instruction).get(operator.computed_in)
    ratios = None if known is None else known.latent if width > WIDEST_HEAD else known.heads
    if known is None or ratios is None:
        raise PublishedError(
            f"training.fp8_attention: attention over heads {width} wide does not train in {operator.computed_in} on "
            f"GPUs with {instruction}; leave it out"
        )
    sizes = dict(zip(operator.dimensions, shape, strict=True))
    if direction is Direction.FORWARD:
        points = ratios.forward
    else:
        points = ratios.backward_causal if sizes.get("causal", 1) else ratios.backward
    return at_length(points, sizes["sequence"]), known.log_error
