"""All weights of the dense network in one buffer, in the order of a dense model file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from predictor.recommender.workload.model import Recommender


class FlatWeights:
    """float32 weights as views of one buffer.

    A dense model file is the buffer's bytes, a bucket of gradients is a range of a buffer like it, and an optimizer's
    state has its layout.

    Attributes:
        flat: (weights,).
        parameters: the weights of every layer, views of it.
    """

    def __init__(self, model: Recommender, device: torch.device) -> None:
        """Make room; nothing is filled."""
        self.shapes: list[tuple[tuple[int, int], ...]] = [
            layer.weights(model.inputs_of(layer)) for layer in model.layers
        ]
        self.flat = torch.zeros(model.dense_parameters, device=device)
        self.parameters: list[list[nn.Parameter]] = []
        offset = 0
        for shapes in self.shapes:
            weights = []
            for rows, columns in shapes:
                view = self.flat[offset : offset + rows * columns].view(rows, columns)
                weights.append(nn.Parameter(view))
                offset += rows * columns
            self.parameters.append(weights)

    def every(self) -> list[nn.Parameter]:
        """Return all weights in order."""
        return [weight for weights in self.parameters for weight in weights]


def views_like(flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of a buffer that lie in it as the parameters lie in theirs."""
    sizes = [parameter.numel() for parameter in parameters]
    parts = flat.split(sizes)
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
