"""DLRM's dot products of all pairs of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hugectr.dense.module import DenseModule, Position
from predictor.recommender.workload import layers


class PairProducts(torch.autograd.Function):
    """(batch, vectors, width) to the products of all pairs (i, j), j < i: (batch, pairs).

    Only the input is kept for the backward pass, which is one batched product: the gradient of all products is
    symmetric, so that both sides of a pair come from the same matrix.
    """

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, below: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """Return the products.

        Args:
            ctx: of autograd.
            vectors: (batch, vectors, width).
            below: position of each pair among all vectors · vectors products.
            spread: for each of those products its pair, or the number of pairs on the diagonal.
        """
        ctx.save_for_backward(vectors, spread)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.view(vectors.shape[0], -1).index_select(1, below)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the vectors."""
        vectors, spread = ctx.saved_tensors
        batch, count, _ = vectors.shape
        with_diagonal = torch.nn.functional.pad(gradients[0], (0, 1))
        every = with_diagonal.index_select(1, spread).view(batch, count, count)
        return torch.bmm(every, vectors), None, None


class Interaction(DenseModule):
    """The bottom network's vector, the products of all pairs of it and the embeddings, and one column of padding."""

    def __init__(self, layer: layers.Interaction, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        count = shapes[1].rows + 1
        rows, columns = torch.tril_indices(count, count, offset=-1)
        pairs = rows.numel()
        spread = torch.full((count, count), pairs)
        spread[rows, columns] = spread[columns, rows] = torch.arange(pairs)
        self.register_buffer("below", rows * count + columns, persistent=False)
        self.register_buffer("spread", spread.flatten(), persistent=False)

    def forward(self, inputs: Sequence[torch.Tensor], position: Position) -> tuple[torch.Tensor, ...]:
        """Return (batch, width + pairs + 1)."""
        dense, embedding = inputs
        vectors = torch.cat((dense.unsqueeze(1), embedding), dim=1)
        products = PairProducts.apply(vectors, self.below, self.spread)
        return (torch.cat((dense, products, dense.new_zeros(dense.shape[0], 1)), dim=1),)
