"""An operator is a value: its dimensions and the work of one call, per direction.

A file in ``predictor/core/costs/operators`` that defines ``OPERATOR`` adds one to the catalogue. Whatever the product
knows of it follows from this value: no other list names it, only the block that runs it and its kernel in
``microbench``, a file of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.tiles import tile_features
from predictor.core.costs.work import (
    BLACKWELL_PRECISIONS,
    ELEMENT_BYTES,
    FP8_PRECISIONS,
    PRECISION_BYTES,
    SIZE_MULTIPLES,
    STEP_PRECISIONS,
    Work,
    matmul_work,
)

Shape = tuple[int, ...]
KERNEL_MARK = "-"  # before the implementation in the name of a table or a regressor: flash_attention-cudnn
TermKind = Literal["flops", "bytes", "count"]


class Direction(StrEnum):
    """Which pass a kernel belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


BOTH = (Direction.FORWARD, Direction.BACKWARD)


class StandIn(NamedTuple):
    """A call of a donor operator, and how many times it is counted, for an operator that was not measured.

    Attributes:
        log_error: half width of what is not known about ``times``, as a log; 0 where only the donor's rate is in doubt.
        is_analytic: the donor only gives the rate of FLOPs or bytes.
    """

    operator: str
    shape: Shape
    times: float
    log_error: float = 0.0
    is_analytic: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a training step.

    Attributes:
        name: the field's name for it; also its file here and its kernel's file in ``microbench``.
        dimensions: names of the sizes in a ``Shape``, in order; also the columns of a measurement table.
        work: (shape, direction, number of multiprocessors) → Work of that call.
        layer_shape: the sizes of a transformer's layer → its shape there; None: it runs once a step, in one part of a
            layer whose sizes are the part's, or in other models.
        at_ends: it is of a model's beginning or end, and no layer can list it.
        family: operators of one family share one regressor (the GEMMs are one kernel library).
        directions: the passes it has; an optimizer step has a forward only.
        extra_kinds: unit of each of ``Work.extras`` (flops, bytes or count), by which it scales between GPUs.
        bookkeeping: dimensions that add only bookkeeping to the bytes or FLOPs, as the tensors of a list do. Outside
            their measured range a call is as far out as they change its time.
        byte_sizes: ``work`` counts elements of ELEMENT_BYTES in whatever precision, or bytes that are the same in every
            precision.
        precisions: in which it exists.
        tabled_in: further precisions, of kernels that other people's tables have and ``microbench`` does not run.
        launches: kernels that one eager call launches forward, and backward with its gradients accumulated.
        stand_in: (shape, direction, number of multiprocessors) → the donor operator's call where this operator was not
            measured, extrapolated at best. None: a measurement is needed.
        gradient_products: shape → the shapes of this operator whose forward passes are its backward pass; None where
            that is something else.
        gradient_operators: those of these products in their turn, measured apart from the layer.
        backward_ratio: time of the backward over the forward pass where only that was measured, and the half width of
            what is not known about it, as a log. None: no such ratio is known.
        more_features: (shape, number of multiprocessors) → features of the residual besides those of every operator.
        source: where the work formula comes from.
        fused_attention: exact attention in one kernel, of which there are several implementations.
        attention_part: one of the kernels that make up attention between its projections where it is not fused.
        where_measured: a run that fuses it is timed by it on systems that measured it, and elsewhere by its bytes; or,
            of gradient products, by half a backward pass.
        kernel: implementation of fused attention that the run names, or the products of a backward pass that runs in
            part; empty: the one that was measured, the whole pass.
        computed_in: precision of a product where it is not the step's; empty: the step's. ``in_precision`` sets it.
    """

    name: str
    dimensions: tuple[str, ...]
    work: Callable[[Shape, Direction, int], Work]
    source: str
    family: str = ""
    directions: tuple[Direction, ...] = BOTH
    extra_kinds: tuple[TermKind, ...] = ()
    bookkeeping: tuple[str, ...] = ()
    byte_sizes: Literal["by_element", "fixed"] = "by_element"
    precisions: tuple[str, ...] = STEP_PRECISIONS
    tabled_in: tuple[str, ...] = ()
    launches: tuple[int, int] = (1, 1)
    stand_in: Callable[[Shape, Direction, int], StandIn] | None = None
    gradient_products: Callable[[Shape], tuple[Shape, ...]] | None = None
    gradient_operators: tuple[str, ...] = ()
    backward_ratio: tuple[float, float] | None = None
    more_features: Callable[[Shape, int], tuple[float, ...]] | None = None
    computed_in: str = ""
    fused_attention: bool = False
    kernel: str = ""
    layer_shape: Callable[[LayerCall], Shape] | None = field(default=None, compare=False)
    at_ends: bool = field(default=False, compare=False)
    attention_part: bool = field(default=False, compare=False)
    where_measured: bool = field(default=False, compare=False)

    def shape_in(self, call: LayerCall) -> Shape:
        """Return its shape in a layer of these sizes."""
        assert self.layer_shape is not None, f"{self.name} has no shape in a layer"
        return self.layer_shape(call)

    def byte_scale(self, precision: str) -> float:
        """Return the factor from the bytes that ``work`` counts to bytes in a precision.

        Fit and prediction leave it out, since the fitted time per byte absorbs it; physical limits need it.
        """
        return PRECISION_BYTES[precision] / ELEMENT_BYTES if self.byte_sizes == "by_element" else 1.0

    def takes(self, shape: Shape, precision: str) -> bool:
        """Return whether kernels in a precision take a shape."""
        multiple = SIZE_MULTIPLES.get(precision, 1)
        return all(size % multiple == 0 for size in shape)

    @property
    def regressor_name(self) -> str:
        """Return the name of the regressor that answers for this operator."""
        return self.family or self.name

    @property
    def full_name(self) -> str:
        """Return the operator's name; of fused attention in a named implementation, with that."""
        return f"{self.name}{KERNEL_MARK}{self.kernel}" if self.kernel else self.name


@lru_cache(maxsize=256)
def in_precision(operator: Operator, precision: str) -> Operator:
    """Return an operator computed in another precision than the step; the same object every time."""
    return replace(operator, computed_in=precision)


def in_kernel(operator: Operator, kernel: str) -> Operator:
    """Return fused attention in a named implementation, any other operator as it is; the same object every time."""
    return _in_kernel(operator, kernel) if kernel and operator.fused_attention else operator


@lru_cache(maxsize=256)
def _in_kernel(operator: Operator, kernel: str) -> Operator:
    return replace(operator, kernel=kernel)


def as_attention_of(donor: Operator, operator: Operator) -> Operator:
    """Return fused attention in the implementation and the precision of another operator; any other donor as it is."""
    if not (donor.fused_attention and operator.fused_attention):
        return donor
    chosen = in_kernel(donor, operator.kernel)
    return in_precision(chosen, operator.computed_in) if operator.computed_in else chosen


MATMUL_EXTRAS: tuple[TermKind, ...] = ("flops", "flops", "flops")  # one per GEMM_TILES


def gemm_work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work of a linear layer of shape (m, k, n); backward is the data and the weight gradient together."""
    return batched_gemm_work((1, *shape), direction, num_multiprocessors)


def batched_gemm_work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work of ``batch`` products (m, k) @ (k, n); backward computes both factors' gradients."""
    batch, m, k, n = shape
    if direction is Direction.FORWARD:
        return matmul_work(batch, m, k, n, num_multiprocessors)
    return matmul_work(batch, m, n, k, num_multiprocessors) + matmul_work(batch, k, m, n, num_multiprocessors)


def linear_gradients(shape: Shape) -> tuple[Shape, Shape]:
    """Return the products of a linear layer's backward pass: the gradients of its input and of its weight."""
    m, k, n = shape
    return (m, n, k), (k, m, n)


# Operators of these products: the gradient of the input, that of the weight in the training precision, and that of the
# weight added to a sum in fp32.
DATA_GRADIENT, WEIGHT_GRADIENT, FP32_WEIGHT_GRADIENT = "linear_dgrad", "linear_wgrad", "linear_wgrad_fp32"
LINEAR_EXTRAS: tuple[TermKind, ...] = (*MATMUL_EXTRAS, "bytes")


def linear_work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work of ``gemm_work``; ``extras`` end with the bytes of the first operands.

    A layer in 8 or 4 bits casts them, so that its measured calls take as long again for these bytes.
    """
    flops, size_bytes, tiled = gemm_work(shape, direction, num_multiprocessors)
    m, k, n = shape
    elements = m * k if direction is Direction.FORWARD else m * n + k * m
    return Work(flops, size_bytes, (*tiled, float(ELEMENT_BYTES * elements)))


def linear(name: str, source: str, layer_shape: Callable[[LayerCall], Shape], at_ends: bool = False) -> Operator:
    """Return a linear layer: a GEMM of dimensions (m, k, n), pooled with all others in the family ``linear``."""
    return Operator(
        name=name,
        dimensions=("m", "k", "n"),
        work=linear_work,
        family="linear",
        precisions=(*STEP_PRECISIONS, *FP8_PRECISIONS, *BLACKWELL_PRECISIONS),
        launches=(1, 3),
        extra_kinds=LINEAR_EXTRAS,
        gradient_products=linear_gradients,
        gradient_operators=(DATA_GRADIENT, WEIGHT_GRADIENT),
        more_features=tile_features,
        source=source,
        layer_shape=layer_shape,
        at_ends=at_ends,
    )


def linear_gradient(name: str, source: str) -> Operator:
    """Return one product of a linear layer's backward pass, of dimensions as ``linear_gradients`` has them."""
    return Operator(
        name=name,
        dimensions=("m", "k", "n"),
        work=linear_work,
        directions=(Direction.FORWARD,),
        extra_kinds=LINEAR_EXTRAS,
        more_features=tile_features,
        source=source,
        where_measured=True,
    )


@lru_cache(maxsize=256)
def with_backward(operator: Operator, gradients: tuple[str, ...]) -> Operator:
    """Return a linear layer whose backward pass is the named products; the same object every time."""

    def products(shape: Shape) -> tuple[Shape, ...]:
        of_data, of_weight = linear_gradients(shape)
        return tuple([of_data if name == DATA_GRADIENT else of_weight for name in gradients])

    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        if direction is Direction.FORWARD:
            return linear_work(shape, direction, num_multiprocessors)
        first, *others = [linear_work(part, Direction.FORWARD, num_multiprocessors) for part in products(shape)]
        return sum(others, first)

    return replace(
        operator, work=work, gradient_products=products, gradient_operators=gradients, kernel=" + ".join(gradients)
    )
