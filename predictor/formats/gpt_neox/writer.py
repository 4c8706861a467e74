"""Write a configuration as GPT-NeoX's YAML.

Source of names: EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py and deepspeed_args.py. What no prediction
depends on (data, tokenizer, learning rate, iterations) is for another file beside it, as GPT-NeoX's launcher takes
several.
"""

from __future__ import annotations

from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.plan.model import transformer
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.special_features import special_features
from predictor.core.workload.switches import Activation, Attention, Biases, Normalization, Positions, QkNorm
from predictor.formats.deepspeed.writer import batch_and_precision, zero_section

HEAD = """\
# GPT-NeoX on {gpus} of {system}, as searched: python deepy.py train.py FILE YOURS.yml
# Yours to set in another file: tokenizer_type, vocab_file, data_path, optimizer, train_iters.
"""
ACTIVATIONS = {
    Activation.GELU: "gelu",
    Activation.SWIGLU: "swiglu",
    Activation.GEGLU: "geglu",
}
# Fields beyond those of a plain model that keys on the residual path and on positions say.
SAID = ("parallel_residual", "shared_input_norm", "positions", "biases")
OF_FFN, OF_ATTENTION = (Biases.ALL, Biases.FFN), (Biases.ALL, Biases.ATTENTION)
PARTITIONS = {"gpt_neox": "type:transformer|mlp", "uniform": "type:transformer"}


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the file's text.

    Args:
        config: a checked configuration.
        num_gpus: of the run.
        gpus_per_node: that it uses of a node.
        version: not told apart.

    Raises:
        ConfigError: GPT-NeoX has no keys for a part of it.
    """
    parallel = config.parallelism
    keys: dict[str, Any] = {
        "pipe_parallel_size": parallel.pipeline_parallel_size,
        "model_parallel_size": parallel.tensor_parallel_size,
        "num_gpus": min(num_gpus, gpus_per_node),
        "num_nodes": max(1, num_gpus // gpus_per_node),
    }
    if parallel.context_parallel_size > 1:
        keys["context_parallel_size"] = parallel.context_parallel_size
    if parallel.sequence_parallel:
        keys["sequence_parallel"] = True
    if parallel.pipeline_parallel_size > 1:
        keys["pipe_partition_method"] = _partition(config)
    keys |= _model(config.model)
    keys |= _training(config)
    head = HEAD.format(gpus=counted(num_gpus, "GPU"), system=config.system)
    return head + yaml.safe_dump(keys, sort_keys=False, width=110)


def _partition(config: RunConfig) -> str:
    """Return the pattern by which layers are shared out; what it gives is compared when the file is read back."""
    given = config.parallelism.layers_per_stage
    return PARTITIONS["gpt_neox" if given == "gpt_neox" else "uniform"]


def _model(model: ModelSection) -> dict[str, Any]:
    """Return the keys of a model.

    Raises:
        ConfigError: GPT-NeoX has none for a part of it.
    """
    beyond = [name for name in special_features(transformer(model)) if name not in SAID]
    if beyond or model.moe is not None:
        names = ", ".join(f"model.{name}" for name in beyond or ("moe",))
        raise ConfigError(f"GPT-NeoX's keys for {names} are not written")
    if model.activation not in ACTIVATIONS:
        raise ConfigError(f"model.activation is {model.activation}; GPT-NeoX has {', '.join(ACTIVATIONS)}")
    width = model.ffn_hidden_size or 4 * model.hidden_size
    is_rms = model.normalization is not Normalization.LAYER_NORM
    keys: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        **({} if model.num_key_value_heads is None else {"num_kv_heads": model.num_key_value_heads}),
        "intermediate_size": 3 * width if model.activation.gated else width,  # of a gate it keeps a third
        "activation": ACTIVATIONS[model.activation],
        "use_bias_in_mlp": model.biases in OF_FFN,
        "use_bias_in_attn_linear": model.biases in OF_ATTENTION,
        "seq_length": model.sequence_length,
        "max_position_embeddings": model.num_position_embeddings or model.sequence_length,
        "padded_vocab_size": model.vocab_size,
        "norm": "rmsnorm" if is_rms else "layernorm",
        **({"rmsnorm_fusion": True} if model.normalization is Normalization.FUSED_RMS_NORM else {}),
        "no_weight_tying": not model.tied_embeddings,
        "gpt_j_residual": model.parallel_residual,
        "gpt_j_tied": model.shared_input_norm,
        "bias_gelu_fusion": model.fused_side_kernels,
        "bias_dropout_fusion": model.fused_side_kernels,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
    }
    if model.qk_norm is not QkNorm.NONE:
        keys["use_qk_layernorm"] = True
    return keys | _attention(model) | _positions(model)


def _attention(model: ModelSection) -> dict[str, Any]:
    if model.attention is Attention.FLASH:
        window = {} if model.sliding_window is None else {"sliding_window_width": model.sliding_window}
        return {"attention_config": [[["flash"], model.num_layers]], **window}
    return {"scaled_upper_triang_masked_softmax_fusion": model.attention is Attention.FUSED_SOFTMAX}


def _positions(model: ModelSection) -> dict[str, Any]:
    if model.positions in (Positions.ALIBI, Positions.NONE):
        return {"pos_emb": str(model.positions)}
    if not model.rotary_fraction:
        return {"pos_emb": "learned"}
    return {"pos_emb": "rotary", "rotary_pct": model.rotary_fraction, "rope_fusion": model.fused_rope}


def _training(config: RunConfig) -> dict[str, Any]:
    """Return the keys of batch, precision, ZeRO and checkpointed layers."""
    training, zero = config.training, zero_section(config)
    keys = batch_and_precision(config)
    if training.precision == "bf16":
        keys["precision"] = "bfloat16"
    if training.precision == "bf16" and not zero["stage"]:  # of one replica; the optimizer of bf16 takes no other
        zero = {"stage": 1, "reduce_scatter": False}
    return keys | {"zero_optimization": zero} | _checkpoints(training)


def _checkpoints(training: TrainingSection) -> dict[str, Any]:
    if training.recompute not in (Recompute.NONE, Recompute.FULL):
        raise ConfigError(f"training.recompute is {training.recompute}; GPT-NeoX has none and full")
    if training.recompute is Recompute.NONE:
        return {"checkpoint_activations": False}
    return {
        "checkpoint_activations": True,
        "checkpoint_num_layers": training.recompute_group_layers,
        "partition_activations": training.partition_activations,
        "synchronize_each_layer": training.synchronize_each_layer,
    }
