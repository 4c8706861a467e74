"""The architecture of a transformer: its sizes and switches, and what kind of layer stands where."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.core.blocks.gated_delta import GatedDelta
from predictor.core.blocks.latent_attention import LatentAttention
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.per_layer_inputs import PerLayerInputs
from predictor.core.blocks.recurrence import Recurrence
from predictor.core.blocks.token_mixer import TokenMixer
from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.workload.encoder import Encoder
from predictor.core.workload.layer_call import LayerCall
from predictor.core.workload.switches import (
    Activation,
    Attention,
    Biases,
    Ffn,
    LayerKind,
    Loss,
    Mixer,
    Normalization,
    Positions,
    QkNorm,
)
from predictor.core.workload.vision import Vision


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
        router_bias: the router has one number more per expert.
        load_imbalance: tokens of the busiest rank over the even share, at least 1; all ranks wait for it. Where every
            rank has all experts there is none.
        activation_clamp: largest input of the experts' gate, which is cut there; None: it is not.
        latent_size: width to which tokens are projected before they travel to their experts, and from which the sums
            of what these made are projected back (Nemotron 3 Super); 0: they travel in the hidden width.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_hidden_size: int
    shared_expert_ffn_hidden_size: int = 0
    shared_expert_gate: bool = False
    num_dense_layers: int = 0
    capacity_factor: float | None = None
    load_imbalance: float = 1.0
    router_bias: bool = False
    activation_clamp: float | None = None
    latent_size: int = 0

    def token_width(self, hidden_size: int) -> int:
        """Return the width of a token on its way to its experts and back."""
        return self.latent_size or hidden_size

    def latent_parameters(self, hidden_size: int) -> int:
        """Return the parameters of both projections, whole on every rank."""
        return 2 * hidden_size * self.latent_size


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of the model.

    Attributes:
        num_key_value_heads: heads of keys and values; 0: as many as there are query heads.
        head_width: width of one head; 0: hidden_size over the query heads.
        activation: the FFN's non-linearity.
        sliding_window: tokens that a query of a windowed layer sees; 0: all.
        sliding_window_layers: how many layers are windowed, spread evenly; None: all, where there is a window.
        rotary_fraction: share of every head's width that is rotated; 0 for learned positions.
        rotary_layers: layers whose attention rotates queries and keys, a pattern that repeats; empty: all.
        num_position_embeddings: rows of learned positions; 0: sequence_length.
        parallel_residual: attention and FFN read the same input and are added together (GPT-J), one all-reduce
            a layer forward.
        biases: which linear layers have biases.
        qk_norm: how queries and keys are normalised.
        post_norms: norms behind attention and FFN as well (Gemma 2).
        norm_weights, norm_biases: parameters of a norm; None: a LayerNorm has biases, an RMSNorm none.
        shared_input_norm: side by side, attention and FFN read the output of one norm (GPT-J).
        embedding_norm: a norm follows the embedding (BLOOM, BERT).
        final_norm: a norm precedes the output projection.
        positions: how a token knows where it stands; None: rotary, or learned where nothing is rotated.
        lm_head_bias: the output projection has a bias.
        other_parameters: parameters of all layers' small vectors that nothing else here describes.
        layer_types, ffn_types: token mixers and FFNs of the layers, a pattern that repeats; empty: all alike, but for
            ``sliding_window_layers`` and ``num_dense_layers``.
        attention_chunk: tokens of a chunk, of which a query of a chunked layer sees no others.
        attention_sinks: every head has a learned score beside those of its keys (gpt-oss).
        attention_head_gate: a projection makes a gate of each head's output (Laguna).
        attention_output_gate: the projection of queries makes a gate of attention's output as well (Qwen 3-Next).
        latent_attention, mamba2, gated_delta, recurrence: sizes of those token mixers.
        mamba2_beside_attention: layers with attention run Mamba-2 beside it, on the same input (Falcon-H1).
        differential_attention: attention is the difference of two (Ye et al. 2024, arXiv:2410.05258).
        full_key_value_heads, full_head_width: of layers that see all keys, where layers with a window have others; 0:
            they have the same.
        full_shared_key_values: in those layers one projection makes keys and values (Gemma 4).
        sliding_latent_attention, sliding_query_heads: of layers with a window, where they have latent attention of
            other sizes.
        attention_experts: experts of the projections of queries and of the output, of which a token meets as many as
            there are query heads per key-value head (JetMoE); 0: none.
        lm_head_transform: a dense layer, a non-linearity and a norm precede the output projection (ModernBERT).
        per_layer_inputs: embeddings that every layer mixes in.
        num_mtp_layers: modules that predict a further token each (DeepSeek-V3).
        document_tokens: mean tokens of the documents of a sample, inside which attention stays; 0: one document.
        encoder: ends of a BERT encoder; None: a decoder's.
        vision: an encoder of images before the first layer.
        attention_dropout, hidden_dropout: probabilities; what counts is whether they are zero.
        fused_side_kernels: bias, dropout and residual addition are one kernel, and so are bias and activation
            (Megatron-LM's ``--bias-dropout-fusion``, ``--bias-gelu-fusion`` and ``--bias-swiglu-fusion``); otherwise
            each is its own.
        fused_rope: the rotation of queries and keys is one kernel (Megatron-LM's ``--apply-rope-fusion``).
        tied_embeddings: output projection and embedding share their weights.
        loss: operator that computes it from the logits.
        experts: the experts of a layer, where it has any.
        measured_kernels: fused kernels and gradient products that the system measured by themselves.
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
    rotary_layers: tuple[bool, ...] = ()
    num_position_embeddings: int = 0
    parallel_residual: bool = False
    biases: Biases = Biases.NONE
    qk_norm: QkNorm = QkNorm.NONE
    post_norms: bool = False
    norm_weights: bool = True
    norm_biases: bool | None = None
    shared_input_norm: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    positions: Positions | None = None
    lm_head_bias: bool = False
    other_parameters: int = 0
    layer_types: tuple[Mixer, ...] = ()
    ffn_types: tuple[Ffn, ...] = ()
    attention_chunk: int = 0
    attention_sinks: bool = False
    attention_output_gate: bool = False
    attention_head_gate: bool = False
    latent_attention: LatentAttention | None = None
    mamba2: Mamba2 | None = None
    gated_delta: GatedDelta | None = None
    recurrence: Recurrence | None = None
    mamba2_beside_attention: bool = False
    differential_attention: bool = False
    full_key_value_heads: int = 0
    full_head_width: int = 0
    full_shared_key_values: bool = False
    sliding_latent_attention: LatentAttention | None = None
    sliding_query_heads: int = 0
    attention_experts: int = 0
    lm_head_transform: bool = False
    per_layer_inputs: PerLayerInputs | None = None
    num_mtp_layers: int = 0
    document_tokens: int = 0
    encoder: Encoder | None = None
    vision: Vision | None = None
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    fused_side_kernels: bool = False
    fused_rope: bool = False
    tied_embeddings: bool = False
    loss: Loss = Loss.VOCABULARY_PARALLEL
    experts: MixtureOfExperts | None = None
    measured_kernels: frozenset[str] = frozenset()
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
    def norm_operator(self) -> str:
        """Return the operator that times a norm: of a fused RMSNorm its own where the system measured it."""
        norm = self.normalization
        return norm.value if norm.value in self.measured_kernels else norm.operator

    @property
    def ffn_matrices(self) -> int:
        """Return the matrices of an FFN."""
        return 3 if self.activation.gated else 2

    @property
    def splits_layers(self) -> bool:
        """Return whether tensor-parallel ranks may split a layer; of some variants only whole layers are modelled."""
        own = (self.recurrence, self.per_layer_inputs, self.sliding_latent_attention)
        of_full = (self.full_key_value_heads, self.full_head_width, self.full_shared_key_values)
        own_sizes = (*of_full, self.attention_experts, self.lm_head_transform)
        return all(part is None for part in own) and not any(own_sizes)

    @property
    def splits_samples(self) -> bool:
        """Return whether context-parallel ranks may split a sample: all layers have attention over all of it."""
        chooses = self.latent_attention is not None and self.latent_attention.indexer is not None
        beside = self.mamba2_beside_attention
        return not (
            self.sliding_window or chooses or beside or self.vision or set(self.layer_types) - {Mixer.FULL, Mixer.NONE}
        )

    def beside(self, mixer: Mixer) -> Mamba2 | None:
        """Return what runs beside a layer's attention."""
        return self.mamba2 if self.mamba2_beside_attention and mixer.is_attention else None

    def heads_of(self, mixer: Mixer) -> tuple[int, int]:
        """Return the heads of keys and values, and the width of a head, of a layer with attention."""
        is_other = mixer is Mixer.FULL
        key_value_heads = (self.full_key_value_heads if is_other else 0) or self.key_value_heads
        return key_value_heads, (self.full_head_width if is_other else 0) or self.head_dim

    def key_value_projections(self, mixer: Mixer) -> int:
        """Return how many projections make keys and values of a layer with attention."""
        return 1 if self.full_shared_key_values and mixer is Mixer.FULL else 2

    def latent_of(self, mixer: Mixer) -> LatentAttention | None:
        """Return the sizes of a layer's latent attention, where it has such."""
        if mixer is Mixer.SLIDING and self.sliding_latent_attention is not None:
            return self.sliding_latent_attention
        latent = self.latent_attention
        if mixer is Mixer.SHARED_INDEX and latent is not None and latent.indexer is not None:
            return replace(latent, indexer=replace(latent.indexer, is_own=False))
        return latent if mixer.is_attention else None

    def window_of(self, mixer: Mixer) -> int:
        """Return the tokens that a query of a layer sees, itself included; 0: all.

        A window as long as the sample hides nothing: kernels then run without one.
        Source: flash-attention, csrc/flash_attn/flash_api.cpp (window_size_left >= seqlen_k).
        """
        return self.sliding_window if mixer is Mixer.SLIDING and self.sliding_window < self.sequence_length else 0

    def query_heads(self, mixer: Mixer) -> int:
        """Return the query heads of a layer with attention."""
        return (self.sliding_query_heads if mixer is Mixer.SLIDING else 0) or self.num_attention_heads

    @property
    def shared_out(self) -> tuple[int, ...]:
        """Return the sizes that tensor-parallel ranks share out, beside those of attention, FFN and experts."""
        sizes: list[int] = []
        if self.mamba2 is not None:
            sizes.append(self.mamba2.num_groups)
        if self.gated_delta is not None:
            sizes.append(self.gated_delta.num_key_heads)
        if self.vision is not None:
            sizes += [self.vision.num_attention_heads, self.vision.ffn_hidden_size]
        return tuple(sizes)

    def token_mixer(self, mixer: Mixer) -> TokenMixer | None:
        """Return what a layer mixes its tokens with; None: plain attention, or nothing."""
        if mixer.is_attention:
            return self.latent_of(mixer)
        others: dict[Mixer, TokenMixer | None] = {
            Mixer.MAMBA2: self.mamba2,
            Mixer.GATED_DELTA: self.gated_delta,
            Mixer.RECURRENCE: self.recurrence,
        }
        return others.get(mixer)

    def keys_of(self, mixer: Mixer) -> int:
        """Return the keys of a query, masked or not, before an indexer chooses among them."""
        limits = {Mixer.SLIDING: self.sliding_window, Mixer.CHUNKED: self.attention_chunk}
        return min(limit for limit in (self.sequence_length, limits.get(mixer, 0), self.document_tokens) if limit)

    @property
    def norm_width(self) -> int:
        """Return the parameters of a norm per element."""
        is_layer_norm = self.normalization is Normalization.LAYER_NORM
        return self.norm_weights + (is_layer_norm if self.norm_biases is None else self.norm_biases)

    @property
    def learned_positions(self) -> bool:
        """Return whether positions are rows of a learned table."""
        return not self.rotary_fraction if self.positions is None else self.positions is Positions.LEARNED

    @property
    def only_kind(self) -> LayerKind | None:
        """Return the kind of all layers, None where they may differ."""
        patterns: tuple[tuple[object, ...], ...] = (self.layer_types, self.ffn_types, self.rotary_layers)
        alike = all(len(set(pattern)) < 2 for pattern in patterns) and not self.num_mtp_layers
        if not alike or (self.experts is not None and self.experts.num_dense_layers):
            return None
        return None if self.sliding_window_layers is not None else self.kind(0)

    def _mixer(self, layer: int) -> Mixer:
        if self.layer_types:
            return self.layer_types[layer % len(self.layer_types)]
        count = self.num_layers if self.sliding_window_layers is None else self.sliding_window_layers
        before, after = layer * count // self.num_layers, (layer + 1) * count // self.num_layers
        return Mixer.SLIDING if self.sliding_window and after > before else Mixer.FULL

    def _ffn(self, layer: int) -> Ffn:
        if self.ffn_types:
            return self.ffn_types[layer % len(self.ffn_types)]
        return Ffn.EXPERTS if self.experts is not None and layer >= self.experts.num_dense_layers else Ffn.DENSE

    def kind(self, layer: int) -> LayerKind:
        """Return what kind of layer stands at a position, counted from 0."""
        mixer, pattern = self._mixer(layer), self.rotary_layers
        rotates = not (pattern and mixer.is_attention) or pattern[layer % len(pattern)]
        return LayerKind(mixer, self._ffn(layer), rotates=rotates)

    @property
    def mtp_kind(self) -> LayerKind:
        """Return the kind of a layer that predicts a further token: that of the last one.

        Source: Megatron-LM, core/models/gpt/gpt_layer_specs.py, get_gpt_mtp_block_spec.
        """
        return self.kind(self.num_layers - 1)

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
            output_gate=self.attention_output_gate,
            context_parallel_size=context_parallel_size,
            sequence_parallel=sequence_parallel,
        )
