"""The arguments of Megatron-LM that describe a model.

Source of names: NVIDIA/Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.plan.model import transformer
from predictor.core.schema.model_section import ModelSection
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.special_features import special_features
from predictor.core.workload.switches import Activation, Attention, Biases, Loss, Normalization, Positions, QkNorm
from predictor.formats.megatron.releases import Release
from predictor.formats.megatron.written_layers import expert_layers, layer_arguments

# Switches of non-linearities; that of GELU is none.
ACTIVATIONS = {
    Activation.GELU: "",
    Activation.SWIGLU: "--swiglu",
    Activation.GEGLU: "--quick-geglu",
    Activation.SQUARED_RELU: "--squared-relu",
}


FUSED_LOSSES = {Loss.FUSED_NATIVE: "native", Loss.FUSED: "te"}
NO_FUSED_LOSS_SINCE = "0.18"
# Fields beyond those of a plain model that arguments on kinds of layers and on positions say.
BY_LAYERS = ("layer_types", "ffn_types", "latent_attention", "mamba2", "attention_sinks", "num_mtp_layers", "positions")


def model_arguments(model: ModelSection, series: Release) -> list[str]:
    """Return the arguments of a model.

    Raises:
        ConfigError: Megatron-LM has none for a part of it.
    """
    beyond = [name for name in special_features(transformer(model)) if name not in BY_LAYERS]
    if beyond:
        raise ConfigError(
            f"Megatron-LM's arguments for {', '.join(f'model.{name}' for name in beyond)} are not written"
        )
    words = [
        f"--num-layers {model.num_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--num-attention-heads {model.num_attention_heads}",
        f"--seq-length {model.sequence_length}",
        f"--vocab-size {model.vocab_size}",
    ]
    if model.ffn_hidden_size is not None:
        words.append(f"--ffn-hidden-size {model.ffn_hidden_size}")
    elif model.activation.gated:  # Megatron-LM's own default is two thirds of what ours is
        words.append(f"--ffn-hidden-size {4 * model.hidden_size}")
    words += _attention(model)
    words += layer_arguments(model, series)
    words += _positions(model)
    words += _kernels(model, series)
    words += _switches(model)
    words += [f"--attention-dropout {model.attention_dropout:g}", f"--hidden-dropout {model.hidden_dropout:g}"]
    return words + (_experts(model.moe) if model.moe is not None else []) + expert_layers(model)


def _attention(model: ModelSection) -> list[str]:
    words = []
    groups = model.num_key_value_heads
    if model.latent_attention is not None:  # it has sizes of its own
        return []
    if groups is not None and groups != model.num_attention_heads:
        words += ["--group-query-attention", f"--num-query-groups {groups}"]
    if model.head_dim is not None:
        words.append(f"--kv-channels {model.head_dim}")
    if model.sliding_window is not None:
        words.append(f"--window-size {model.sliding_window - 1},0")
    return words


def _positions(model: ModelSection) -> list[str]:
    if model.positions is Positions.ALIBI:
        raise ConfigError("model.positions is alibi; Megatron-LM has rope, learned_absolute and none")
    if model.positions is Positions.NONE:
        return ["--position-embedding-type none", f"--max-position-embeddings {model.sequence_length}"]
    if model.rotary_fraction:
        share = [] if model.rotary_fraction == 1.0 else [f"--rotary-percent {model.rotary_fraction:g}"]
        rows = [f"--max-position-embeddings {model.sequence_length}"]
        return ["--position-embedding-type rope", *share, *rows, *_without_rotary(model)]
    rows = [f"--max-position-embeddings {model.num_position_embeddings or model.sequence_length}"]
    return ["--position-embedding-type learned_absolute", *rows]


def _without_rotary(model: ModelSection) -> list[str]:
    """Return the list of layers, of which Megatron-LM skips those with a 1."""
    pattern = model.rotary_layers
    if pattern is None or all(pattern):
        return []
    skips = [int(not pattern[layer % len(pattern)]) for layer in range(model.num_layers)]
    return [f"--no-rope-freq {','.join(map(str, skips))}"]


def _kernels(model: ModelSection, series: Release) -> list[str]:
    """Return the implementation of layers, attention and loss."""
    is_rms = model.normalization in (Normalization.RMS_NORM, Normalization.FUSED_RMS_NORM)
    is_local = model.normalization is Normalization.RMS_NORM or model.attention is not Attention.FLASH
    words = [f"--transformer-impl {'local' if is_local else 'transformer_engine'}"]
    if model.attention is Attention.FLASH:
        words += ["--use-flash-attn"] if is_local else ["--attention-backend auto"]
    elif model.attention is Attention.UNFUSED:
        words.append("--no-masked-softmax-fusion")
    words.append(f"--normalization {'RMSNorm' if is_rms else 'LayerNorm'}")
    if model.loss in (Loss.TORCH, Loss.TORCH_EAGER) or (model.loss is Loss.FUSED and series.has(NO_FUSED_LOSS_SINCE)):
        raise ConfigError(
            f"model.loss is {model.loss}; Megatron-LM's is fused_native or vocabulary_parallel, as releases from core "
            "0.18.2 on refuse Transformer Engine's fused loss"
        )
    if model.loss in FUSED_LOSSES:
        words += ["--cross-entropy-loss-fusion", f"--cross-entropy-fusion-impl {FUSED_LOSSES[model.loss]}"]
    if not model.fused_side_kernels:
        kernel = "swiglu" if model.activation is Activation.SWIGLU else "gelu"
        words += [f"--no-bias-{kernel}-fusion", "--no-bias-dropout-fusion"]
    if model.rotary_fraction and not model.fused_rope and not is_local:
        words.append("--no-rope-fusion")
    return words


def _switches(model: ModelSection) -> list[str]:
    if model.activation not in ACTIVATIONS:
        raise ConfigError(
            f"model.activation is {model.activation}; Megatron-LM's arguments have {', '.join(ACTIVATIONS)}"
        )
    if model.qk_norm not in (QkNorm.NONE, QkNorm.PER_HEAD):
        raise ConfigError(f"model.qk_norm is {model.qk_norm}; Megatron-LM's --qk-layernorm is per_head")
    switches = {
        ACTIVATIONS[model.activation]: bool(ACTIVATIONS[model.activation]),
        "--disable-bias-linear": model.biases is not Biases.ALL,
        "--add-qkv-bias": model.biases is Biases.QKV,
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--qk-layernorm": model.qk_norm is not QkNorm.NONE and model.latent_attention is None,
    }
    return [name for name, is_on in switches.items() if is_on]


def _experts(experts: MixtureOfExperts) -> list[str]:
    if experts.activation_clamp:
        raise ConfigError("Megatron-LM's arguments for model.moe.activation_clamp are not written")
    words = [
        f"--num-experts {experts.num_experts}",
        f"--moe-ffn-hidden-size {experts.expert_ffn_hidden_size}",
        f"--moe-router-topk {experts.experts_per_token}",
    ]
    if experts.router_bias:  # a correction without a loss, which goes with sigmoid scores alone
        words += ["--moe-router-enable-expert-bias", "--moe-router-score-function sigmoid"]
    if experts.shared_expert_ffn_hidden_size:
        words.append(f"--moe-shared-expert-intermediate-size {experts.shared_expert_ffn_hidden_size}")
    if experts.latent_size:
        words.append(f"--moe-latent-size {experts.latent_size}")
    if experts.shared_expert_gate:
        words.append("--moe-shared-expert-gate")
    if experts.capacity_factor is not None:
        words.append(f"--moe-expert-capacity-factor {experts.capacity_factor:g}")
    return words
