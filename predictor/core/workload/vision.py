"""A vision tower: an encoder of image patches whose outputs stand among the tokens of the text.

Source: Dosovitskiy et al. 2020, arXiv:2010.11929 (ViT); Liu et al. 2023, arXiv:2304.08485 (projection to the text).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from predictor.core.workload.switches import Normalization

COLOURS = 3


@dataclass(frozen=True, slots=True)
class Vision:
    """Sizes of a vision tower.

    Attributes:
        image_size, patch_size: edges of an image and of a patch, pixels.
        tokens_per_image: tokens of the text that an image's patches become.
        images_per_sample: images of one sample.
        gated: its FFN has a gate.
        biases: its linear layers have biases.
        normalization: what its norms are.
        num_position_embeddings: rows of learned positions, 0 where patches are rotated; None: one per patch.
        temporal_patch_size: frames of a patch; an image is repeated to fill them (Qwen2-VL).
        pooled: neighbouring patches are averaged before the projection, not joined (Gemma 3).
        projection_widths: inner widths of the projection to the text, between its matrices.
        projections: projections of outputs of several layers, each added to a layer of the text model (DeepStack).
        other_parameters: parameters that nothing else here describes, such as a class token or a projection's biases.
        trained: its weights are updated.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    patch_size: int
    image_size: int
    tokens_per_image: int
    images_per_sample: int = 1
    gated: bool = False
    biases: bool = True
    normalization: Normalization = Normalization.LAYER_NORM
    num_position_embeddings: int | None = None
    temporal_patch_size: int = 1
    pooled: bool = False
    projection_widths: tuple[int, ...] = ()
    projections: int = 1
    other_parameters: int = 0
    trained: bool = True

    @property
    def patches(self) -> int:
        """Return the patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def layer_matrices(self) -> int:
        """Return the elements of one layer's matrices."""
        ffn = (3 if self.gated else 2) * self.hidden_size * self.ffn_hidden_size
        return 4 * self.hidden_size**2 + ffn

    @property
    def patch_inputs(self) -> int:
        """Return the numbers of a patch."""
        return COLOURS * self.temporal_patch_size * self.patch_size**2

    def projection_matrices(self, hidden_size: int) -> list[tuple[int, int]]:
        """Return inputs and outputs of the matrices from merged patches to the text model, all projections'."""
        widths = (self.projection_inputs, *self.projection_widths, hidden_size)
        return list(pairwise(widths)) * self.projections

    def parameters(self, hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank: patch embedding, positions, layers, a norm, projections.

        Only layers are split over tensor-parallel ranks.

        Args:
            hidden_size: of the text model.
            tensor_parallel_size: ranks that split a layer.
        """
        width = self.hidden_size
        norm = 2 * width if self.normalization is Normalization.LAYER_NORM else width
        split, whole = self.layer_matrices, 2 * norm
        if self.biases:
            split += 3 * width + self.ffn_hidden_size * (2 if self.gated else 1)
            whole += 2 * width
        rows = self.patches if self.num_position_embeddings is None else self.num_position_embeddings
        beginning = self.patch_inputs * width + (width if self.biases else 0) + rows * width
        projected = sum(inputs * outputs for inputs, outputs in self.projection_matrices(hidden_size))
        layers = self.num_layers * (split // tensor_parallel_size + whole)
        return beginning + layers + norm + projected + self.other_parameters

    def multiplications_per_sample(self, hidden_size: int) -> float:
        """Return the multiplications of one sample's images in the tower and the projections to the text.

        Args:
            hidden_size: of the text model.
        """
        patch = self.patch_inputs * self.hidden_size
        layers = self.num_layers * (self.layer_matrices + 2 * self.patches * self.hidden_size)
        projected = sum(inputs * outputs for inputs, outputs in self.projection_matrices(hidden_size))
        return float(self.images_per_sample * (self.patches * (patch + layers) + self.tokens_per_image * projected))

    @property
    def projection_inputs(self) -> int:
        """Return the width of what is projected to the text: neighbouring patches are merged where tokens are fewer."""
        if self.pooled:
            return self.hidden_size
        return self.hidden_size * max(1, self.patches // self.tokens_per_image)
