"""A decoder-only transformer, as far as its training time depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.costs.layer_call import LayerCall, padded_vocab_size
from predictor.costs.work import ELEMENT_BYTES


class Normalization(StrEnum):
    """Which norm a layer runs twice."""

    RMS_NORM = "rms_norm"
    LAYER_NORM = "layer_norm"


class Attention(StrEnum):
    """Which kernels compute attention."""

    FLASH = "flash"
    FUSED_SOFTMAX = "fused_softmax"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes and switches of the model.

    Attributes:
        rotary_fraction: share of every head's width that is rotated; 0 for learned positions.
        parallel_residual: attention and FFN read the same input and are added together (GPT-J), one all-reduce a layer.
        biases: linear layers have biases.
        attention_dropout, hidden_dropout: probabilities; what counts is whether they are zero.
        fused_side_kernels: bias, dropout and residual addition are one kernel, and so are bias and GELU (Megatron-LM's
            ``--bias-dropout-fusion`` and ``--bias-gelu-fusion``); otherwise each is its own.
        tied_embeddings: output projection and embedding share their weights.
        layer_operators: the operators of a layer where the usual ones are not meant, repeated as often as they run.
        forward_all_reduces: tensor-parallel all-reduces per layer; None: one per residual branch that ends in a sum.
        backward_all_reduces: the same for the backward pass.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    sequence_length: int
    vocab_size: int
    normalization: Normalization = Normalization.RMS_NORM
    attention: Attention = Attention.FLASH
    causal: bool = True
    rotary_fraction: float = 1.0
    parallel_residual: bool = False
    biases: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    fused_side_kernels: bool = False
    tied_embeddings: bool = False
    layer_operators: tuple[str, ...] | None = None
    forward_all_reduces: int | None = None
    backward_all_reduces: int | None = None

    def call(self, micro_batch_size: int, tensor_parallel_size: int, element_bytes: int = ELEMENT_BYTES) -> LayerCall:
        """Return the sizes that operators see for one micro-batch on one tensor-parallel rank."""
        return LayerCall(
            micro_batch_size=micro_batch_size,
            sequence_length=self.sequence_length,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            ffn_hidden_size=self.ffn_hidden_size,
            vocab_size=self.vocab_size,
            tensor_parallel_size=tensor_parallel_size,
            rotary_fraction=self.rotary_fraction,
            causal=self.causal,
            element_bytes=element_bytes,
        )

    def layer_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of one layer on one rank: four matrices split over the group, norms on every rank."""
        matrices = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.ffn_hidden_size
        split_biases = 3 * self.hidden_size + self.ffn_hidden_size if self.biases else 0
        whole_biases = 2 * self.hidden_size if self.biases else 0
        return (matrices + split_biases) // tensor_parallel_size + whole_biases + self.norm_parameters(2)

    def norm_parameters(self, norms: int) -> int:
        """Return the parameters of so many norms."""
        per_norm = 1 if self.normalization is Normalization.RMS_NORM else 2
        return norms * per_norm * self.hidden_size

    def embedding_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of the embedding, or of an untied output projection, on one rank (padded)."""
        rows = padded_vocab_size(self.vocab_size, tensor_parallel_size) // tensor_parallel_size
        return rows * self.hidden_size

    def position_parameters(self) -> int:
        """Return the parameters of learned positions, none with rotary ones; every rank holds them whole."""
        return 0 if self.rotary_fraction else self.sequence_length * self.hidden_size

    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted.

        Attention counts all l keys of a token, masked or not, as published MFU figures do.
        Source: Narayanan et al. 2021, arXiv:2104.04473, appendix A, for any FFN width.
        """
        matrices = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.ffn_hidden_size
        attention = 2 * self.sequence_length * self.hidden_size
        head = self.hidden_size * self.vocab_size
        return 6.0 * (self.num_layers * (matrices + attention) + head)
