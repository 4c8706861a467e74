"""Keys of the section ``model`` that the architecture has as they stand in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Amount, Count, Probability, Switch, Syncs, words
from predictor.core.blocks.latent_attention import LatentAttention, SlidingLatentAttention
from predictor.core.blocks.mixers import Mixers
from predictor.core.blocks.per_layer_inputs import PerLayerInputs
from predictor.core.workload.encoder import Encoder
from predictor.core.workload.switches import Activation, Attention, Biases, Loss, Normalization, Positions, QkNorm
from predictor.core.workload.vision import Vision


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


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Sizes of layers that see all keys, where layers with a window have others (Gemma 4)."""

    num_key_value_heads: Annotated[Count | None, Field(description="heads of keys and values; as others if absent")] = (
        None
    )
    head_dim: Annotated[Count | None, Field(description="width of a head; as others if absent")] = None
    shared_key_values: Annotated[Switch, Field(description="one projection makes keys and values")] = False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a base alone
class ModelKeys(Mixers):
    """Sizes and switches of a model. The section checks them as a file is read, the architecture is built of them."""

    num_layers: Annotated[Count, Field(description="transformer layers")]
    hidden_size: Annotated[Count, Field(description="width of the residual stream, elements")]
    num_attention_heads: Annotated[Count, Field(description="query heads")]
    sequence_length: Annotated[Count, Field(description="tokens per sample")]
    activation: Annotated[Activation, Field(description="the FFN's non-linearity")] = Activation.GELU
    sliding_window_layers: Annotated[Count | None, Field(description="layers that have the window; all if absent")] = (
        None
    )
    normalization: Annotated[Normalization, Field(description="norm of a layer and of the output")] = (
        Normalization.RMS_NORM
    )
    attention: Annotated[Attention, Field(description="kernels that compute attention")] = Attention.FLASH
    causal: Annotated[Switch, Field(description="a token attends to earlier ones only")] = True
    parallel_residual: Annotated[Switch, Field(description="attention and FFN side by side (GPT-J)")] = False
    biases: Annotated[
        Biases,
        BeforeValidator(_biases),
        Field(description="linear layers with biases: false, true, qkv, attention or ffn"),
    ] = Biases.NONE
    qk_norm: Annotated[
        QkNorm,
        BeforeValidator(_qk_norm),
        Field(
            description="queries and keys are normalised: true per head, whole: over all heads, weightless: no "
            "parameters"
        ),
    ] = QkNorm.NONE
    post_norms: Annotated[Switch, Field(description="norms behind attention and FFN as well (Gemma 2)")] = False
    norm_weights: Annotated[Switch, Field(description="norms have weights")] = True
    norm_biases: Annotated[Switch | None, Field(description="norms have biases; a LayerNorm's if absent")] = None
    shared_input_norm: Annotated[Switch, Field(description="parallel attention and FFN share one norm (GPT-J)")] = False
    embedding_norm: Annotated[Switch, Field(description="a norm follows the embedding (BLOOM, BERT)")] = False
    final_norm: Annotated[Switch, Field(description="a norm precedes the output projection")] = True
    positions: Annotated[Positions | None, Field(description="as rotary_fraction says if absent")] = None
    lm_head_bias: Annotated[Switch, Field(description="the output projection has a bias")] = False
    other_parameters: Annotated[
        Amount, Field(description="parameters of small vectors that no key describes, all layers together; not timed")
    ] = 0
    attention_sinks: Annotated[Switch, Field(description="a learned score per head (gpt-oss)")] = False
    attention_head_gate: Annotated[Switch, Field(description="each head's output is gated (Laguna)")] = False
    attention_output_gate: Annotated[Switch, Field(description="attention's output is gated (Qwen 3-Next)")] = False
    latent_attention: Annotated[LatentAttention | None, Field(description="multi-head latent attention")] = None
    mamba2_beside_attention: Annotated[
        Switch, Field(description="layers with attention run Mamba-2 beside it (Falcon-H1)")
    ] = False
    differential_attention: Annotated[Switch, Field(description="attention is the difference of two")] = False
    full_attention: Annotated[FullAttention | None, Field(description="heads of layers without a window")] = None
    sliding_latent_attention: Annotated[
        SlidingLatentAttention | None, Field(description="latent attention of layers with a window")
    ] = None
    attention_experts: Annotated[
        Amount, Field(description="experts of attention's projections of queries and output (JetMoE)")
    ] = 0
    lm_head_transform: Annotated[
        Switch, Field(description="a dense layer, a non-linearity and a norm precede the output projection")
    ] = False
    per_layer_inputs: Annotated[PerLayerInputs | None, Field(description="embeddings that layers mix in")] = None
    num_mtp_layers: Annotated[Amount, Field(description="multi-token prediction modules (DeepSeek-V3)")] = 0
    encoder: Annotated[Encoder | None, Field(description="ends of a BERT encoder; needs causal: false")] = None
    vision: Annotated[
        Vision | None, BeforeValidator(words), Field(description="a vision tower in front of the first layer")
    ] = None
    attention_dropout: Annotated[Probability, Field(description="probability")] = 0.0
    hidden_dropout: Annotated[Probability, Field(description="probability")] = 0.0
    fused_side_kernels: Annotated[Switch, Field(description="bias, dropout and residual addition in one kernel")] = (
        False
    )
    fused_rope: Annotated[Switch, Field(description="queries and keys are rotated in one kernel")] = False
    tied_embeddings: Annotated[Switch, Field(description="embedding and output projection share weights")] = False
    loss: Annotated[
        Loss,
        Field(
            description="cross entropy: vocabulary_parallel (Megatron-LM's single operations), torch's own, fused "
            "(Transformer Engine's kernel), fused_native (Megatron-LM's compiled ones), fused_linear (Liger "
            "Kernel's, with the output projection in chunks of tokens), or score: one number of a sample in place of "
            "the output projection (reward models)"
        ),
    ] = Loss.VOCABULARY_PARALLEL
    layer_operators: Annotated[
        tuple[str, ...] | None, Field(description="operators of a layer, instead of the usual")
    ] = None
    forward_all_reduces: Annotated[Syncs | None, Field(description="tensor-parallel all-reduces per layer forward")] = (
        None
    )
    backward_all_reduces: Annotated[Syncs | None, Field(description="the same backward")] = None
