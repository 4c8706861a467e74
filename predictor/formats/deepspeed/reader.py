"""Read a DeepSpeed configuration: batch, precision, ZeRO stage and how gradients are reduced; it holds no model.

Source of names and defaults: deepspeedai/DeepSpeed, docs/_pages/config-json.md and deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import DEEPSPEED, DEEPSPEED_ZERO_3
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.source import load_json

FAMILY = "deepspeed"  # as predictor/core/workload/software.py spells it
KEYS = "deepspeed"
OPEN = ("pipeline", "tensor_parallel")  # sections whose further keys change no cost
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SECTIONS = ("activation_checkpointing", "bf16", "fp16", "optimizer", "pipeline", "tensor_parallel", "zero_optimization")
OPTIMIZERS = ("adam", "adamw", "fusedadam", "torch_adam")
MUON, GRAM = "muon", "gram"
COMPRESSED = ("onebitadam", "onebitlamb", "zerooneadam")
BUCKET = "zero_optimization.reduce_bucket_size"
# Keys whose « auto » follows from the model, from other files or from the configuration's own keys.
RESOLVED = frozenset({*BATCH, "fp16.enabled", "bf16.enabled", BUCKET})
FP32 = ("fp32", "float32", "torch.float32")


def read(path: Path, data_parallel_size: int | None = None) -> Read:
    """Read a DeepSpeed configuration.

    Args:
        path: the file.
        data_parallel_size: replicas, which together with two of the three batch sizes give the third.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled, is « auto » where nothing tells what it
            becomes, or contradicts another key; the message has a line for each.
    """
    problems = Problems()
    read = from_mapping(load_json(path), path.name, problems, data_parallel_size)
    problems.check()
    return read


def from_mapping(
    content: dict[str, Any],
    where: str,
    problems: Problems,
    data_parallel_size: int | None = None,
    *,
    builds_optimizer: bool = True,
) -> Read:
    """Return what the keys of a DeepSpeed configuration say, after recording what is wrong with them.

    Args:
        content: the keys.
        where: the file, for messages.
        problems: record of what is wrong.
        data_parallel_size: replicas.
        builds_optimizer: DeepSpeed does, so that its own optimizers can be named; otherwise the framework does.
    """
    auto = _take_auto(content, where, problems)
    fields = Fields(_without(content, auto), where, problems=problems.lines)
    sections = {name: fields.section(name) for name in SECTIONS}
    notes: list[str] = []
    nothing = dict[str, Any]
    empty: tuple[dict[str, Any], dict[str, Any], dict[str, str]] = ({}, {}, {})
    training, replicas, unsaid = problems.part(empty, _batch, fields, data_parallel_size, auto)
    parallelism: dict[str, Any] = replicas | problems.part(nothing(), _zero, fields, sections["zero_optimization"])
    parallelism |= problems.part(nothing(), _model_ranks, sections)
    keys: dict[str, Any] = {**training}
    keys |= problems.part(nothing(), _precision, fields, sections, unsaid, auto)
    keys |= problems.part(nothing(), _activations, sections, unsaid)
    stage = parallelism.get("zero_stage", 0)
    keys |= problems.part(nothing(), _offloading, sections["zero_optimization"], stage, notes)
    types = Fields(fields.values.get("data_types") or {}, fields.where, "data_types.")
    gradients = (fields.get("communication_data_type"), types.get("grad_accum_dtype"))
    if any(str(name).lower() in FP32 for name in gradients):
        parallelism["fp32_gradients"] = True
    keys |= problems.part(nothing(), _optimizer, sections["optimizer"], builds_optimizer)
    checked = [section for name, section in sections.items() if name not in OPEN]
    notes += rest(known_keys(KEYS), "DeepSpeed", (fields, *checked))
    derived: dict[str, Callable[[dict[str, Any]], Any]] = {"training.framework": lambda _: FAMILY}
    if BUCKET in auto and parallelism.get("zero_stage"):
        parallelism.pop("gradient_bucket_elements", None)
        derived["parallelism.gradient_bucket_elements"] = hidden_size_squared
    return Read({"parallelism": parallelism, "training": keys}, tuple(notes), unsaid=unsaid, derived=derived)


def hidden_size_squared(content: dict[str, Any]) -> int | None:
    """Return what transformers makes of « auto » for reduce_bucket_size, in elements; None without a model.

    Source: huggingface/transformers, src/transformers/integrations/deepspeed.py, trainer_config_finalize.
    """
    hidden = content.get("model", {}).get("hidden_size")
    return hidden * hidden if isinstance(hidden, int) else None


def _take_auto(content: dict[str, Any], where: str, problems: Problems) -> set[str]:
    """Return the keys that are « auto » and whose value follows from elsewhere; record the others that matter."""
    known = known_keys(KEYS)
    found: set[str] = set()

    def search(values: dict[str, Any], prefix: str) -> None:
        for key, value in values.items():
            name = f"{prefix}{key}"
            if value == "auto":
                found.add(name)
                if name not in RESOLVED and not known.is_irrelevant(name) and name not in known.noted:
                    problems.lines.append(
                        f"{where}: {name} is 'auto', which the trainer replaces when it starts; write what it becomes"
                    )
            if isinstance(value, dict) and not known.is_irrelevant(name):
                search(value, f"{name}.")

    search(content, "")
    return found


def _without(content: dict[str, Any], auto: set[str], prefix: str = "") -> dict[str, Any]:
    """Return a configuration without the keys that are « auto »."""
    return {
        key: _without(value, auto, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in content.items()
        if f"{prefix}{key}" not in auto
    }


def _is_on(value: Any) -> bool:
    """Return whether a value is true; a section is, unless its key enabled is false."""
    if isinstance(value, dict):
        return bool(value.get("enabled", bool(value)))
    return bool(value)


def _batch(fields: Fields, given: int | None, auto: set[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return keys of training and of parallelism, and the keys that the file leaves open.

    Raises:
        ConfigError: no batch size at all, or three that contradict each other.
    """
    total, micro, rounds = (fields.optional_whole(key) for key in BATCH)
    if total is None and micro is None and not {*BATCH} & auto:
        raise ConfigError(f"{fields.where}: train_batch_size or train_micro_batch_size_per_gpu must be given")
    dp = given
    if total is not None and micro is not None and rounds is not None:
        dp, rest = divmod(total, micro * rounds)
        if rest or dp < 1 or given not in (None, dp):
            product = f"{fields.values[BATCH[1]]} × {fields.values[BATCH[2]]} × {given or 'a whole number'}"
            raise fields.error(BATCH[0], f"it must be {BATCH[1]} × {BATCH[2]} × data_parallel_size, {product}")
    elif total is not None and given is not None:
        each, rest = divmod(total, given * (micro or rounds or 1))
        if rest or not each:
            raise fields.error(BATCH[0], f"it must be a multiple of what {given} replicas take at once")
        micro = micro or each
    training: dict[str, Any] = {} if micro is None else {"micro_batch_size": micro}
    if total is not None:
        training["global_batch_size"] = total
    elif not {BATCH[0], BATCH[2]} <= auto or rounds is not None:
        training["num_micro_batches"] = rounds or 1
    unsaid = {}
    if total is None and rounds is None and BATCH[2] in auto:
        training.pop("num_micro_batches", None)
        reason = f"{fields.where} leaves gradient_accumulation_steps to the trainer (auto)"
        unsaid["training.num_micro_batches"] = f"{reason}, or global_batch_size"
    if dp is None:
        unsaid["parallelism.data_parallel_size"] = f"{fields.where} says no number of GPUs"
    if micro is None:
        follows = f"{fields.where}: {BATCH[1]} is train_batch_size / gradient_accumulation_steps / data_parallel_size"
        trainers = f"{fields.where} leaves {BATCH[1]} to the trainer (auto)"
        unsaid["training.micro_batch_size"] = trainers if BATCH[1] in auto else follows
    return training, {} if dp is None else {"data_parallel_size": dp}, unsaid


def _zero(fields: Fields, zero: Fields) -> dict[str, Any]:
    stage = zero.whole("stage", 0, least=0)
    if zero.get("zero_hpz_partition_size") not in (None, 0, 1):
        rule = "a second copy of the weights for the backward pass (ZeRO++) is not modelled; remove it"
        zero.broken(zero.error("zero_hpz_partition_size", f"{rule} to predict without"))
    if stage > 3:
        raise zero.error("stage", "expected 0, 1, 2 or 3")
    parallelism: dict[str, Any] = {"zero_stage": stage}
    defaults = DEEPSPEED_ZERO_3 if stage == 3 else DEEPSPEED
    scatters = zero.switch("reduce_scatter", defaults.keys["gradient_reduction"] == "reduce_scatter")
    overlaps = zero.switch("overlap_comm", defaults.keys["overlap_gradient_reduction"])
    bucket = zero.whole("reduce_bucket_size", defaults.bucket_elements())
    groups = _mics(zero, stage)
    if stage == 0:
        return parallelism | {"gradient_reduction": "all_reduce"}
    return parallelism | {
        "gradient_reduction": "reduce_scatter" if scatters or stage == 3 else "all_reduce",
        "gradient_bucket_elements": bucket,
        "overlap_gradient_reduction": overlaps,
        # Stages 1 and 2 gather after the optimizer; stage 3 prefetches layer by layer.
        "overlap_parameter_gather": overlaps and stage == 3,
        **groups,
    }


def _device(zero: Fields, held: Fields, former: str) -> str:
    """Return where a section of ``zero_optimization`` keeps what it is of: none or cpu."""
    device = held.text("device", "cpu" if zero.switch(former) or held.values else "none")
    if device not in ("none", "cpu"):
        held.broken(held.error("device", "only cpu is modelled, or none to predict without"))
    return device


def _offloading(zero: Fields, stage: int, notes: list[str]) -> dict[str, Any]:
    """Return the keys of ``training`` on an optimizer and weights in host memory (ZeRO-Offload).

    Source: docs/_pages/config-json.md, runtime/zero/offload_config.py; the states of a share « ratio » move, and
    weights of stage 3 alone.
    """
    held, weights = zero.section("offload_optimizer"), zero.section("offload_param")
    zero.used |= {"offload_optimizer", "offload_param"}
    keys: dict[str, Any] = {}
    if _device(zero, weights, "cpu_offload_param") != "none" and stage == 3:
        keys = {"offload_parameters": True, "pinned_offload": weights.switch("pin_memory"), "framework": FAMILY}
    device = _device(zero, held, "cpu_offload")
    if held.switch("super_offload"):
        held.broken(held.error("super_offload", "SuperOffload is not modelled; set it to false to predict without"))
    share = held.real("ratio", 1.0)
    if device == "none" or not share:
        return keys
    notes.append(
        f"{zero.where}: the CPU updates {share:.0%} of the optimizer's states, on one thread a rank as launchers set "
        "(OMP_NUM_THREADS); --set host_threads=N says otherwise"
    )
    pinned = held.switch("pin_memory") or keys.get("pinned_offload", False)
    return keys | {"offload_optimizer": share, "host_threads": 1, "pinned_offload": pinned, "framework": FAMILY}


def _model_ranks(sections: dict[str, Fields]) -> dict[str, Any]:
    """Return the degrees that split a replica: AutoTP's ranks, and stages where a number says them.

    Source: docs/_tutorials/autotp-training.md; deepspeed/runtime/config.py, get_pipeline_config, whose "stages": "auto"
    leaves them to the model's code.
    """
    keys: dict[str, Any] = {}
    if (ranks := sections["tensor_parallel"].optional_whole("autotp_size", least=0)) is not None and ranks > 1:
        keys["tensor_parallel_size"] = ranks
    pipeline = sections["pipeline"]
    if pipeline.get("stages") != "auto" and (stages := pipeline.optional_whole("stages")) is not None and stages > 1:
        keys["pipeline_parallel_size"] = stages
    return keys


def _mics(zero: Fields, stage: int) -> dict[str, int]:
    """Return the key of groups that share out states and are replicas of each other (MiCS); -1: all replicas.

    Source: deepspeed/runtime/zero/mics.py; Zhang et al. 2022, arXiv:2205.00119.
    """
    size = zero.whole("mics_shard_size", -1, least=-1)
    if size < 1:
        return {}
    if stage != 3:
        raise zero.error("mics_shard_size", f"MiCS shards weights; it needs stage 3, not {stage}")
    return {"zero_group_size": size}


def _precision(fields: Fields, sections: dict[str, Fields], unsaid: dict[str, str], auto: set[str]) -> dict[str, Any]:
    if _is_on(fields.get("torch_autocast")) or _is_on(fields.get("amp")):
        unsaid["training.precision"] = f"{fields.where} lets PyTorch cast"
        return {}
    half, brain = sections["fp16"].switch("enabled"), sections["bf16"].switch("enabled")
    if half and brain:
        raise ConfigError(f"{fields.where}: fp16 and bf16 are both enabled; enable one of them")
    if not (half or brain) and {"fp16.enabled", "bf16.enabled"} & auto:
        unsaid["training.precision"] = f"{fields.where} leaves the precision to the trainer (auto)"
        return {}
    return {"precision": "fp16" if half else "bf16" if brain else "fp32"}


def _activations(sections: dict[str, Fields], unsaid: dict[str, str]) -> dict[str, Any]:
    section = sections["activation_checkpointing"]
    training: dict[str, Any] = {}
    if section.switch("partition_activations"):
        training["partition_activations"] = True
    if section.switch("synchronize_checkpoint_boundary"):
        training["synchronize_each_layer"] = True
    interval = sections["pipeline"].whole("activation_checkpoint_interval", 0, least=0)
    if interval > 1:
        raise sections["pipeline"].error(
            "activation_checkpoint_interval", "recomputing several layers from one checkpoint is not modelled; write 1"
        )
    if interval:
        return training | {"recompute": "full"}
    unsaid["training.recompute"] = f"{section.where}: whether activations are recomputed is the model's code's choice"
    return training


def _optimizer(optimizer: Fields, is_own: bool) -> dict[str, Any]:
    """Return the keys of ``training`` on Muon; its iterations are on squares unless « ns_method » says otherwise.

    Source: deepspeed/runtime/zero/muon/original_muon.py, muon_update.
    """
    name = optimizer.text("type", "AdamW").lower()
    if name in COMPRESSED:
        optimizer.broken(optimizer.error("type", "compressed gradients are not modelled; write AdamW"))
    if name == MUON and is_own:
        optimizer.used.add("params")
        if (method := optimizer.section("params").text("ns_method", GRAM)) != GRAM:
            optimizer.broken(optimizer.error("params.ns_method", f"only {GRAM} is modelled, not {method}"))
        return {"optimizer": MUON, "framework": FAMILY}
    if name not in (*OPTIMIZERS, *COMPRESSED):
        known = "Adam, AdamW and Muon" if is_own else "Adam and AdamW"
        optimizer.broken(optimizer.error("type", f"only {known} are modelled"))
    return {}
