"""A vision tower: an encoder of image patches whose outputs stand among the tokens of the text.

Source: Dosovitskiy et al. 2020, arXiv:2010.11929 (ViT); Liu et al. 2023, arXiv:2304.08485 (projection to the text).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from predictor.core.base.fields import Amount, Count, Switch
from predictor.core.workload.switches import Normalization

COLOURS = 3


@dataclass(frozen=True, slots=True)
class Vision:
    """A vision tower (ViT) in front of the first layer."""

    num_layers: Annotated[Count, Field(description="layers of the tower")]
    hidden_size: Annotated[Count, Field(description="its width")]
    ffn_hidden_size: Annotated[Count, Field(description="inner width of its FFN")]
    num_attention_heads: Annotated[Count, Field(description="its heads")]
    patch_size: Annotated[Count, Field(description="edge of a patch, pixels")]
    image_size: Annotated[Count, Field(description="edge of an image, pixels")]
    tokens_per_image: Annotated[Count | None, Field(description="tokens of the sample that an image becomes")] = None
    patches_per_token: Annotated[Count | None, Field(description="the same as the patches that make a token")] = None
    images_per_sample: Annotated[Count, Field(description="images of a sample")] = 1
    gated: Annotated[Switch, Field(description="its FFN has a gate")] = False
    biases: Annotated[Switch, Field(description="its linear layers have biases")] = True
    normalization: Annotated[Normalization, Field(description="what its norms are")] = Normalization.LAYER_NORM
    num_position_embeddings: Annotated[
        Amount | None,
        Field(description="rows of learned positions, 0 where patches are rotated; one a patch if absent"),
    ] = None
    temporal_patch_size: Annotated[
        Count, Field(description="frames of a patch, which an image is repeated to fill")
    ] = 1
    pooled: Annotated[Switch, Field(description="patches of a token are averaged (Gemma 3), not joined")] = False
    projection_widths: Annotated[
        tuple[Count, ...], Field(description="inner widths of the projection to the text")
    ] = ()
    projections: Annotated[Count, Field(description="projections to layers of the text model (DeepStack)")] = 1
    other_parameters: Annotated[
        Amount, Field(description="parameters that no other key describes, such as a class token")
    ] = 0
    trained: Annotated[Switch, Field(description="its weights are updated")] = True

    @property
    def patches(self) -> int:
        """Return the patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def image_tokens(self) -> int:
        """Return the tokens of the text that one image becomes."""
        return self.tokens_per_image or self.patches // (self.patches_per_token or 1)

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
        return float(self.images_per_sample * (self.patches * (patch + layers) + self.image_tokens * projected))

    @property
    def projection_inputs(self) -> int:
        """Return the width of what is projected to the text: neighbouring patches are merged where tokens are fewer."""
        if self.pooled:
            return self.hidden_size
        return self.hidden_size * max(1, self.patches // self.image_tokens)
