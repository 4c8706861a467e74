"""Read a configuration of llm_trainer: sections model, training and data, and ``prediction`` for what it cannot say.

Assumed, as llm_trainer trains: one process per device; replicas that reduce fp32 gradients beside the backward pass as
PyTorch's DistributedDataParallel does, or shard weights as FSDP2 does from zero_stage 2 on; samples of ``max_length``
tokens; in a pipeline the micro-batches of gradient accumulation. ``prediction`` may have

    system              published system, by name or folder
    world_size          processes, in place of training.world_size
    gpus_per_node       of them on a node; the system's if absent
    price_per_gpu_hour  in any currency

Source of names and defaults: llm_trainer/config/; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import PYTORCH_DDP, TORCHTITAN_FSDP2
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys

KEYS = "llm_trainer"
SECTIONS = ("model", "training", "data", "prediction")
ASKED = ("gpus_per_node", "price_per_gpu_hour", "system", "world_size")
# Defaults of the fields that a prediction needs.
MODEL: dict[str, Any] = {
    "vocab_size": 50000,
    "d_model": 768,
    "n_heads": 12,
    "n_layers": 12,
    "d_ff": 3072,
    "max_seq_len": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
    "pre_norm": True,
    "use_learned_pos_emb": False,
    "gradient_checkpointing": False,
    "use_bias": True,
    "n_kv_heads": None,
    "norm": "layer_norm",
    "position_encoding": None,
    "tie_word_embeddings": True,
}
TRAINING: dict[str, Any] = {
    "batch_size": 32,
    "max_steps": None,
    "optimizer": "adamw",
    "gradient_accumulation_steps": 1,
    "use_amp": True,
    "amp_dtype": "float16",
    "world_size": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "zero_stage": 0,
    "pipeline_schedule": "1f1b",
    "num_chunks": 1,
}
DATA: dict[str, Any] = {"max_length": 1024, "pack_sequences": True}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu",
    "relu": "gelu",
    "silu": "gelu",
    "swiglu": "swiglu",
    "geglu": "geglu",
}
OTHER_COST = ("relu", "silu")  # predicted as gelu, with a note
PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}
SCHEDULES = ("1f1b", "interleaved_1f1b", "zero_bubble_h1")
AMP = (
    "training.use_amp: predicted are 16-bit weights beside an fp32 copy, converted once a step; torch.autocast "
    "converts fp32 weights in every pass"
)


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of llm_trainer.

    Args:
        path: of its YAML or JSON file.
        num_gpus: processes, in place of the file's own.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    return translate(read_mapping(path), path.name, path.resolve().parent, num_gpus)


def translate(content: Mapping[str, Any], where: str, base: Path, num_gpus: int | None = None) -> Read:
    """Translate the content of a configuration of llm_trainer.

    Args:
        content: keys and values, null counting as absent.
        where: what messages call it.
        base: folder of the file; nothing in it is relative to that but ``prediction.system``, which is found later.
        num_gpus: processes, in place of the file's own.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    fields = Fields(content, where)
    sections = {name: fields.section(name) for name in SECTIONS}
    model, training, asked = sections["model"], sections["training"], sections["prediction"]
    notes: list[str] = []
    parallelism = _layout(training, asked, num_gpus)
    sequence_length = sections["data"].whole("max_length", DATA["max_length"], least=2)
    read_training = _training(training, model, notes)
    is_whole = parallelism["tensor_parallel_size"] == 1
    own: dict[str, Any] = {
        # Logits that tensor ranks split over the vocabulary have a loss of their own.
        "model": _model(model, sequence_length, notes) | {"loss": "torch" if is_whole else "vocabulary_parallel"},
        "parallelism": parallelism,
        "training": read_training,
    }
    if not sections["data"].switch("pack_sequences", DATA["pack_sequences"]):
        notes.append(f"data.pack_sequences false: predicted are samples of max_length, {sequence_length}, tokens")
    steps = training.optional_whole("max_steps")
    samples = read_training["micro_batch_size"] * read_training["num_micro_batches"] * parallelism["data_parallel_size"]
    budget = {} if steps is None else {"train_tokens": steps * samples * sequence_length}
    if asked.has("price_per_gpu_hour"):
        budget["price_per_gpu_hour"] = asked.real("price_per_gpu_hour", 0.0)
    own |= {"budget": budget} if budget else {}
    own |= {"system": asked.text("system", "")} if asked.has("system") else {}
    _rest(fields, sections, notes)
    return Read(own, tuple(notes))


def _model(model: Fields, sequence_length: int, notes: list[str]) -> dict[str, Any]:
    """Return the section ``model``."""
    longest = model.whole("max_seq_len", MODEL["max_seq_len"])
    if sequence_length > longest:
        raise model.error("max_seq_len", f"data.max_length is {sequence_length}; samples must not be longer")
    activation = model.text("activation", MODEL["activation"], ACTIVATIONS)
    if activation in OTHER_COST:
        notes.append(f"model.activation {activation}: predicted with the time of gelu")
    if not model.switch("pre_norm", MODEL["pre_norm"]):
        notes.append("model.pre_norm false: predicted with its norms in front, and with the last one, which it lacks")
    is_learned = model.switch("use_learned_pos_emb", MODEL["use_learned_pos_emb"])
    positions = model.text(
        "position_encoding", "learned" if is_learned else "sinusoidal", ("sinusoidal", "learned", "rope")
    )
    if positions == "sinusoidal":
        notes.append("model.position_encoding sinusoidal: predicted as learned positions")
    rotary = {"rotary_fraction": 1.0} if positions == "rope" else {"rotary_fraction": 0.0}
    rows = {} if positions == "rope" else {"num_position_embeddings": longest}
    heads = model.whole("n_heads", MODEL["n_heads"])
    return {
        "num_layers": model.whole("n_layers", MODEL["n_layers"]),
        "hidden_size": model.whole("d_model", MODEL["d_model"]),
        "num_attention_heads": heads,
        "num_key_value_heads": model.whole("n_kv_heads", heads),
        "ffn_hidden_size": model.whole("d_ff", MODEL["d_ff"]),
        "vocab_size": model.whole("vocab_size", MODEL["vocab_size"]),
        "sequence_length": sequence_length,
        "activation": ACTIVATIONS[activation],
        "normalization": model.text("norm", MODEL["norm"], ("layer_norm", "rms_norm")),
        "attention": "flash",
        **rotary,
        **rows,
        "biases": model.switch("use_bias", MODEL["use_bias"]),
        "hidden_dropout": model.real("dropout", MODEL["dropout"]),
        "attention_dropout": model.real("attention_dropout", MODEL["attention_dropout"]),
        "tied_embeddings": model.switch("tie_word_embeddings", MODEL["tie_word_embeddings"]),
    }


def _layout(training: Fields, asked: Fields, num_gpus: int | None) -> dict[str, Any]:
    """Return the layout: what tensor and pipeline ranks leave of all processes are replicas."""
    tp, pp = (training.whole(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline"))
    told = training.whole("world_size", TRAINING["world_size"])  # 1: as many as the launcher starts
    told = tp * pp if told == 1 else told
    world_size = asked.whole("world_size", told) if num_gpus is None else num_gpus
    if world_size % (tp * pp):
        raise ConfigError(
            f"{training.where}: world_size is {world_size}; tensor_parallel_size × pipeline_parallel_size, {tp * pp}, "
            f"must divide it. Try {tp * pp} or a multiple"
        )
    schedule = training.text("pipeline_schedule", TRAINING["pipeline_schedule"], SCHEDULES)
    chunks = training.whole("num_chunks", TRAINING["num_chunks"])
    zero_stage = training.whole("zero_stage", TRAINING["zero_stage"], least=0)
    defaults = TORCHTITAN_FSDP2 if zero_stage >= 2 else PYTORCH_DDP
    nodes = {"gpus_per_node": asked.optional_whole("gpus_per_node")} if asked.has("gpus_per_node") else {}
    return {
        **defaults.section("parallelism"),
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": world_size // (tp * pp),
        "zero_stage": zero_stage,
        **({"schedule": schedule, "virtual_pipeline_parallel_size": chunks} if pp > 1 else {}),
        **nodes,
    }


def _training(training: Fields, model: Fields, notes: list[str]) -> dict[str, Any]:
    """Return the section ``training``."""
    amp_dtype = training.text("amp_dtype", TRAINING["amp_dtype"], PRECISIONS)
    is_mixed = training.switch("use_amp", TRAINING["use_amp"])
    if is_mixed:
        notes.append(AMP)
    optimizer = training.text("optimizer", TRAINING["optimizer"], ("adamw", "adam", "sgd"))
    if optimizer == "sgd":
        notes.append("training.optimizer sgd: predicted with the step and the states of AdamW")
    is_recomputed = model.switch("gradient_checkpointing", MODEL["gradient_checkpointing"])
    return {
        "framework": "pytorch",
        "micro_batch_size": training.whole("batch_size", TRAINING["batch_size"]),
        "num_micro_batches": training.whole("gradient_accumulation_steps", TRAINING["gradient_accumulation_steps"]),
        "precision": PRECISIONS[amp_dtype] if is_mixed else "fp32",
        **({"recompute": "full", "recompute_stops_early": True} if is_recomputed else {"recompute": "none"}),
    }


def _rest(fields: Fields, sections: dict[str, Fields], notes: list[str]) -> None:
    """Check that every key is one of llm_trainer, and note those that a prediction leaves out.

    Raises:
        ConfigError: a key is not; the message names the nearest.
    """
    known = known_keys(KEYS)
    for name in fields.unused():
        raise ConfigError(f"{fields.where}: {name} is no section of llm_trainer.{nearest(name, SECTIONS)}")
    for name, holder in sections.items():
        for key in holder.unused():
            full = f"{name}.{key}"
            if full in known.noted:
                notes += [known.noted[full]] if holder.values[key] else []
            elif not known.is_irrelevant(full):
                usual = {*holder.used, *(path.partition(".")[2] for path in known.irrelevant if path.startswith(name))}
                raise holder.error(key, f"it is not a key of llm_trainer.{nearest(key, sorted(usual))}")
