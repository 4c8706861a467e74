"""The trainer's configuration of a predictor's run: the inverse of the reader in predictor/formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.exceptions import ModelConfigurationError
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.workload.layout import RANK_ORDER
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Optimizer, Recompute
from predictor.core.workload.special_features import special_features
from predictor.core.workload.switches import QkNorm
from predictor.core.workload.transformer import Attention, Biases, Loss, Normalization

# Normalizations that the trainer's modules run. nn.RMSNorm is one kernel where torch has one for the device.
NORMS = {
    Normalization.LAYER_NORM: "layer_norm",
    Normalization.RMS_NORM: "rms_norm",
    Normalization.FUSED_RMS_NORM: "rms_norm",
}
SCHEDULES = {"1f1b": "1f1b", "interleaved_1f1b": "interleaved_1f1b", "zero_bubble_h1": "zero_bubble_h1"}
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = 1e-4, 0.1, 1.0  # they do not change the time of a step


class MeasuredConfig(NamedTuple):
    """What is run and recorded.

    Attributes:
        content: in the predictor's full form, without the system.
        run: what it means.
    """

    content: dict[str, Any]
    run: TrainingRun
    model: ModelConfig
    training: TrainingConfig


def _loss(run: TrainingRun) -> Loss:
    """Return the loss that the trainer runs: torch's own, or that of logits which are split over the vocabulary."""
    return Loss.TORCH if run.layout.tensor_parallel_size == 1 else Loss.VOCABULARY_PARALLEL


def unsupported(run: TrainingRun) -> list[str]:
    """Return the settings of a run that the trainer does not have, as the predictor's configuration names them."""
    model, layout = run.model, run.layout
    refused = {
        "context_parallel_size above 1": layout.context_parallel_size > 1,
        "expert_parallel_size above 1": layout.expert_parallel_size > 1,
        f"rank_order {', '.join(layout.rank_order)} (use {', '.join(RANK_ORDER)})": layout.rank_order != RANK_ORDER,
        "sequence_parallel": run.sequence_parallel,
        f"schedule {run.schedule}": run.schedule not in SCHEDULES,
        "layers_per_stage that differ": len({layers for chunks in run.chunk_layers for layers in chunks}) > 1,
        "recompute_group_layers above 1": run.recompute_group_layers > 1,
        "offload_optimizer": run.offload_optimizer > 0.0,
        f"optimizer {run.optimizer}": run.optimizer is not Optimizer.ADAM,
        "reference_model": run.reference_model is not None,
        "offload_parameters": run.offload_parameters,
        "offload_activation_layers": run.offload_activation_layers > 0,
        "offload_activations": run.offload_activations,
        "offload_modules": bool(run.offload_modules),
        f"recompute {run.recompute} (use none or full)": run.recompute is Recompute.SELECTIVE,
        "partition_activations": run.partition_activations,
        "synchronize_each_layer": run.synchronize_each_layer,
        "moe": model.experts is not None,
        "sliding_window": model.sliding_window > 0,
        f"attention {model.attention} (use flash)": model.attention is not Attention.FLASH,
        "causal: false": not model.causal,
        f"rotary_fraction {model.rotary_fraction:g} (use 0 or 1)": model.rotary_fraction not in (0.0, 1.0),
        f"head_dim {model.head_dim} (use hidden_size / num_attention_heads)": (
            model.head_dim * model.num_attention_heads != model.hidden_size
        ),
        "biases: qkv (use true or false)": model.biases is Biases.QKV,
        "parallel_residual": model.parallel_residual,
        "qk_norm": model.qk_norm is not QkNorm.NONE,
        "post_norms": model.post_norms,
        "layer_operators": model.layer_operators is not None,
        f"loss {model.loss} (use {_loss(run)} with tensor_parallel_size {layout.tensor_parallel_size})": (
            model.loss is not _loss(run)
        ),
    }
    beyond = special_features(model) + (["lora"] if run.lora is not None else [])
    return [name for name, is_refused in refused.items() if is_refused] + beyond


def model_config(run: TrainingRun) -> ModelConfig:
    """Return the trainer's model of a run."""
    model = run.model
    positions = model.num_position_embeddings or model.sequence_length
    return ModelConfig(
        vocab_size=model.vocab_size,
        d_model=model.hidden_size,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.key_value_heads,
        n_layers=model.num_layers,
        d_ff=model.ffn_hidden_size,
        max_seq_len=model.sequence_length if model.rotary_fraction else positions,
        dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        activation=str(model.activation),
        norm=NORMS[model.normalization],
        position_encoding="rope" if model.rotary_fraction else "learned",
        use_bias=model.biases is Biases.ALL,
        tie_word_embeddings=model.tied_embeddings,
        gradient_checkpointing=run.recompute is Recompute.FULL,
    )


def task_names(run: TrainingRun) -> dict[str, str]:
    """Return the predictor's names of the model's operators where they differ: what times a kernel names its task."""
    return {"rms_norm": run.model.normalization.operator, "geglu": "swiglu"}


def is_compiled(run: TrainingRun) -> bool:
    """Return whether the model runs through torch.compile, which fuses what eager PyTorch runs kernel by kernel."""
    return run.model.fused_side_kernels or run.model.fused_rope


def training_config(run: TrainingRun) -> TrainingConfig:
    """Return the trainer's settings of a run."""
    layout = run.layout
    return TrainingConfig(
        batch_size=run.micro_batch_size,
        gradient_accumulation_steps=run.num_micro_batches,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
        lr_scheduler="constant",
        warmup_steps=0,
        warmup_ratio=0.0,
        max_steps=1,  # the recorder knows how many
        use_amp=run.precision != "fp32",
        amp_dtype="float16" if run.precision == "fp16" else "bfloat16",
        compile_model=is_compiled(run),
        save_steps=0,
        eval_strategy="no",
        report_to=["none"],
        dataloader_num_workers=0,
        world_size=layout.num_gpus,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        zero_stage=run.zero_stage if layout.data_parallel_size > 1 else 0,
        pipeline_schedule=SCHEDULES[run.schedule],
        num_chunks=run.virtual_pipeline_parallel_size,
    )


def read_measured_config(path: Path) -> MeasuredConfig:
    """Read a configuration in the predictor's full form, with or without a system.

    Raises:
        ModelConfigurationError: it is no configuration, or says something that the trainer does not have.
    """
    try:
        content = {key: value for key, value in read_mapping(path).items() if key not in ("system", "gpu", "budget")}
        config = validate({**content, "system": "the measured one"})
        run = to_run(config, config.parallelism.gpus_per_node or config_ranks(content))
    except (ConfigError, MissingKeyError, OSError, yaml.YAMLError) as error:
        raise ModelConfigurationError(f"{path}: {error}") from None
    refused = unsupported(run)
    if refused:
        raise ModelConfigurationError(f"{path}: llm_trainer does not have {'; '.join(refused)}")
    return MeasuredConfig(content, run, model_config(run), training_config(run))


def config_ranks(content: dict[str, Any]) -> int:
    """Return the ranks of a layout, which all lie on this node."""
    layout = content.get("parallelism") or {}
    sizes = [layout.get(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline", "data", "context")]
    product = 1
    for size in sizes:
        product *= size if isinstance(size, int) and size > 0 else 1
    return product
