"""A recommender as a value: inputs, embedding layers and dense layers, joined by the names of their tensors."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.lazy import lazy
from predictor.recommender.workload.embedding import EmbeddingLayer
from predictor.recommender.workload.layers import DenseLayer, LossLayer, TensorShape
from predictor.recommender.workload.optimizer import Optimizer


@dataclass(frozen=True)  # no slots: shapes are computed once
class Recommender:
    """A model.

    Attributes:
        label, dense: names of the inputs.
        label_dim, dense_dim: their columns.
        embeddings, layers: in the order of the configuration.
        optimizer: of the dense network, and of embeddings without their own; None for a model that only infers.
    """

    label: str
    label_dim: int
    dense: str
    dense_dim: int
    embeddings: tuple[EmbeddingLayer, ...]
    layers: tuple[DenseLayer, ...]
    optimizer: Optimizer | None

    @lazy
    def shapes(self) -> dict[str, TensorShape]:
        """Return the shape of every tensor, per sample, by name.

        Raises:
            ConfigError: a layer reads a tensor that none before it writes, or does not take its inputs.
        """
        shapes = {self.label: TensorShape(1, self.label_dim), self.dense: TensorShape(1, self.dense_dim)}
        for embedding in self.embeddings:
            shapes[embedding.output] = TensorShape(embedding.num_slots, embedding.width, is_3d=True)
        for layer in self.layers:
            for name in layer.inputs:
                if name not in shapes:
                    raise ConfigError(
                        f"layer {layer.name}: bottom names {name}, which no layer before it has as its top."
                        f"{nearest(name, shapes)}"
                    )
            shapes.update(zip(layer.outputs, layer.shapes(self.inputs_of(layer, shapes)), strict=True))
        return shapes

    def inputs_of(self, layer: DenseLayer, shapes: dict[str, TensorShape] | None = None) -> list[TensorShape]:
        """Return the shapes of a layer's inputs."""
        known = self.shapes if shapes is None else shapes
        return [known[name] for name in layer.inputs]

    @lazy
    def dense_parameters(self) -> int:
        """Return the number of weights of the dense network, which every rank holds."""
        return sum(rows * columns for layer in self.layers for rows, columns in layer.weights(self.inputs_of(layer)))

    @property
    def loss(self) -> LossLayer | None:
        """Return the loss; None for a model that only infers."""
        return next((layer for layer in self.layers if isinstance(layer, LossLayer)), None)
