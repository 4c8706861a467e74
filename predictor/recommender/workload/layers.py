"""Dense layers of a recommender: output shape and weights of each.

Types, names and semantics are HugeCTR's ("Configuration File Setup", Dense Layers). Shapes are per sample: a tensor of
shape (rows, columns) holds rows · batch rows of so many columns; a three-dimensional one is (batch, rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from predictor.core.base.errors import ConfigError

Weights = tuple[tuple[int, int], ...]


class TensorShape(NamedTuple):
    """The shape of one sample's share of a tensor.

    Attributes:
        is_3d: (batch, rows, columns), as embeddings give it; otherwise (batch · rows, columns).
    """

    rows: int
    columns: int
    is_3d: bool = False

    @property
    def elements(self) -> int:
        """Return the elements of one sample."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """Base of all dense layers: names of the layer and of its tensors."""

    TYPE: ClassVar[str] = ""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the shapes of the outputs.

        Raises:
            ConfigError: the layer does not take such inputs.
        """
        return (inputs[0],) * len(self.outputs)

    def weights(self, inputs: Sequence[TensorShape]) -> Weights:
        """Return the shapes of the weights, in the order of a dense model file."""
        return ()

    def refuse(self, why: str) -> ConfigError:
        """Return the error of inputs that the layer does not take."""
        return ConfigError(f"layer {self.name} ({self.TYPE}): {why}")

    def _matrices(self, inputs: Sequence[TensorShape]) -> None:
        for name, shape in zip(self.inputs, inputs, strict=True):
            if shape.is_3d:
                raise self.refuse(f"{name} has three dimensions; put a Reshape layer between them")

    def _alike(self, inputs: Sequence[TensorShape]) -> None:
        self._matrices(inputs)
        for name, shape in zip(self.inputs, inputs, strict=True):
            if shape != inputs[0]:
                raise self.refuse(
                    f"{name} has {shape.rows} x {shape.columns} elements a sample, {self.inputs[0]} "
                    f"{inputs[0].rows} x {inputs[0].columns}; they must be equal"
                )


@dataclass(frozen=True, slots=True)
class Add(DenseLayer):
    """Sum of tensors of one shape."""

    TYPE: ClassVar[str] = "Add"

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the shape of all inputs."""
        self._alike(inputs)
        return (inputs[0],)


@dataclass(frozen=True, slots=True)
class DotProduct(Add):
    """Element-wise product of tensors of one shape."""

    TYPE: ClassVar[str] = "DotProduct"


@dataclass(frozen=True, slots=True)
class BatchNorm(DenseLayer):
    """Batch normalisation over columns; weights are gamma and beta."""

    TYPE: ClassVar[str] = "BatchNorm"
    factor: float = 0.1
    eps: float = 1e-5

    def weights(self, inputs: Sequence[TensorShape]) -> Weights:
        """Return gamma and beta."""
        self._matrices(inputs)
        return (1, inputs[0].columns), (1, inputs[0].columns)


@dataclass(frozen=True, slots=True)
class Cast(DenseLayer):
    """Conversion between fp32 and the precision of mixed-precision training."""

    TYPE: ClassVar[str] = "Cast"


@dataclass(frozen=True, slots=True)
class Concat(DenseLayer):
    """Matrices beside each other."""

    TYPE: ClassVar[str] = "Concat"

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return all columns."""
        self._matrices(inputs)
        if len({shape.rows for shape in inputs}) > 1:
            raise self.refuse("its inputs have different numbers of rows")
        return (TensorShape(inputs[0].rows, sum(shape.columns for shape in inputs)),)


@dataclass(frozen=True, slots=True)
class Dropout(DenseLayer):
    """Dropout."""

    TYPE: ClassVar[str] = "Dropout"
    rate: float = 0.5


@dataclass(frozen=True, slots=True)
class ELU(DenseLayer):
    """Exponential linear unit."""

    TYPE: ClassVar[str] = "ELU"
    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class ReLU(DenseLayer):
    """Rectified linear unit."""

    TYPE: ClassVar[str] = "ReLU"


@dataclass(frozen=True, slots=True)
class Sigmoid(DenseLayer):
    """Logistic function."""

    TYPE: ClassVar[str] = "Sigmoid"


@dataclass(frozen=True, slots=True)
class FmOrder2(DenseLayer):
    """Second-order factorization machine: half of the slots' squared sum less the sum of their squares."""

    TYPE: ClassVar[str] = "FmOrder2"
    out_dim: int = 1

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return one vector."""
        self._matrices(inputs)
        if inputs[0].columns % self.out_dim:
            raise self.refuse(f"{inputs[0].columns} columns are no multiple of out_dim, {self.out_dim}")
        return (TensorShape(inputs[0].rows, self.out_dim),)


@dataclass(frozen=True, slots=True)
class InnerProduct(DenseLayer):
    """Fully connected layer with bias."""

    TYPE: ClassVar[str] = "InnerProduct"
    num_output: int = 1

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return ``num_output`` columns."""
        self._matrices(inputs)
        return (TensorShape(inputs[0].rows, self.num_output),)

    def weights(self, inputs: Sequence[TensorShape]) -> Weights:
        """Return kernel (in, out) and bias."""
        return (inputs[0].columns, self.num_output), (1, self.num_output)


@dataclass(frozen=True, slots=True)
class FusedInnerProduct(InnerProduct):
    """Fully connected layer with bias and ReLU."""

    TYPE: ClassVar[str] = "FusedInnerProduct"


@dataclass(frozen=True, slots=True)
class Interaction(DenseLayer):
    """DLRM's dot products of all pairs of the bottom network's vector and the embeddings, behind that vector.

    HugeCTR pads by one column. Source: Naumov et al. 2019, arXiv:1906.00091; HugeCTR, interaction_layer.cu.
    """

    TYPE: ClassVar[str] = "Interaction"

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the vector, one column per pair and the padding."""
        dense, embedding = inputs
        if dense.is_3d or not embedding.is_3d or dense.rows != 1:
            raise self.refuse("its inputs are a matrix and an embedding, in this order")
        if dense.columns != embedding.columns:
            raise self.refuse(f"{self.inputs[0]} has {dense.columns} columns, embeddings {embedding.columns}")
        vectors = embedding.rows + 1
        return (TensorShape(1, dense.columns + vectors * (vectors - 1) // 2 + 1),)


@dataclass(frozen=True, slots=True)
class MultiCross(DenseLayer):
    """Cross layers: x' = x0 · (x · w) + b + x; with a projection x' = x0 ⊙ (x U V + b) + x (DCN-v2).

    Source: Wang et al. 2017, arXiv:1708.05123; Wang et al. 2020, arXiv:2008.13535.
    """

    TYPE: ClassVar[str] = "MultiCross"
    num_layers: int = 1
    projection_dim: int = 0

    def weights(self, inputs: Sequence[TensorShape]) -> Weights:
        """Return each layer's weights: w and b, or U, V and b."""
        self._matrices(inputs)
        width = inputs[0].columns
        layer: Weights = (
            ((width, self.projection_dim), (self.projection_dim, width), (1, width))
            if self.projection_dim
            else ((1, width), (1, width))
        )
        return layer * self.num_layers


@dataclass(frozen=True, slots=True)
class ReduceSum(DenseLayer):
    """Sum over an axis; 0 is the batch."""

    TYPE: ClassVar[str] = "ReduceSum"
    axis: int = 1

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return one column, or what is left of an embedding."""
        given = inputs[0]
        if given.is_3d:
            if self.axis == 1:
                return (TensorShape(1, given.columns, is_3d=True),)
            if self.axis == 2:
                return (TensorShape(given.rows, 1, is_3d=True),)
        elif self.axis == 1:
            return (TensorShape(given.rows, 1),)
        raise self.refuse(f"axis is {self.axis}; expected 1{' or 2' if given.is_3d else ''}, since 0 mixes samples")


@dataclass(frozen=True, slots=True)
class Reshape(DenseLayer):
    """A tensor as a matrix of ``leading_dim`` columns; of an embedding only the ``selected`` slots, if any are."""

    TYPE: ClassVar[str] = "Reshape"
    leading_dim: int = 0
    selected: tuple[int, ...] = ()

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return a matrix."""
        given = inputs[0]
        if self.selected:
            if not given.is_3d or max(self.selected) >= given.rows:
                raise self.refuse(f"selected names slots 0 to {given.rows - 1} of an embedding")
            return (TensorShape(1, len(self.selected) * given.columns),)
        columns = self.leading_dim or given.elements
        if given.elements % columns:
            raise self.refuse(
                f"leading_dim is {columns}; a sample's {given.elements} elements must be a multiple of it"
            )
        return (TensorShape(given.elements // columns, columns),)


@dataclass(frozen=True, slots=True)
class Slice(DenseLayer):
    """Columns [start, end) as tensors of their own."""

    TYPE: ClassVar[str] = "Slice"
    ranges: tuple[tuple[int, int], ...] = ()

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return a matrix per range."""
        self._matrices(inputs)
        if len(self.ranges) != len(self.outputs):
            raise self.refuse(f"{len(self.ranges)} ranges for {len(self.outputs)} tensors in top")
        for start, end in self.ranges:
            if not 0 <= start < end <= inputs[0].columns:
                raise self.refuse(f"range [{start}, {end}) is not within its {inputs[0].columns} columns")
        return tuple(TensorShape(inputs[0].rows, end - start) for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class WeightMultiply(DenseLayer):
    """Each column times a vector of weights: (slots) to (slots · width)."""

    TYPE: ClassVar[str] = "WeightMultiply"
    weight_dims: tuple[int, int] = (1, 1)

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return all vectors beside each other."""
        self._matrices(inputs)
        slots, width = self.weight_dims
        if inputs[0].columns != slots:
            raise self.refuse(f"weight_dims begins with {slots}; its input has {inputs[0].columns} columns")
        return (TensorShape(inputs[0].rows, slots * width),)

    def weights(self, inputs: Sequence[TensorShape]) -> Weights:
        """Return the one matrix."""
        return (self.weight_dims,)


@dataclass(frozen=True, slots=True)
class LossLayer(DenseLayer):
    """Base of losses: predictions and labels to one number.

    Attributes:
        regularizer: "", "L1" or "L2", over all weights of fully connected layers.
        weight: of the regularizer (lambda).
    """

    regularizer: str = ""
    weight: float = 0.0

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the loss."""
        self._matrices(inputs)
        return (TensorShape(1, 1),)


@dataclass(frozen=True, slots=True)
class BinaryCrossEntropyLoss(LossLayer):
    """Binary cross entropy of logits, one label a sample."""

    TYPE: ClassVar[str] = "BinaryCrossEntropyLoss"

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the loss."""
        if any(shape != (1, 1, False) for shape in inputs):
            raise self.refuse("it takes one prediction and one label a sample")
        return (TensorShape(1, 1),)


@dataclass(frozen=True, slots=True)
class CrossEntropyLoss(LossLayer):
    """Softmax cross entropy of two classes, one label a sample."""

    TYPE: ClassVar[str] = "CrossEntropyLoss"

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the loss."""
        if inputs[0] != (1, 2, False) or inputs[1] != (1, 1, False):
            raise self.refuse("it takes two predictions and one label a sample")
        return (TensorShape(1, 1),)


@dataclass(frozen=True, slots=True)
class MultiCrossEntropyLoss(LossLayer):
    """Weighted mean of binary cross entropies, one per label; labels below 0 do not count."""

    TYPE: ClassVar[str] = "MultiCrossEntropyLoss"
    target_weight: tuple[float, ...] = ()

    def shapes(self, inputs: Sequence[TensorShape]) -> tuple[TensorShape, ...]:
        """Return the loss."""
        if inputs[0] != inputs[1] or inputs[0].rows != 1:
            raise self.refuse("it takes as many predictions as labels")
        if len(self.target_weight) != inputs[0].columns:
            raise self.refuse(f"target_weight has {len(self.target_weight)} values for {inputs[0].columns} labels")
        return (TensorShape(1, 1),)


LAYER_TYPES: dict[str, type[DenseLayer]] = {
    layer.TYPE: layer
    for layer in (
        Add, BatchNorm, BinaryCrossEntropyLoss, Cast, Concat, CrossEntropyLoss, DotProduct, Dropout, ELU, FmOrder2,
        FusedInnerProduct, InnerProduct, Interaction, MultiCross, MultiCrossEntropyLoss, ReduceSum, ReLU, Reshape,
        Sigmoid, Slice, WeightMultiply,
    )
}  # fmt: skip
