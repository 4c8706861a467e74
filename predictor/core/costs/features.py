"""Turn an operator's shape into physics terms and residual features, for the fit and for the prediction alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from predictor.core.costs.operator import Operator, Shape
from predictor.core.costs.work import Work

LARGEST_ALIGNMENT = 256
TINY = 1e-12


def physics_terms(work: Work) -> tuple[float, ...]:
    """Return the terms whose non-negative sum is the time: one launch, FLOPs, bytes, then the operator's own extras."""
    return (1.0, work.flops, work.size_bytes, *work.extras)


def physics_us(coefficients: Sequence[float], terms: Sequence[float], overlapped: bool) -> float:
    """Return the physics half of a time, in microseconds.

    Args:
        coefficients: microseconds per term.
        terms: as ``physics_terms`` returns them, the launch first.
        overlapped: launching and running overlap, as in an operator of many kernels: the time is the longer of both.
            Otherwise it is their sum.
    """
    launch = coefficients[0] * terms[0]
    device = sum(c * t for c, t in zip(coefficients[1:], terms[1:], strict=True))
    return max(launch, device) if overlapped else launch + device


def _alignment(size: int) -> float:
    """Return log2 of the largest power of two that divides ``size``, at most 8, for vectorised loads and tiles."""
    return float(((size & -size) if size % LARGEST_ALIGNMENT else LARGEST_ALIGNMENT).bit_length() - 1)


def shape_features(
    operator: Operator, shape: Shape, terms: Sequence[float], members: Sequence[str], num_multiprocessors: int
) -> list[float]:
    """Return the residual's features without coefficients: sizes, alignment, waste per extra, the operator, its own."""
    sizes = [log(max(size, 1)) for size in shape]
    alignment = [_alignment(size) for size in shape]
    reference = terms[1] or terms[2]
    waste = [log(max(extra, TINY) / reference) for extra in terms[3:]]
    identity = [float(operator.name == member) for member in members] if len(members) > 1 else []
    own = () if operator.more_features is None else operator.more_features(shape, num_multiprocessors)
    return [*sizes, *alignment, *waste, *identity, *own]


def feature_count(operator: Operator, members: int) -> int:
    """Return how many features ``residual_features`` has for one of so many operators that share a regressor."""
    sizes, extras = len(operator.dimensions), len(operator.extra_kinds)
    own = () if operator.more_features is None else operator.more_features((1,) * sizes, 1)
    return 2 * sizes + extras + (members if members > 1 else 0) + len(own) + 3 + extras


def residual_features(
    operator: Operator,
    shape: Shape,
    terms: Sequence[float],
    coefficients: Sequence[float],
    members: Sequence[str],
    num_multiprocessors: int,
) -> list[float]:
    """Return the residual's features: ``shape_features``, then the share of each physics term.

    Every feature is scale-free or a logarithm, and each is clamped to its measured range by the caller.
    """
    time = physics_us(coefficients, terms, overlapped=False) or 1.0
    shares = [c * t / time for c, t in zip(coefficients, terms, strict=True)]
    return [*shape_features(operator, shape, terms, members, num_multiprocessors), *shares]


def hull_coordinates(shape: Shape, work: Work) -> list[float]:
    """Return the coordinates of the measured hull, a box: the logarithms of every size, of FLOPs and of bytes."""
    return [*(log(size + 1.0) for size in shape), log(work.flops + 1.0), log(work.size_bytes + 1.0)]
