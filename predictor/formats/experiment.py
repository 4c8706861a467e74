"""Read an experiment of model_training_framework: its sizes, its layout, its batch and how long it trains.

An experiment says what is trained, not how the training script does it. Assumed: one process per GPU, and replicas that
reduce gradients in fp32 beside the backward pass as PyTorch's DistributedDataParallel does, or shard them as FSDP2 does
from zero_stage 2 on. Assumed and said in a note: the usual decoder, where only its sizes are given.
``prediction.config`` holds keys of a full-form configuration that are on top of all that, or a whole configuration in
the short form that takes its place.

Source of names: model_training_framework/config/sections.py; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan import short_config
from predictor.core.schema.merging import clashing, merged
from predictor.core.schema.presets import preset_names
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import PYTORCH_DDP, TORCHTITAN_FSDP2
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys

KEYS = "experiment"
SECTIONS = ("data", "model", "optimizer", "prediction", "slurm", "training")
SIZES = {"hidden_size": "hidden_size", "num_layers": "num_layers", "num_heads": "num_attention_heads"}
MORE_SIZES = ("ffn_hidden_size", "num_key_value_heads", "vocab_size")
WHOLE_MODEL = {*SIZES.values(), "vocab_size", "normalization", "activation"}  # nothing of it is taken to be usual
ADAMS = ("adam", "adamw", "fused_adam", "fusedadam", "adamw_torch", "adamw_fused")
USUAL_DECODER = (
    "Of the model only sizes are known: predicted is a decoder with RMSNorm, rotary positions, flash attention, GELU, "
    "no biases"
)
STARTS_PROCESSES = re.compile(
    r"(?:^|[\s/])(?:torchrun|accelerate launch|deepspeed|composer|torch\.distributed\.(?:run|launch))\s"
)
GPUS = re.compile(r"(?:^|,)\s*(?:gres/)?gpu(?::[A-Za-z][^:,(]*)?(?:[:=](\d+))?(?=\s*(?:\(|,|$))")


def read(path: Path) -> Read:
    """Read an experiment.

    Args:
        path: of its YAML or JSON file.

    Raises:
        ConfigError: it has no sizes of a transformer, or something changes the cost in a way that is not modelled.
    """
    return translate(read_mapping(path), path.name, path.resolve().parent)


def translate(content: Mapping[str, Any], where: str, base: Path) -> Read:
    """Translate the content of an experiment.

    Args:
        content: keys and values, null counting as absent.
        where: what messages call it.
        base: folder that ``prediction.config`` is relative to.

    Raises:
        ConfigError: it has no sizes of a transformer, or something changes the cost in a way that is not modelled.
    """
    fields = Fields(content, where)
    sections = {name: fields.section(name) for name in SECTIONS}
    asked, price = sections["prediction"], sections["prediction"].get("price_per_gpu_hour")
    over = _own_configuration(asked, base)
    named = {"system": asked.get("system")} if asked.has("system") else {}
    if over is not None and "training_config" in over and short_config.is_short(over):
        return Read(over, (f"{where}: prediction.config is predicted as it is, its other sections are not",))
    notes: list[str] = []
    model = _model(sections, over or {}, notes)
    command = fields.text("command", "")
    parallelism = _layout(sections, command, [] if "gpus_per_node" in (over or {}).get("parallelism", {}) else notes)
    samples = sections["training"].whole("batch_size") * sections["training"].whole("gradient_accumulation_steps", 1)
    samples *= parallelism["data_parallel_size"]
    training = {
        "micro_batch_size": sections["training"].whole("batch_size"),
        "num_micro_batches": sections["training"].whole("gradient_accumulation_steps", 1),
        "precision": sections["training"].text("precision", "fp32"),
    }
    optimizer = sections["optimizer"].text("name", "adamw")
    if optimizer.lower() not in ADAMS:
        notes.append(f"optimizer.name {optimizer}: predicted with the step and the states of AdamW")
    steps = _num_steps(sections, samples)
    own: dict[str, Any] = {**named, "model": model, "parallelism": parallelism, "training": training}
    budget = {} if price is None else {"price_per_gpu_hour": price}
    if steps is not None and "sequence_length" in model:
        budget["train_tokens"] = steps * samples * model["sequence_length"]
    elif steps is None:
        notes.append("The number of steps is not known: set training.max_steps, or data.num_samples beside epochs")
    _rest(fields, sections)
    return Read(_laid_over(own | ({"budget": budget} if budget else {}), over or {}, notes), tuple(notes))


def num_steps(content: Mapping[str, Any]) -> int | None:
    """Return the steps (parameter updates) of an experiment; None where it does not say how many samples it has.

    An epoch gives every replica an equal share of the samples, rounded up, and ends with a step on what is left.
    """
    fields = Fields(content, "the experiment")
    sections = {name: fields.section(name) for name in SECTIONS}
    training = sections["training"]
    per_replica = training.whole("batch_size") * training.whole("gradient_accumulation_steps", 1)
    return _num_steps(sections, per_replica * _layout(sections, fields.text("command", ""), [])["data_parallel_size"])


def _num_steps(sections: dict[str, Fields], samples_per_step: int) -> int | None:
    training, data = sections["training"], sections["data"]
    limit, epochs = training.optional_whole("max_steps"), training.optional_whole("epochs")
    num_samples = data.optional_whole("num_samples")
    if epochs is None or num_samples is None:
        return limit
    steps = epochs * ceil(num_samples / samples_per_step)
    return steps if limit is None else min(limit, steps)


def _own_configuration(asked: Fields, base: Path) -> dict[str, Any] | None:
    """Return the keys of ``prediction.config``: a mapping, or the content of a file."""
    value = asked.get("config")
    if value is None or isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise asked.error("config", "expected a configuration file of the predictor, or a mapping of its keys")
    if not (base / value).is_file():
        raise asked.error("config", f"there is no such file in {base}")
    return read_mapping(base / value)


def _model(sections: dict[str, Fields], over: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    section, training, data = sections["model"], sections["training"], sections["data"]
    name = section.text("name", "")
    sizes = {ours: section.optional_whole(theirs) for theirs, ours in SIZES.items()}
    sizes |= {key: section.optional_whole(key) for key in MORE_SIZES}
    dropout = section.real("dropout", 0.0)
    found: dict[str, Any] = {key: value for key, value in sizes.items() if value is not None}
    lengths = [holder.optional_whole("sequence_length") for holder in (training, data)]
    if None not in lengths and lengths[0] != lengths[1]:
        raise training.error("sequence_length", f"data.sequence_length is {lengths[1]}; give one of them")
    length = lengths[0] or lengths[1]
    told = over.get("model")
    keys = told if isinstance(told, dict) else {}
    is_preset = not any(sizes.values()) and name in preset_names()
    is_told = "from" in over or isinstance(told, str) or "preset" in keys
    if is_preset:
        found["preset"] = name
    elif not is_told and not keys.keys() >= WHOLE_MODEL:
        _check_sizes(section, sizes, keys)
        vocabulary = "" if sizes["vocab_size"] else ", a vocabulary of 50,257"
        notes.append(f"{USUAL_DECODER}{vocabulary}; keys of prediction.config.model say otherwise")
    if length is None and not is_told and "sequence_length" not in keys:
        raise ConfigError(f"{section.where}: training.sequence_length is missing; a prediction needs tokens per sample")
    found |= {"attention_dropout": dropout, "hidden_dropout": dropout} if dropout else {}
    return found | ({} if length is None else {"sequence_length": length})


def _check_sizes(section: Fields, sizes: dict[str, int | None], told: dict[str, Any]) -> None:
    """Check that a model has the sizes of a transformer.

    Raises:
        ConfigError: one is missing; the message names all that are, and a preset of nearly that name.
    """
    missing = [theirs for theirs, ours in SIZES.items() if sizes[ours] is None and ours not in told]
    if missing:
        name, sizes_missing = section.text("name", ""), ", ".join(f"model.{key}" for key in missing)
        raise ConfigError(
            f"{section.where}: model {name!r} cannot be predicted without {sizes_missing}. "
            f"A transformer can be, by its sizes, a preset, or prediction.config.{nearest(name, preset_names())}"
        )


def _layout(sections: dict[str, Fields], command: str, notes: list[str]) -> dict[str, Any]:
    """Return the layout: what tensor and pipeline ranks leave of all processes are replicas."""
    slurm, training = sections["slurm"], sections["training"]
    nodes, tasks = slurm.whole("nodes", 1), slurm.whole("ntasks_per_node", 1)
    per_node = processes_per_node(slurm.text("launcher", "srun"), command, slurm.get("gres"), tasks)
    tp, pp = training.whole("tensor_parallel_size", 1), training.whole("pipeline_parallel_size", 1)
    zero_stage = training.whole("zero_stage", 0, least=0)
    if nodes * per_node % (tp * pp):
        raise training.error(
            "tensor_parallel_size",
            f"times pipeline_parallel_size, {pp}, it must divide the processes of all nodes, {nodes * per_node}",
        )
    allocated = gpus_per_node(slurm.get("gres"))
    if allocated is not None and allocated != per_node:
        notes.append(
            f"slurm.gres asks for {allocated} GPUs per node, which {per_node} processes share: "
            f"predicted are {per_node}, one for each process"
        )
    replicas = TORCHTITAN_FSDP2 if zero_stage >= 2 else PYTORCH_DDP
    return {
        **replicas.section("parallelism"),
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": nodes * per_node // (tp * pp),
        "zero_stage": zero_stage,
        "gpus_per_node": per_node,
    }


def processes_per_node(launcher: str, command: str, gres: object, tasks_per_node: int) -> int:
    """Return the training processes of a node, one for each GPU.

    torchrun, or a command that starts its own processes (torchrun, accelerate launch, deepspeed …), starts one for each
    allocated GPU; srun and mpirun start the job's tasks.

    >>> processes_per_node("srun", "torchrun --nproc-per-node 4 train.py", "gpu:4", 1)
    4
    """
    if launcher in ("torchrun", "none") or STARTS_PROCESSES.search(command):
        return gpus_per_node(gres) or tasks_per_node
    return tasks_per_node


def gpus_per_node(gres: object) -> int | None:
    """Return the GPUs that Slurm's generic resources name; None where they name none.

    >>> gpus_per_node("gpu:4"), gpus_per_node("gpu:a100:2,nvme"), gpus_per_node("gpu"), gpus_per_node("nvme:1")
    (4, 2, 1, None)
    """
    found = [int(count or 1) for count in GPUS.findall(gres)] if isinstance(gres, str) else []
    return sum(found) or None


def _laid_over(own: dict[str, Any], over: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the translated sections under the keys of ``prediction.config``, with a note on those that differ."""
    if not over:
        return own
    told = over if not isinstance(over.get("model"), str) else {**over, "model": {"preset": over["model"]}}
    counts = told.get("training", {})
    if isinstance(counts, dict) and "global_batch_size" in counts and "num_micro_batches" not in counts:
        own = {**own, "training": {k: v for k, v in own["training"].items() if k != "num_micro_batches"}}
    differing = ", ".join(f"{key} {new} (not {old})" for key, old, new in clashing(own, told))
    if differing:
        notes.append(f"prediction.config counts where the experiment says something else: {differing}")
    return merged(own, told)


def _rest(fields: Fields, sections: dict[str, Fields]) -> None:
    """Check that every key is one of an experiment, so that a slip does not go unseen.

    Raises:
        ConfigError: one is not; the message names the nearest.
    """
    known = known_keys(KEYS)
    for name in fields.unused():
        if name not in SECTIONS and not known.is_irrelevant(name):
            top = {*SECTIONS, *known.irrelevant_prefixes, *(key for key in known.irrelevant if "." not in key)}
            raise ConfigError(f"{fields.where}: {name} is not a key of an experiment.{nearest(name, sorted(top))}")
    for name, holder in sections.items():
        for key in holder.unused():
            if not known.is_irrelevant(f"{name}.{key}"):
                usual = {*holder.used, *(path.partition(".")[2] for path in known.irrelevant if path.startswith(name))}
                raise holder.error(key, f"it is not a key of an experiment.{nearest(key, sorted(usual))}")
