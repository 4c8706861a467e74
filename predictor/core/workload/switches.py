"""Switches of a transformer: norms, attention, positions, activations, and the kinds of its layers."""

from __future__ import annotations

from enum import StrEnum


class Normalization(StrEnum):
    """Which norm a layer runs."""

    RMS_NORM = "rms_norm"
    LAYER_NORM = "layer_norm"
    FUSED_RMS_NORM = "fused_rms_norm"

    @property
    def operator(self) -> str:
        """Return the operator that times it; a fused RMSNorm streams what the fused LayerNorm does."""
        return "rms_norm" if self is Normalization.RMS_NORM else "layer_norm"


class QkNorm(StrEnum):
    """How queries and keys are normalised before attention.

    ``per_head``: with one weight per element of a head (Qwen 3, Gemma 3); ``whole``: over all heads together (OLMo 2);
    ``weightless``: per head, without parameters (Llama 4).
    """

    NONE = "none"
    PER_HEAD = "per_head"
    WHOLE = "whole"
    WEIGHTLESS = "weightless"


class Attention(StrEnum):
    """Which kernels compute attention."""

    FLASH = "flash"
    FUSED_SOFTMAX = "fused_softmax"
    UNFUSED = "unfused"


class Positions(StrEnum):
    """How a token knows where it stands. ``alibi``: Press et al. 2021, arXiv:2108.12409."""

    ROTARY = "rotary"
    LEARNED = "learned"
    ALIBI = "alibi"
    NONE = "none"


class Activation(StrEnum):
    """The FFN's non-linearity; the gated ones have a third matrix. Shazeer 2020, arXiv:2002.05202.

    ``squared_relu``: So et al. 2021, arXiv:2109.08668 (Nemotron).
    """

    GELU = "gelu"
    SWIGLU = "swiglu"
    GEGLU = "geglu"
    RELU = "relu"
    SQUARED_RELU = "squared_relu"

    @property
    def gated(self) -> bool:
        """Return whether the FFN has a gate."""
        return self in (Activation.SWIGLU, Activation.GEGLU)


class Loss(StrEnum):
    """Which cross entropy follows the output projection.

    ``torch_eager``: torch's, operation by operation in a compiled run too; ``fused_native``: Megatron-LM's own compiled
    pieces; ``fused_linear``: with the projection, in chunks of tokens; ``score``: none, as one number of a sample takes
    the projection's place (reward models).
    """

    VOCABULARY_PARALLEL = "vocabulary_parallel"
    TORCH = "torch"
    TORCH_EAGER = "torch_eager"
    FUSED = "fused"
    FUSED_NATIVE = "fused_native"
    FUSED_LINEAR = "fused_linear"
    SCORE = "score"

    @property
    def operator(self) -> str:
        """Return the operator that times it where no kernel is fused."""
        return "cross_entropy" if self is Loss.VOCABULARY_PARALLEL else "torch_cross_entropy"


class Biases(StrEnum):
    """Which linear layers of a layer have biases; ``attention``: all of it, ``qkv`` its first projection only."""

    NONE = "none"
    QKV = "qkv"
    ATTENTION = "attention"
    FFN = "ffn"
    ALL = "all"

    @property
    def of_qkv(self) -> bool:
        """Return whether the projection of queries, keys and values has them."""
        return self in (Biases.QKV, Biases.ATTENTION, Biases.ALL)

    @property
    def of_attention_output(self) -> bool:
        """Return whether attention's output projection has them."""
        return self in (Biases.ATTENTION, Biases.ALL)

    @property
    def of_ffn(self) -> bool:
        """Return whether the FFN's projections have them."""
        return self in (Biases.FFN, Biases.ALL)


class Ffn(StrEnum):
    """What follows a layer's token mixer: a feed-forward network, a mixture of experts, or nothing."""

    DENSE = "dense"
    EXPERTS = "experts"
    NONE = "none"
