"""A layer is a table of rows: one per kernel that it calls, in the order of the forward pass.

Blocks (``blocks/``) make rows, transforms (``transforms/``) take rows and return rows, folds (``folds.py``) turn them
into tasks, parameters, kept bytes and FLOPs. A row's name is for people: what a transform or a fold decides, it decides
on the other columns.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from math import inf
from typing import NamedTuple

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import DATA_GRADIENT, FP32_WEIGHT_GRADIENT, Direction, Operator, Shape, with_backward
from predictor.core.workload.tasks import FORWARD, Part, Task


class Split(StrEnum):
    """How tensor-parallel ranks hold a matrix: its outputs split, its inputs split, or all of it on every rank."""

    COLUMN = "column"
    ROW = "row"
    WHOLE = "whole"


class Module(StrEnum):
    """The part of a layer that a row belongs to, as frameworks recompute, offload and capture parts."""

    MIXER = "mixer"
    UP_PROJECTION = "up_projection"  # of latent attention: what makes queries, keys and values of latents
    CORE = "core"  # attention between its projections
    RESIDUAL = "residual"  # norms, dropout and additions around both branches
    MLP = "mlp"
    ROUTER = "router"
    DISPATCH = "dispatch"  # permutation and exchange of tokens
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"


FP32_BYTES = 4
MASK_BYTES = 1  # of dropout, per element
COPY_PASSES = 2
# Of a linear layer, the gradient of its weights or that of its input, where they were not measured apart.
HALF_OF_BACKWARD = 0.5


def dropout_bytes(call: LayerCall) -> int:
    """Return the bytes per element of dropout: the activation is read and written, a mask written or read."""
    return 2 * call.element_bytes + MASK_BYTES


# Of a layer's second branch, the FFN or a mixture of experts.
OF_FFN = frozenset({Module.MLP, Module.ROUTER, Module.DISPATCH, Module.EXPERTS, Module.SHARED_EXPERTS})


class Matrix(StrEnum):
    """Which matrix of a layer a product multiplies with, as adapters choose them."""

    QKV = "qkv"
    Q_DOWN = "q_down"
    Q_UP = "q_up"
    KV_DOWN = "kv_down"
    KV_UP = "kv_up"
    IN_PROJECTION = "in_projection"
    OUT_PROJECTION = "out_projection"
    ATTENTION_OUTPUT = "attention_output"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"


class Kind(StrEnum):
    """What a row is to transforms and folds."""

    PRODUCT = "product"  # with a weight matrix
    ADAPTER = "adapter"  # product of a low-rank adapter
    NORM = "norm"
    ACTIVATION = "activation"
    ADDITION = "addition"  # of a branch to the residual stream
    LAYOUT_COPY = "layout_copy"
    BIAS = "bias"
    BIAS_GRADIENT = "bias_gradient"
    CAST = "cast"
    GATHER = "gather"  # of a column-parallel input
    SUM = "sum"  # of row-parallel outputs, or of the gradients of column-parallel inputs
    TRAFFIC = "traffic"
    OTHER = "other"


class Role(StrEnum):
    """A tensor that is kept from the forward to the backward pass."""

    INPUT = "input"  # of a norm or a residual sum
    NORMED = "normed"
    LATENT = "latent"
    QKV = "qkv"  # queries, keys and values, or what another token mixer reads
    SCORES = "scores"  # softmax's output, or one fp32 sum per row of flash attention
    CORE = "core"  # attention's output before its projection
    INNER = "inner"  # of an FFN, before its non-linearity
    ACTIVATED = "activated"
    ROUTED = "routed"  # tokens in the order of their experts, and the router's scores
    MASK = "mask"
    ADAPTER = "adapter"


class Kept(NamedTuple):
    """Bytes of a tensor on one rank."""

    role: Role
    size_bytes: float


class Reads(NamedTuple):
    """Input of a product.

    Attributes:
        elements: on one rank, as it is kept.
        shared: another operation keeps the same tensor for its own backward pass.
    """

    role: Role
    elements: float
    shared: bool = False


class Pass(NamedTuple):
    """One direction of a row.

    Attributes:
        direction: as which its operator is timed.
        times: need not be whole, where a kernel is timed as a multiple of another's bytes.
        launches: kernels that the host launches for all of them.
    """

    direction: Direction
    shape: Shape
    times: float
    launches: float

    def scaled(self, share: float) -> Pass:
        """Return a share of its time and of its launches."""
        if share == 1.0:
            return self
        return self._replace(times=self.times * share, launches=self.launches * share)


class Behind(NamedTuple):
    """Rows beside which traffic runs; rows of one ``Behind`` travel together.

    Attributes:
        share: of each row's time.
        slows, buckets, own_link: see ``Overlap``.
    """

    rows: tuple[Row, ...]
    share: float = 1.0
    slows: bool = False
    buckets: float = inf
    own_link: bool = False


class Row(NamedTuple):
    """One kernel of a layer, or one collective.

    Attributes:
        name: its purpose; differs from the operator's name where a kernel is timed by its bytes.
        forward, backward: None where it does not run in that direction.
        part: of the breakdown.
        split: of a product's matrix.
        matrix: of a product, where adapters may choose it.
        weights: parameters on one rank.
        routed: they are of routed experts, which other ranks sum than dense ones.
        trains: they have gradients.
        narrow: they are kept in few bits.
        multiplications: of a token, in model FLOPs; of the whole model where one rank holds it.
        parts: shares of a product's output that a framework may compute as products of their own.
        reads: input of a product, kept for the gradient of its weights.
        keeps: tensors for the backward pass.
        again: share of the forward pass that is recomputed before the backward pass.
        behind: rows that hide it; None: it runs in turn.
    """

    name: str
    module: Module
    kind: Kind
    operator: Operator
    forward: Pass | None
    backward: Pass | None
    part: Part = Part.OPERATORS
    split: Split | None = None
    matrix: Matrix | None = None
    weights: float = 0
    routed: bool = False
    trains: bool = True
    narrow: bool = False
    multiplications: float = 0.0
    parts: tuple[float, ...] = (1.0,)
    reads: Reads | None = None
    keeps: tuple[Kept, ...] = ()
    again: float = 0.0
    behind: Behind | None = None

    def task(self, direction: Direction) -> Task | None:
        """Return what it runs in one direction."""
        one = self.forward if direction is FORWARD else self.backward
        if one is None or not one.times:
            return None
        return Task(self.name, self.operator, one.direction, one.shape, one.times, self.part, one.launches)

    def without_passes(self) -> Row:
        """Return a row that runs in neither direction: its weights and what it keeps alone."""
        forward, backward = (one and one._replace(times=0.0, launches=0.0) for one in (self.forward, self.backward))
        return self._replace(forward=forward, backward=backward)

    def input_gradient(self, measured: Collection[str]) -> Row:
        """Return a product whose backward pass is the one for the gradient of its input.

        ``measured``: products of a backward pass that the system measured by themselves; of others half the pass is
        taken.
        """
        return self._gradient(0, measured)

    def weight_gradient(self, measured: Collection[str]) -> Row:
        """Return a product whose backward pass is the one for the gradient of its weight; see ``input_gradient``."""
        return self._gradient(1, measured)

    def accumulating(self) -> Row:
        """Return a product whose weight gradient is added to a sum in fp32 by the product itself; else the row."""
        if not self.operator.gradient_operators:
            return self
        return self._replace(operator=with_backward(self.operator, (DATA_GRADIENT, FP32_WEIGHT_GRADIENT)))

    def _gradient(self, index: int, measured: Collection[str]) -> Row:
        backward, name = self.backward, self.operator.gradient_operators[index]
        if name not in measured or self.operator.computed_in:
            return self._replace(backward=backward and backward.scaled(HALF_OF_BACKWARD))
        operator = with_backward(self.operator, (name,))
        launched = backward and backward._replace(launches=backward.launches * HALF_OF_BACKWARD)
        return self._replace(operator=operator, backward=launched)

    def launched(self, forward: float, backward: float) -> Row:
        """Return a row in so many launches forward and backward."""
        ahead, back = self.forward, self.backward
        return self._replace(
            forward=ahead and ahead._replace(launches=forward), backward=back and back._replace(launches=backward)
        )

    def recomputed(self, share: float) -> Row:
        """Return a row of which so much of the forward pass runs again before the backward pass."""
        return self._replace(again=share)

    def dropping(self, roles: Collection[Role]) -> Row:
        """Return a row that keeps no tensors of these roles."""
        kept = tuple(each for each in self.keeps if each.role not in roles)
        return self if len(kept) == len(self.keeps) else self._replace(keeps=kept)
