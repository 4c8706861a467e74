"""The dense network of an inference session."""

from __future__ import annotations

from pathlib import Path

import torch

from hugectr.dense.files import load_network
from hugectr.dense.module import Position
from hugectr.dense.network import DenseNetwork
from hugectr.inference.model_files import InferenceModel

ANYWHERE = Position(seed=0, step=1, first_sample=0)  # random numbers depend on it, and inference draws none


class InferenceNetwork:
    """A model's dense layers with trained weights, as in evaluation: no dropout, running values of BatchNorm."""

    def __init__(self, model: InferenceModel, device: torch.device) -> None:
        """Read the dense model file.

        Raises:
            DataError: it is missing or not of the model's size.
        """
        half = torch.float16 if model.clause.mixed_precision else None
        self._network = DenseNetwork(model.config.model, device=device, half=half)
        load_network(self._network, Path(model.clause.dense_model_file))
        self._network.eval()
        self._device = device
        self._embedding = model.embedding.output
        self._prediction = model.config.model.layers[-1].outputs[0]

    def __call__(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output, (samples, columns) float32.

        Args:
            dense: (samples, dense_dim) float32.
            pooled: (samples, slots, width) float32, on the device.
        """
        embeddings = {self._embedding: pooled if self._network.half is None else pooled.to(self._network.half)}
        output = self._network(None, dense.to(self._device), lambda: embeddings, ANYWHERE)
        return output.tensors[self._prediction].float()
