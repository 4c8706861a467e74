"""The model: a decoder-only transformer, dense or mixture of experts; sizes, parameters and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from predictor.costs.work import ELEMENT_BYTES
from predictor.workloads.layer_call import LayerCall, padded_vocab_size


class Normalization(StrEnum):
    """Which norm a layer runs."""

    RMS_NORM = "rms_norm"
    LAYER_NORM = "layer_norm"
    FUSED_RMS_NORM = "fused_rms_norm"

    @property
    def operator(self) -> str:
        """Return the operator that times it; a fused RMSNorm streams what the fused LayerNorm does."""
        return "rms_norm" if self is Normalization.RMS_NORM else "layer_norm"


class Attention(StrEnum):
    """Which kernels compute attention."""

    FLASH = "flash"
    FUSED_SOFTMAX = "fused_softmax"
    UNFUSED = "unfused"


class Activation(StrEnum):
    """The FFN's non-linearity; the gated ones have a third matrix. Shazeer 2020, arXiv:2002.05202."""

    GELU = "gelu"
    SWIGLU = "swiglu"
    GEGLU = "geglu"

    @property
    def gated(self) -> bool:
        """Return whether the FFN has a gate."""
        return self is not Activation.GELU


class Loss(StrEnum):
    """Which cross entropy follows the output projection."""

    VOCABULARY_PARALLEL = "vocabulary_parallel"
    TORCH = "torch"
    FUSED = "fused"

    @property
    def operator(self) -> str:
        """Return the operator that times it where no kernel is fused."""
        return "cross_entropy" if self is Loss.VOCABULARY_PARALLEL else "torch_cross_entropy"


class Biases(StrEnum):
    """Which linear layers have biases."""

    NONE = "none"
    QKV = "qkv"
    ALL = "all"


class LayerKind(NamedTuple):
    """What sets a layer apart from others of the same model.

    ``in_16_bits``: a recipe of low precision leaves it out.
    """

    has_experts: bool
    is_windowed: bool
    in_16_bits: bool = False


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """The experts of a layer. Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.

    Attributes:
        experts_per_token: experts that the router chooses for each token (top-k).
        expert_ffn_hidden_size: inner width of one expert.
        shared_expert_ffn_hidden_size: inner width of what every token passes as well; 0: none.
        shared_expert_gate: the shared expert's output is scaled by a learned gate per token.
        num_dense_layers: layers at the model's start that have an ordinary FFN.
        capacity_factor: tokens that an expert takes over its even share, the rest dropped; None: dropless.
        load_imbalance: tokens of the busiest rank over the even share, at least 1; all ranks wait for it. Where every
            rank has all experts there is none.
        activation_clamp: largest input of the experts' gate, which is cut there; None: it is not.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_hidden_size: int
    shared_expert_ffn_hidden_size: int = 0
    shared_expert_gate: bool = False
    num_dense_layers: int = 0
    capacity_factor: float | None = None
    load_imbalance: float = 1.0
    activation_clamp: float | None = None


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes and switches of the model.

    Attributes:
        num_key_value_heads: heads of keys and values; 0: as many as there are query heads.
        head_width: width of one head; 0: hidden_size over the query heads.
        activation: the FFN's non-linearity.
        sliding_window: tokens that a query of a windowed layer sees; 0: all.
        sliding_window_layers: how many layers are windowed, spread evenly; None: all, where there is a window.
        rotary_fraction: share of every head's width that is rotated; 0 for learned positions.
        num_position_embeddings: rows of learned positions; 0: sequence_length.
        parallel_residual: attention and FFN read the same input and are added together (GPT-J), one all-reduce
            a layer forward.
        biases: which linear layers have biases.
        qk_norm: queries and keys are normalised per head.
        post_norms: norms behind attention and FFN as well (Gemma 2).
        attention_dropout, hidden_dropout: probabilities; what counts is whether they are zero.
        fused_side_kernels: bias, dropout and residual addition are one kernel, and so are bias and activation
            (Megatron-LM's ``--bias-dropout-fusion``, ``--bias-gelu-fusion`` and ``--bias-swiglu-fusion``); otherwise
            each is its own.
        fused_rope: the rotation of queries and keys is one kernel (Megatron-LM's ``--apply-rope-fusion``).
        tied_embeddings: output projection and embedding share their weights.
        loss: operator that computes it from the logits.
        experts: the experts of a layer, where it has any.
        layer_operators: the operators of a layer where the usual ones are not meant, repeated as often as they run.
        forward_all_reduces: tensor-parallel all-reduces per layer; None: one per residual branch that ends in a sum.
        backward_all_reduces: the same backward; None: one per column-parallel input.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    sequence_length: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_width: int = 0
    activation: Activation = Activation.GELU
    sliding_window: int = 0
    sliding_window_layers: int | None = None
    normalization: Normalization = Normalization.RMS_NORM
    attention: Attention = Attention.FLASH
    causal: bool = True
    rotary_fraction: float = 1.0
    num_position_embeddings: int = 0
    parallel_residual: bool = False
    biases: Biases = Biases.NONE
    qk_norm: bool = False
    post_norms: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    fused_side_kernels: bool = False
    fused_rope: bool = False
    tied_embeddings: bool = False
    loss: Loss = Loss.VOCABULARY_PARALLEL
    experts: MixtureOfExperts | None = None
    layer_operators: tuple[str, ...] | None = None
    forward_all_reduces: int | None = None
    backward_all_reduces: int | None = None

    @property
    def key_value_heads(self) -> int:
        """Return the heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Return the width of one head."""
        return self.head_width or self.hidden_size // self.num_attention_heads

    @property
    def ffn_matrices(self) -> int:
        """Return the matrices of an FFN."""
        return 3 if self.activation.gated else 2

    @property
    def only_kind(self) -> LayerKind | None:
        """Return the kind of all layers, None where they may differ."""
        return self.kind(0) if self.experts is None and not self.sliding_window else None

    def kind(self, layer: int) -> LayerKind:
        """Return what kind of layer stands at a position, counted from 0."""
        has_experts = self.experts is not None and layer >= self.experts.num_dense_layers
        count = self.num_layers if self.sliding_window_layers is None else self.sliding_window_layers
        before, after = layer * count // self.num_layers, (layer + 1) * count // self.num_layers
        return LayerKind(has_experts, bool(self.sliding_window) and after > before)

    def call(
        self,
        micro_batch_size: int,
        tensor_parallel_size: int,
        element_bytes: int = ELEMENT_BYTES,
        context_parallel_size: int = 1,
        sequence_parallel: bool = False,
    ) -> LayerCall:
        """Return the sizes that operators see for one micro-batch on one rank; no window."""
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
            num_key_value_heads=self.num_key_value_heads,
            head_width=self.head_width,
            gated=self.activation.gated,
            context_parallel_size=context_parallel_size,
            sequence_parallel=sequence_parallel,
        )

    def attention_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of attention's matrices on one rank; key-value heads are copied to have one each."""
        key_value_heads = max(self.key_value_heads, tensor_parallel_size)
        width = 2 * (self.num_attention_heads + key_value_heads) * self.head_dim
        return width * self.hidden_size // tensor_parallel_size

    def _attention_biases(self, tensor_parallel_size: int) -> int:
        """Return the biases of attention on one rank: split with the heads, the output's whole."""
        if self.biases is Biases.NONE:
            return 0
        heads = self.num_attention_heads + 2 * max(self.key_value_heads, tensor_parallel_size)
        return heads * self.head_dim // tensor_parallel_size + (self.hidden_size if self.biases is Biases.ALL else 0)

    def _ffn_parameters(self, ffn_hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of an FFN on one rank; the bias of its output is on every rank."""
        if not ffn_hidden_size:
            return 0
        biases = (self.ffn_matrices - 1) * ffn_hidden_size if self.biases is Biases.ALL else 0
        split = self.ffn_matrices * self.hidden_size * ffn_hidden_size + biases
        return split // tensor_parallel_size + (self.hidden_size if self.biases is Biases.ALL else 0)

    def layer_parameters(self, tensor_parallel_size: int = 1, has_experts: bool = False) -> int:
        """Return the parameters of one layer on one rank, its routed experts not counted.

        Matrices and their biases are split over the group; norms, routers and the biases of sums are on every rank.
        """
        tp = tensor_parallel_size
        norms = self.norm_parameters(4 if self.post_norms else 2)
        norms += 2 * self.head_dim if self.qk_norm else 0
        attention = self.attention_parameters(tp) + self._attention_biases(tp) + norms
        if not has_experts or self.experts is None:
            return attention + self._ffn_parameters(self.ffn_hidden_size, tp)
        experts = self.experts
        router = self.hidden_size * (experts.num_experts + experts.shared_expert_gate)
        return attention + self._ffn_parameters(experts.shared_expert_ffn_hidden_size, tp) + router

    def expert_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of one routed expert on one rank."""
        if self.experts is None:
            return 0
        return self._ffn_parameters(self.experts.expert_ffn_hidden_size, tensor_parallel_size)

    def norm_parameters(self, norms: int) -> int:
        """Return the parameters of so many norms over the hidden dimension."""
        per_norm = 2 if self.normalization is Normalization.LAYER_NORM else 1
        return norms * per_norm * self.hidden_size

    def embedding_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of the embedding, or of an untied output projection, on one rank (padded)."""
        rows = padded_vocab_size(self.vocab_size, tensor_parallel_size) // tensor_parallel_size
        return rows * self.hidden_size

    def position_parameters(self) -> int:
        """Return the parameters of learned positions, none with rotary ones; every rank holds them whole."""
        return 0 if self.rotary_fraction else (self.num_position_embeddings or self.sequence_length) * self.hidden_size

    def num_parameters(self, active: bool = False) -> int:
        """Return the model's parameters, its vocabulary not padded; ``active``: only those that one token meets."""
        embeddings = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        total = embeddings + self.position_parameters() + self.norm_parameters(1)
        for layer in range(self.num_layers):
            has_experts = self.kind(layer).has_experts
            total += self.layer_parameters(has_experts=has_experts)
            if has_experts and self.experts:
                met = self.experts.experts_per_token if active else self.experts.num_experts
                total += met * self.expert_parameters()
        return total

    def _layer_flops_per_token(self, kind: LayerKind) -> float:
        """Return a sixth of the FLOPs that a token needs in one layer forward and backward: its multiplications."""
        width = self.ffn_hidden_size
        router = 0
        if kind.has_experts and self.experts:
            experts = self.experts
            width = experts.experts_per_token * experts.expert_ffn_hidden_size + experts.shared_expert_ffn_hidden_size
            router = self.hidden_size * experts.num_experts
        ffn = self.ffn_matrices * self.hidden_size * width + router
        keys = min(self.sliding_window, self.sequence_length) if kind.is_windowed else self.sequence_length
        attention = 2 * keys * self.num_attention_heads * self.head_dim
        return self.attention_parameters() + ffn + attention

    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted.

        Attention counts all keys of a token, masked or not, as published MFU figures do, and a window's where there is
        one. Source: Narayanan et al. 2021, arXiv:2104.04473, appendix A, for any FFN width.
        """
        layers = sum(self._layer_flops_per_token(self.kind(layer)) for layer in range(self.num_layers))
        return 6.0 * (layers + self.hidden_size * self.vocab_size)
