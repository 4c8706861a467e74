"""Read the YAML files of a GPT-NeoX run: model, layout, batch and what of DeepSpeed's keys changes a step.

Source of names and defaults: EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py (calculate_derived),
neox_args.py and deepspeed_args.py; deepspeedai/DeepSpeed, runtime/pipe/engine.py and runtime/zero/stage_1_and_2.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.file_lines import with_line
from predictor.formats.gpt_neox.files import KEYS, OF_DEEPSPEED, Keys, joined, of_deepspeed
from predictor.formats.gpt_neox.model import model_section, ranks
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.source import Source

FAMILY = "gpt-neox"  # as predictor/core/workload/software.py spells it
BRAIN = ("bfloat16", "bf16")
BATCH = deepspeed.BATCH
OFFLOADED = ("offload_optimizer", "host_threads", "pinned_offload")
# How modules are shared out over stages; the default's pattern also matches the two functions around the layers.
PARTITIONS = {"type:transformer|mlp": "gpt_neox", "type:transformer": "uniform"}


def read(path: Path, content: dict[str, Any], num_gpus: int | None = None) -> Read:
    """Read a file of GPT-NeoX.

    Args:
        path: the file.
        content: its keys and values.
        num_gpus: GPUs of the run, from which the replicas follow; otherwise as the file says, if it does.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    return _read([(path.name, content)], num_gpus)


def read_files(sources: Sequence[Source], num_gpus: int | None = None) -> Read:
    """Read the files of one run together, as GPT-NeoX's launcher takes them.

    Raises:
        ConfigError: as of one file.
    """
    try:
        return _read([(source.path.name, source.content) for source in sources], num_gpus)
    except ConfigError as error:
        for source in sources:
            error = with_line(error, source)
        raise error from None


def _read(files: Sequence[tuple[str, dict[str, Any]]], num_gpus: int | None) -> Read:
    problems, notes = Problems(), list[str]()
    keys = joined(files, problems.lines, notes)
    unsaid: dict[str, str] = {}
    has_model, trains = keys.has("num_layers"), any(keys.has(key) for key in BATCH[:2])
    nothing = dict[str, Any]
    model = problems.part(nothing(), model_section, keys, notes, problems) if has_model else {}
    if not has_model:
        unsaid["model.num_layers"] = f"{keys.where} says no sizes of a model; give the file that has them beside it, or"
        keys.used |= {"vocab_file", "merge_file", "tokenizer_type"}
    elif "vocab_size" not in model:
        unsaid["model.vocab_size"] = f"{keys.where}: {keys.text('tokenizer_type', '')} says no vocabulary size"
    held = deepspeed.from_mapping({**of_deepspeed(keys), **_one_batch()}, keys.where, problems, builds_optimizer=False)
    notes += held.notes
    precision = _precision(keys, held)
    parallelism = problems.part(nothing(), _layout, keys, notes) | problems.part(
        nothing(), _zero, keys, held, precision, notes
    )
    training = problems.part(nothing(), _batch, keys, parallelism, num_gpus, unsaid)
    training |= {"precision": precision, **problems.part(nothing(), _recomputation, keys)}
    training |= {key: held.content["training"][key] for key in OFFLOADED if key in held.content["training"]}
    if not trains:  # another file has the training, or the user
        left = "parallelism.zero_stage", "training.micro_batch_size", "training.precision", "training.recompute"
        unsaid |= dict.fromkeys(left, f"{keys.where} says no batch; give the file that has the training beside it, or")
        parallelism = {key: parallelism[key] for key in parallelism if key in _degrees(keys)}
        training = {}
    _refuse_other_trainings(keys)
    notes += rest(known_keys(KEYS), "GPT-NeoX", [keys], OF_DEEPSPEED)
    problems.check()
    sections = {"model": model} if has_model else {}
    sections |= {"parallelism": parallelism, "training": training | {"framework": FAMILY}}
    return Read(sections, tuple(notes), unsaid=unsaid)


def _one_batch() -> dict[str, Any]:
    """Return batch keys that DeepSpeed's reader takes for said; GPT-NeoX finds them by rules of its own."""
    return {BATCH[0]: None, BATCH[1]: 1, BATCH[2]: None}


def _degrees(keys: Keys) -> dict[str, int]:
    """Return the degrees that a file says, also one without a training."""
    named = {"model_parallel_size": "tensor_parallel_size", "pipe_parallel_size": "pipeline_parallel_size"}
    return {ours: ranks(keys, theirs) for theirs, ours in named.items() if keys.has(theirs)}


def _layout(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return degrees and the split of layers over stages.

    Raises:
        ConfigError: the output projection is split over its input.
    """
    tp, pp = ranks(keys, "model_parallel_size"), ranks(keys, "pipe_parallel_size")
    method = keys.text("pipe_partition_method", next(iter(PARTITIONS)))
    layout: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "sequence_parallel": keys.switch("sequence_parallel") and tp > 1,
        "pipeline_parallel_size": pp,
        "context_parallel_size": keys.whole("context_parallel_size", 1),
        "expert_parallel_size": keys.whole("moe_expert_parallel_size", 1),
    }
    if pp > 1:
        layout["layers_per_stage"] = PARTITIONS.get(method, "uniform")
        if method not in PARTITIONS:
            notes.append(f"{keys.where}: pipe_partition_method {method}: stages are predicted with equal layers")
    if keys.text("output_layer_parallelism", "column", ("row", "column")) == "row" and tp > 1:
        rule = "an output projection split over its input is not modelled, nor run by releases from 2.0 on"
        raise keys.error("output_layer_parallelism", f"{rule}; write column")
    return layout


def _zero(keys: Keys, held: Read, precision: str, notes: list[str]) -> dict[str, Any]:
    """Return how states are shared out and gradients reduced.

    What stages 1 and 2 call reduce_scatter is counted as they run it (core.workload.sharding.reduces_in_buckets); a
    pipeline reduces once all micro-batches are through.

    Raises:
        ConfigError: a stage that pipelines do not take.
    """
    found = {key: value for key, value in held.content["parallelism"].items() if key != "data_parallel_size"}
    stage, pp = found.get("zero_stage", 0), ranks(keys, "pipe_parallel_size")
    if stage > 1 and pp > 1:
        raise keys.error("zero_optimization", f"its stage is {stage}; DeepSpeed's pipelines take 0 or 1")
    if pp > 1:
        found |= {"overlap_gradient_reduction": False, "overlap_parameter_gather": False} if stage else {}
    if precision == "bf16" and not stage:
        notes.append(f"{keys.where}: DeepSpeed's optimizer of bf16 shares out its states, as ZeRO-1 does")
        found |= {"zero_stage": 1, "gradient_reduction": "all_reduce", "fp32_gradients": True}
    return found


def _precision(keys: Keys, held: Read) -> str:
    """Return the precision: DeepSpeed's, or GPT-NeoX's own word for it."""
    written = keys.text("precision", "", ("fp16", "fp32", *BRAIN))
    half = keys.values.get("fp16")
    if written in BRAIN or (isinstance(half, dict) and half.get("type") in BRAIN):
        return "bf16"
    found = str(held.content["training"].get("precision", "fp32"))
    return "fp16" if written == "fp16" and found == "fp32" else found


def _batch(keys: Keys, layout: dict[str, Any], num_gpus: int | None, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the batch, and add the replicas to the layout; without accumulation or a total it is one micro-batch.

    Raises:
        ConfigError: the GPUs are no multiple of a model's ranks, or the batch is not divided evenly.
    """
    total, micro, rounds = (_count(keys, key) for key in BATCH)
    model_ranks = ranks(keys, "model_parallel_size") * ranks(keys, "pipe_parallel_size")
    model_ranks *= keys.whole("context_parallel_size", 1)
    said = _gpus(keys)
    gpus = num_gpus or said
    if gpus is not None and gpus % model_ranks:
        raise ConfigError(f"{keys.where}: {gpus} GPUs are no multiple of the ranks of a model, {model_ranks}")
    replicas = None if gpus is None else gpus // model_ranks
    if replicas is None and total and micro and rounds and not total % (micro * rounds):
        replicas = total // (micro * rounds)
    if replicas is None:
        unsaid["parallelism.data_parallel_size"] = f"{keys.where} says no number of GPUs, which its launcher counts"
    else:
        layout["data_parallel_size"] = replicas
    found: dict[str, Any] = {} if micro is None else {"micro_batch_size": micro}
    if micro is None and total is not None and replicas is not None:
        found["micro_batch_size"], left = divmod(total, replicas * (rounds or 1))
        if left:
            raise keys.error(BATCH[0], f"it must be a multiple of {replicas} replicas × {BATCH[2]}")
    elif micro is None:
        unsaid["training.micro_batch_size"] = f"{keys.where}: {BATCH[1]} follows from the number of GPUs"
    return found | ({"num_micro_batches": rounds or 1} if total is None else {"global_batch_size": total})


def _count(keys: Keys, key: str) -> int | None:
    """Return a batch size; one that DeepSpeed tunes is not said."""
    if keys.values.get(key) == "auto":
        keys.used.add(key)
        return None
    return keys.optional_whole(key)


def _gpus(keys: Keys) -> int | None:
    """Return the GPUs that a file says: all together, or of a node and the nodes."""
    whole = keys.optional_whole("global_num_gpus")
    each, nodes = keys.optional_whole("num_gpus"), keys.whole("num_nodes", -1, least=-1)
    return whole or (each * nodes if each and nodes > 0 else None)


def _recomputation(keys: Keys) -> dict[str, Any]:
    """Return the keys of checkpointed layers; groups of them, split checkpoints and waits are theirs alone."""
    group = keys.whole("checkpoint_num_layers", 1)
    splits, waits = keys.switch("partition_activations"), keys.switch("synchronize_each_layer")
    if not keys.switch("checkpoint_activations"):
        return {"recompute": "none", "synchronize_each_layer": False}
    found: dict[str, Any] = {"recompute": "full", "synchronize_each_layer": waits}
    found |= {"recompute_group_layers": group} if group > 1 else {}
    return found | ({"partition_activations": True} if splits and ranks(keys, "model_parallel_size") > 1 else {})


def _refuse_other_trainings(keys: Keys) -> None:
    """Record a training that runs more than one forward and one backward pass of one model."""
    if keys.text("train_impl", "normal") not in ("normal", "rm"):
        rule = "its steps run a second model, or generate; write normal to predict the passes of the model alone"
        keys.broken(keys.error("train_impl", rule))
