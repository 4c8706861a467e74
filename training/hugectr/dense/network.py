"""The dense network: every rank holds all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from hugectr.dense import parameter_free, weighted
from hugectr.dense.losses import LossOutput, loss_of
from hugectr.dense.module import ALONE, DenseModule, Over, Position
from hugectr.dense.parameters import FlatWeights
from hugectr.operator_scopes import layer_scope
from predictor.recommender.workload import layers
from predictor.recommender.workload.layers import DenseLayer, LossLayer
from predictor.recommender.workload.model import Recommender


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


Embeddings = Callable[[], Mapping[str, torch.Tensor]]
MODULES: dict[str, type[DenseModule]] = {
    module.__name__: module
    for module in (
        parameter_free.Add, parameter_free.Cast, parameter_free.Concat, parameter_free.DotProduct,
        parameter_free.Dropout, parameter_free.ELU, parameter_free.FmOrder2, parameter_free.ReduceSum,
        parameter_free.ReLU, parameter_free.Reshape, parameter_free.Sigmoid, parameter_free.Slice, Interaction,
        weighted.BatchNorm,
        weighted.FusedInnerProduct, weighted.InnerProduct, weighted.MultiCross, weighted.WeightMultiply,
    )
}  # fmt: skip


class NetworkOutput(NamedTuple):
    """What a pass gives.

    Attributes:
        loss: of this rank's samples; None where the model has no loss, as for inference.
        tensors: all tensors by name.
    """

    loss: LossOutput | None
    tensors: dict[str, torch.Tensor]


class DenseNetwork(nn.Module):
    """The dense layers of a model, in the order of its configuration."""

    def __init__(
        self,
        model: Recommender,
        *,
        device: torch.device | str = "cpu",
        half: torch.dtype | None = None,
        over: Over = ALONE,
    ) -> None:
        """Build all layers; ``initialise`` or a dense model file fills them.

        Args:
            model: what it is.
            device: where its weights lie.
            half: precision of tensors in mixed precision; None is float32 throughout.
            over: the ranks of a batch.
        """
        super().__init__()
        self.model, self.half = model, half
        self.weights = FlatWeights(model, torch.device(device))
        self.steps: list[tuple[DenseLayer, DenseModule | None]] = []
        modules = nn.ModuleList()
        for number, (layer, weights) in enumerate(zip(model.layers, self.weights.parameters, strict=True)):
            if isinstance(layer, LossLayer):
                self.steps.append((layer, None))
                continue
            module = MODULES[layer.TYPE](layer, model.inputs_of(layer), weights).to(device)
            if isinstance(module, parameter_free.Cast):
                module.half = half
            elif isinstance(module, parameter_free.Dropout):
                module.stream = number
            elif isinstance(module, weighted.BatchNorm):
                module.over = over
            self.steps.append((layer, module))
            modules.append(module)
        self.layers = modules

    def initialise(self, seed: int) -> None:
        """Fill all weights with HugeCTR's initial values, drawn on the CPU so that they do not depend on the device."""
        generator = torch.Generator().manual_seed(seed)
        device = self.weights.flat.device
        for weights in self.weights.parameters:
            for weight in weights:
                weight.data = weight.data.cpu()
        with torch.no_grad():
            for _, module in self.steps:
                if module is not None:
                    module.initialise(generator)
            values = [weight.reshape(-1) for weight in self.weights.every()]
            if values:
                self.weights.flat.copy_(torch.cat(values).to(device))
        self._rebind()

    def copy_from(self, other: DenseNetwork) -> None:
        """Take another network's weights and running values."""
        with torch.no_grad():
            self.weights.flat.copy_(other.weights.flat)
            for own, theirs in zip(self.buffers(), other.buffers(), strict=True):
                own.copy_(theirs)

    def forward(
        self, label: torch.Tensor | None, dense: torch.Tensor, embeddings: Embeddings, position: Position
    ) -> NetworkOutput:
        """Run all layers.

        Args:
            label: (samples, label_dim), or None without a loss.
            dense: (samples, dense_dim) float32.
            embeddings: called before the first layer that reads one, so that their exchange runs beside the layers
                before it; gives (samples, slots, width) by name.
            position: of the samples.
        """
        tensors = {self.model.dense: dense if self.half is None else dense.to(self.half)}
        pooled = {embedding.output for embedding in self.model.embeddings}
        output = None
        for layer, module in self.steps:
            if pooled and not pooled.isdisjoint(layer.inputs):
                tensors.update(embeddings())
                pooled = set()
            if module is not None:
                with layer_scope(layer):
                    outputs = module([tensors[name] for name in layer.inputs], position)
                tensors.update(zip(layer.outputs, outputs, strict=True))
            elif isinstance(layer, LossLayer) and label is not None:
                prediction = layer.inputs[0] if layer.inputs[0] != self.model.label else layer.inputs[1]
                with layer_scope(layer):
                    output = loss_of(layer, tensors[prediction], label)
        return NetworkOutput(output, tensors)

    def _rebind(self) -> None:
        """Make the parameters views of the buffer again."""
        offset = 0
        for weight in self.weights.every():
            weight.data = self.weights.flat[offset : offset + weight.numel()].view(weight.shape)
            offset += weight.numel()
