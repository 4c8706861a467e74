"""A vision tower: an encoder of image patches whose outputs stand among the tokens of the text.

Source: Dosovitskiy et al. 2020, arXiv:2010.11929 (ViT); Liu et al. 2023, arXiv:2304.08485 (projection to the text).
"""

from __future__ import annotations

from dataclasses import dataclass

COLOURS = 3


@dataclass(frozen=True, slots=True)
class Vision:
    """Sizes of a vision tower.

    Attributes:
        image_size, patch_size: edges of an image and of a patch, pixels.
        tokens_per_image: tokens of the text that an image's patches become.
        images_per_sample: images of one sample.
        gated: its FFN has a gate.
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

    def parameters(self, hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank: patch embedding, positions, layers with biases, a norm, one projection.

        Only layers are split over tensor-parallel ranks.

        Args:
            hidden_size: of the text model.
            tensor_parallel_size: ranks that split a layer.
        """
        width = self.hidden_size
        split = self.layer_matrices + 3 * width + self.ffn_hidden_size * (2 if self.gated else 1)
        layers = self.num_layers * (split // tensor_parallel_size + 2 * width + 4 * width)
        beginning = COLOURS * self.patch_size**2 * width + width + self.patches * width
        return beginning + layers + 2 * width + self.projection_inputs * hidden_size

    def multiplications_per_sample(self, hidden_size: int) -> float:
        """Return the multiplications of one sample's images in the tower and the projection to the text.

        Args:
            hidden_size: of the text model.
        """
        patch = COLOURS * self.patch_size**2 * self.hidden_size
        layers = self.num_layers * (self.layer_matrices + 2 * self.patches * self.hidden_size)
        projection = self.tokens_per_image * self.projection_inputs * hidden_size
        return float(self.images_per_sample * (self.patches * (patch + layers) + projection))

    @property
    def projection_inputs(self) -> int:
        """Return the width of the projection to the text: neighbouring patches are merged where tokens are fewer."""
        return self.hidden_size * max(1, self.patches // self.tokens_per_image)
