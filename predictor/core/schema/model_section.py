"""The model section of a configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from predictor.core.schema.fields import Amount, Count, Probability, Switch, Syncs, names
from predictor.core.schema.section import Section
from predictor.core.workload.switches import (
    Activation,
    Attention,
    Biases,
    Ffn,
    Loss,
    Mixer,
    Normalization,
    Positions,
    QkNorm,
)


def _biases(value: object) -> object:
    """Return the biases of a switch."""
    if isinstance(value, bool):
        return Biases.ALL if value else Biases.NONE
    if value in list(Biases):
        return value
    raise ValueError("expected false, true, qkv, attention or ffn")


def _qk_norm(value: object) -> object:
    """Return the norms of queries and keys of a switch."""
    if isinstance(value, bool):
        return QkNorm.PER_HEAD if value else QkNorm.NONE
    if value in list(QkNorm):
        return value
    raise ValueError("expected false, true, whole or weightless")


def _pattern(value: object) -> object:
    """Refuse a pattern that is no list of names, or an empty one."""
    names(value)
    if not value:
        raise ValueError("it is empty; list the layers of one period, or leave it out")
    return value


# Names of an enumeration; a string of a file is checked against it.
Pattern = BeforeValidator(_pattern)


class ExpertsSection(Section):
    """A mixture of experts in place of a layer's FFN."""

    num_experts: Count = Field(description="routed experts of a layer")
    experts_per_token: Count = Field(description="experts that each token visits (top-k)")
    expert_ffn_hidden_size: Count = Field(description="inner width of one expert")
    shared_expert_ffn_hidden_size: Amount = Field(default=0, description="inner width of all shared experts together")
    shared_expert_gate: Switch = Field(default=False, description="a learned gate scales the shared experts' output")
    num_dense_layers: Amount = Field(default=0, description="layers at the start that have an ordinary FFN")
    capacity_factor: float | None = Field(
        default=None, gt=0.0, le=1000.0, description="tokens an expert takes over its even share; absent: dropless"
    )
    load_imbalance: float | None = Field(
        default=None, ge=1.0, le=1000.0, description="busiest rank's tokens over the mean; absent: even"
    )
    activation_clamp: float | None = Field(default=None, gt=0.0, le=1e6, description="largest input of the gate")
    router_bias: Switch = Field(default=False, description="the router has a bias, or a trained correction, per expert")
    latent_size: Amount = Field(
        default=0, description="width to which tokens are projected on their way to experts; hidden_size if 0"
    )


class IndexerSection(Section):
    """Sparse attention in front of latent attention (DeepSeek-V3.2)."""

    num_heads: Count = Field(description="heads that score keys")
    head_dim: Count = Field(description="width of one of them")
    top_k: Count = Field(description="keys that attention sees")


class LatentSizesSection(Section):
    """Sizes of multi-head latent attention."""

    q_lora_rank: Amount | None = Field(default=None, description="width of the queries' latent; none if absent")
    kv_lora_rank: Count = Field(description="width of the latent of keys and values")
    qk_nope_head_dim: Count = Field(description="of a head's queries and keys, what is not rotated")
    qk_rope_head_dim: Count = Field(description="of a head's queries and keys, what is rotated")
    v_head_dim: Count = Field(description="width of a head's values")


class LatentAttentionSection(LatentSizesSection):
    """Multi-head latent attention (DeepSeek-V2)."""

    indexer: IndexerSection | None = Field(default=None, description="sparse attention")


class SlidingLatentAttentionSection(LatentSizesSection):
    """Multi-head latent attention of layers with a window, where it has other sizes."""

    num_attention_heads: Count = Field(description="query heads of those layers")


class Mamba2Section(Section):
    """Sizes of Mamba-2 layers."""

    num_heads: Count = Field(description="heads of the inner values")
    head_dim: Count = Field(description="width of one of them")
    state_size: Count = Field(description="width of a head's state")
    num_groups: Count = Field(default=1, description="groups of heads that share B and C")
    conv_kernel: Count = Field(default=4, description="tokens that the convolution sees")
    chunk_size: Count = Field(default=256, description="tokens of a chunk of the scan")
    conv_bias: Switch = Field(default=True, description="the convolution has a bias")
    gated_norm: Switch = Field(default=True, description="the gated values are normalised")


class GatedDeltaSection(Section):
    """Sizes of gated delta layers."""

    num_key_heads: Count = Field(description="heads of queries and keys")
    num_value_heads: Count = Field(description="heads of values")
    key_head_dim: Count = Field(description="width of a key")
    value_head_dim: Count = Field(description="width of a value")
    conv_kernel: Count = Field(default=4, description="tokens that the convolution sees")
    chunk_size: Count = Field(default=64, description="tokens of a chunk of the recurrence")
    channel_decay: Switch = Field(default=False, description="every channel of a key has a decay (Kimi Linear)")
    gate_rank: Amount = Field(default=0, description="width through which gate and decays are projected; 0: at once")


class RecurrenceSection(Section):
    """Sizes of recurrent layers that are neither Mamba-2 nor gated delta ones."""

    projections: tuple[tuple[Count, Count], ...] = Field(
        min_length=1, description="inputs and outputs of the linear layers; the last one writes the hidden state"
    )
    vectors: Amount = Field(default=0, description="parameters of convolutions, decays, norms and biases")
    streamed: Amount = Field(description="elements of a token that element-wise kernels read or write forward")


class FullAttentionSection(Section):
    """Sizes of layers that see all keys, where layers with a window have others (Gemma 4)."""

    num_key_value_heads: Count | None = Field(default=None, description="heads of keys and values; as others if absent")
    head_dim: Count | None = Field(default=None, description="width of a head; as others if absent")
    shared_key_values: Switch = Field(default=False, description="one projection makes keys and values")


class PerLayerInputsSection(Section):
    """Embeddings that every layer mixes in (Gemma 3n, Gemma 4)."""

    width: Count = Field(description="of a layer's own embedding of a token")
    vocab_size: Count = Field(description="rows of their table")


class EncoderSection(Section):
    """Ends of a BERT encoder."""

    token_types: Amount = Field(default=2, description="rows of the embedding of token types")
    pooler: Switch = Field(default=True, description="the first token passes a dense layer")
    mlm_head: Switch = Field(default=True, description="masked tokens are predicted")
    next_sentence_head: Switch = Field(
        default=False, description="whether two sentences follow each other is predicted"
    )


class VisionSection(Section):
    """A vision tower (ViT) in front of the first layer."""

    num_layers: Count = Field(description="layers of the tower")
    hidden_size: Count = Field(description="its width")
    ffn_hidden_size: Count = Field(description="inner width of its FFN")
    num_attention_heads: Count = Field(description="its heads")
    patch_size: Count = Field(description="edge of a patch, pixels")
    image_size: Count = Field(description="edge of an image, pixels")
    tokens_per_image: Count | None = Field(default=None, description="tokens of the sample that an image becomes")
    patches_per_token: Count | None = Field(default=None, description="the same as the patches that make a token")
    images_per_sample: Count = Field(default=1, description="images of a sample")
    gated: Switch = Field(default=False, description="its FFN has a gate")
    biases: Switch = Field(default=True, description="its linear layers have biases")
    normalization: Normalization = Field(default=Normalization.LAYER_NORM, description="what its norms are")
    num_position_embeddings: Amount | None = Field(default=None, description="rows of learned positions; one a patch")
    temporal_patch_size: Count = Field(default=1, description="frames of a patch, which an image is repeated to fill")
    pooled: Switch = Field(default=False, description="patches of a token are averaged, not joined")
    projection_widths: tuple[Count, ...] = Field(default=(), description="inner widths of the projection to the text")
    projections: Count = Field(default=1, description="projections to layers of the text model (DeepStack)")
    other_parameters: Amount = Field(default=0, description="parameters that no other key describes")
    trained: Switch = Field(default=True, description="its weights are updated")


class ModelSection(Section):
    """The model."""

    num_layers: Count = Field(description="transformer layers")
    hidden_size: Count = Field(description="width of the residual stream, elements")
    num_attention_heads: Count = Field(description="query heads")
    sequence_length: Count = Field(description="tokens per sample")
    ffn_hidden_size: Count | None = Field(default=None, description="inner width of the FFN; 4 × hidden_size if absent")
    num_key_value_heads: Count | None = Field(default=None, description="heads of keys and values; all if absent")
    head_dim: Count | None = Field(default=None, description="width of a head; hidden_size over the heads if absent")
    activation: Activation = Field(default=Activation.GELU, description="the FFN's non-linearity")
    sliding_window: Count | None = Field(default=None, description="tokens that a query sees; all if absent")
    sliding_window_layers: Count | None = Field(default=None, description="layers that have the window; all if absent")
    vocab_size: Count = Field(default=50257, description="tokens of the vocabulary, before padding")
    normalization: Normalization = Field(
        default=Normalization.RMS_NORM, description="norm of a layer and of the output"
    )
    attention: Attention = Field(default=Attention.FLASH, description="kernels that compute attention")
    causal: Switch = Field(default=True, description="a token attends to earlier ones only")
    rotary_fraction: float = Field(
        default=1.0, strict=True, ge=0.0, le=1.0, description="rotated share of a head; 0: learned positions"
    )
    rotary_layers: tuple[Switch, ...] | None = Field(
        default=None, description="layers whose attention is rotated, a pattern that repeats; all if absent"
    )
    num_position_embeddings: Count | None = Field(
        default=None, description="rows of learned positions; sequence_length if absent"
    )
    parallel_residual: Switch = Field(default=False, description="attention and FFN side by side (GPT-J)")
    biases: Annotated[Biases, BeforeValidator(_biases)] = Field(
        default=Biases.NONE, description="linear layers with biases: false, true, qkv, attention or ffn"
    )
    qk_norm: Annotated[QkNorm, BeforeValidator(_qk_norm)] = Field(
        default=QkNorm.NONE,
        description="queries and keys are normalised: true per head, whole: over all heads, weightless: no parameters",
    )
    post_norms: Switch = Field(default=False, description="norms behind attention and FFN as well (Gemma 2)")
    norm_weights: Switch = Field(default=True, description="norms have weights")
    norm_biases: Switch | None = Field(default=None, description="norms have biases; a LayerNorm's if absent")
    shared_input_norm: Switch = Field(default=False, description="parallel attention and FFN share one norm (GPT-J)")
    embedding_norm: Switch = Field(default=False, description="a norm follows the embedding (BLOOM, BERT)")
    final_norm: Switch = Field(default=True, description="a norm precedes the output projection")
    positions: Positions | None = Field(default=None, description="as rotary_fraction says if absent")
    lm_head_bias: Switch = Field(default=False, description="the output projection has a bias")
    other_parameters: Amount = Field(
        default=0, description="parameters of small vectors that no key describes, all layers together; not timed"
    )
    layer_types: Annotated[tuple[Mixer, ...], Pattern] | None = Field(
        default=None, description="token mixers of the layers, a pattern that repeats"
    )
    ffn_types: Annotated[tuple[Ffn, ...], Pattern] | None = Field(
        default=None, description="FFNs of the layers, a pattern that repeats"
    )
    attention_chunk: Count | None = Field(default=None, description="tokens of a chunk of chunked attention (Llama 4)")
    attention_sinks: Switch = Field(default=False, description="a learned score per head (gpt-oss)")
    attention_head_gate: Switch = Field(default=False, description="each head's output is gated (Laguna)")
    attention_output_gate: Switch = Field(default=False, description="attention's output is gated (Qwen 3-Next)")
    latent_attention: LatentAttentionSection | None = Field(default=None, description="multi-head latent attention")
    mamba2: Mamba2Section | None = Field(default=None, description="sizes of Mamba-2 layers")
    gated_delta: GatedDeltaSection | None = Field(default=None, description="sizes of gated delta layers")
    recurrence: RecurrenceSection | None = Field(default=None, description="sizes of other recurrent layers")
    mamba2_beside_attention: Switch = Field(
        default=False, description="layers with attention run Mamba-2 beside it (Falcon-H1)"
    )
    differential_attention: Switch = Field(default=False, description="attention is the difference of two")
    full_attention: FullAttentionSection | None = Field(default=None, description="heads of layers without a window")
    sliding_latent_attention: SlidingLatentAttentionSection | None = Field(
        default=None, description="latent attention of layers with a window"
    )
    attention_experts: Amount = Field(
        default=0, description="experts of attention's projections of queries and output (JetMoE)"
    )
    lm_head_transform: Switch = Field(
        default=False, description="a dense layer, a non-linearity and a norm precede the output projection"
    )
    per_layer_inputs: PerLayerInputsSection | None = Field(default=None, description="embeddings that layers mix in")
    num_mtp_layers: Amount = Field(default=0, description="multi-token prediction modules (DeepSeek-V3)")
    encoder: EncoderSection | None = Field(default=None, description="ends of a BERT encoder; needs causal: false")
    vision: VisionSection | None = Field(default=None, description="a vision tower in front of the first layer")
    attention_dropout: Probability = Field(default=0.0, description="probability")
    hidden_dropout: Probability = Field(default=0.0, description="probability")
    fused_side_kernels: Switch = Field(default=False, description="bias, dropout and residual addition in one kernel")
    fused_rope: Switch = Field(default=False, description="queries and keys are rotated in one kernel")
    tied_embeddings: Switch = Field(default=False, description="embedding and output projection share weights")
    loss: Loss = Field(
        default=Loss.VOCABULARY_PARALLEL,
        description="cross entropy: vocabulary_parallel (Megatron-LM's single operations), torch's own, fused "
        "(Transformer Engine's kernel), or fused_native (Megatron-LM's compiled ones)",
    )
    moe: ExpertsSection | None = Field(default=None, description="mixture of experts")
    layer_operators: tuple[str, ...] | None = Field(
        default=None, description="operators of a layer, instead of the usual"
    )
    forward_all_reduces: Syncs | None = Field(default=None, description="tensor-parallel all-reduces per layer forward")
    backward_all_reduces: Syncs | None = Field(default=None, description="the same backward")
