"""What DeepSpeed does of a training that a script of Megatron-DeepSpeed starts: ZeRO, precision, stages, experts.

Source of names and defaults: deepspeedai/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed,
megatron/arguments.py; deepspeedai/DeepSpeed, runtime/bf16_optimizer.py and runtime/pipe/module.py.
"""

from __future__ import annotations

import json
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.megatron.command import Command
from predictor.formats.megatron.options import Options
from predictor.formats.shell.words import shown, without_unknown

FAMILY = "megatron-deepspeed"
SWITCHES = ("deepspeed", "zero-stage", "deepspeed-config")
# Arguments that Megatron-LM spells otherwise.
RENAMED = {
    "moe-expert-parallel-size": "expert-model-parallel-size",
    "moe-train-capacity-factor": "moe-expert-capacity-factor",
    "checkpoint-num-layers": "activations-checkpoint-num-layers",
    "num-key-value-heads": "num-query-groups",
    "pad-vocab-size-to": "padded-vocab-size",
    "pipe-parallel-size": "pipeline-model-parallel-size",  # this one and the other of the releases of 2020
    "topk": "moe-router-topk",
}
OFFLOADED = ("offload_optimizer", "host_threads", "pinned_offload")
FLASH = ("use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton")
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
PARTITIONS = {"type:transformer": False, "type:transformer|embedding": True}


def is_deepspeed(options: Options) -> bool:
    """Return whether DeepSpeed runs the training."""
    return any(options.has(key) for key in SWITCHES)


def prepare(options: Options) -> None:
    """Bring arguments of Megatron-DeepSpeed into Megatron-LM's words; one expert is none."""
    options.rename(RENAMED)
    values = dict(options.values)
    if options.names.get("num-query-groups"):  # as it was renamed, heads share keys and values
        values["group-query-attention"] = True
    if str(values.get("normalization")).lower() in NORMS:
        values["normalization"] = NORMS[str(values["normalization"]).lower()]
    flash = [key for key in FLASH if values.pop(key, False)]
    values |= {"use-flash-attn": True} if flash else {}
    if values.pop("cpu-optimizer", False):
        values["optimizer-cpu-offload"] = True
    values.setdefault("transformer-impl", "local")  # its layers are its own
    if values.get("num-experts") in ("1", 1, None):
        for key in ("num-experts", "expert-model-parallel-size", "moe-expert-capacity-factor"):
            values.pop(key, None)
    drops = not values.pop("disable-moe-token-dropping", False)
    if "num-experts" in values:
        values = {"moe-router-topk": 1, "moe-token-dispatcher-type": "alltoall", **values}
        values.setdefault("moe-expert-capacity-factor", 1.0)
    if not drops:
        values.pop("moe-expert-capacity-factor", None)
    options.values = values
    _every_nth_layer(options)


def _every_nth_layer(options: Options) -> None:
    """Take the layers that have experts: every n-th, counted from 1.

    Source: megatron/model/transformer.py, ParallelTransformer.
    """
    interval, layers = options.optional_whole("expert-interval"), options.optional_whole("num-layers")
    if "num-experts" not in options.values or "moe-layer-freq" in options.values or layers is None:
        return
    if interval is None:
        options.broken(
            ConfigError(
                f"{options.where}: --expert-interval is missing; releases differ in its default, 1 or 2: write it"
            )
        )
    pattern = [int((layer + 1) % (interval or 1) == 0) for layer in range(layers)]
    options.values = {**options.values, "moe-layer-freq": str(pattern)}


def overrides(
    command: Command, problems: Problems, notes: list[str], unsaid: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the keys of ``parallelism`` and ``training`` that DeepSpeed decides.

    Args:
        command: of the script, with the texts that it writes to files; one of them may be DeepSpeed's configuration.
        problems: record of what is wrong.
        notes: notes so far.
        unsaid: keys that are left open so far.
    """
    options = command.options
    file = options.values.get("deepspeed-config")
    options.used |= {"deepspeed-config", "deepspeed", "deepspeed-activation-checkpointing", "no-pipeline-parallel"}
    stage = options.optional_whole("zero-stage", least=0)
    held = _document(command)
    rounds = options.optional_whole("gas")
    content = held or {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage or 0}}
    read = deepspeed.from_mapping(content, options.where, problems, builds_optimizer=False)
    keys = {key: value for key, value in read.content["parallelism"].items() if key != "data_parallel_size"}
    notes += read.notes
    if held is None and stage is None:
        keys = {"zero_stage": None}
        unsaid["parallelism.zero_stage"] = (
            f"{options.where}: {shown(str(file))} is not in the script; give it in from as well, or"
        )
    elif options.switch("bf16") and not keys.get("zero_stage"):
        notes.append(f"{options.where}: DeepSpeed's optimizer of bf16 shares out its states, as ZeRO-1 does")
        keys |= {"zero_stage": 1, "gradient_reduction": "all_reduce", "fp32_gradients": True}
    keys |= _stages(options, notes)
    training: dict[str, Any] = {"framework": FAMILY, "fused_gradient_accumulation": False}
    for key in ("partition-activations", "synchronize-each-layer"):
        if options.switch(key):
            training[key.replace("-", "_")] = True
    if rounds is not None and not options.has("global-batch-size"):
        training["num_micro_batches"] = rounds
    training |= {key: read.content["training"][key] for key in OFFLOADED if key in read.content["training"]}
    if held and not options.has("global-batch-size") and "num_micro_batches" in read.content["training"]:
        training["num_micro_batches"] = read.content["training"]["num_micro_batches"]
    return {"parallelism": keys, "training": training}


def _document(command: Command) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration that a script writes itself; None where only a run knows its stage."""
    for text in command.documents:
        try:
            content = json.loads(without_unknown(text, "null"), strict=False)
        except ValueError:
            continue
        if isinstance(content, dict) and {"zero_optimization", *deepspeed.BATCH} & content.keys():
            zero = content.get("zero_optimization")
            if isinstance(zero, dict) and zero.get("stage", 0) is None:
                return None
            said = {key: value for key, value in content.items() if value is not None}
            return said if {*deepspeed.BATCH[:2]} & said.keys() else {**said, deepspeed.BATCH[1]: 1}
    return None


def _stages(options: Options, notes: list[str]) -> dict[str, bool]:
    """Return the keys of how layers are split over stages; the embedding at both ends may count as a layer."""
    written = str(options.get("pp-partition-method") or "type:transformer").strip("'\"")
    if options.whole("pipeline-model-parallel-size", 1) == 1:
        return {}
    if written not in PARTITIONS:
        notes.append(f"--pp-partition-method {written}: stages are predicted with as many layers each as divide evenly")
    return {"embedding_counts_as_layer": True, "loss_counts_as_layer": True} if PARTITIONS.get(written) else {}
