"""Read a torchtitan job: model by name, parallelism and batch.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py and
torchtitan/distributed/pipeline_parallel.py.
"""

from __future__ import annotations

import tomllib
from math import ceil
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.schema.presets import preset
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import TORCHTITAN_DDP, TORCHTITAN_FSDP2
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys
from predictor.formats.torchtitan.precision import low_precision

FORMAT = "torchtitan TOML"
FAMILY = "torchtitan"  # as predictor/core/step/published_runs.yaml spells it
KEYS = "torchtitan"
SECTIONS = ("activation_checkpoint", "compile", "model", "optimizer", "parallelism", "training")
# Flavors by torchtitan's model name; a preset has torchtitan's name in lower case, but Llama 3 its release.
LLAMA_3 = {flavor: f"llama3.1-{flavor.lower()}" for flavor in ("8B", "70B", "405B")}
PRESETS = {
    "llama3": {"1B": "llama3.2-1b", "3B": "llama3.2-3b", **LLAMA_3},
    "qwen3": {
        flavor: f"qwen3-{flavor.lower()}"
        for flavor in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
    "deepseek_v3": {"671B": "deepseek-v3", "16B": "deepseek-v2-lite"},
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
    "kimi_k2_7": {"1T": "kimi-k2"},
}
REDUCED = ("float32", "bfloat16")  # precisions in which FSDP reduces gradients
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "all_forward_all_backward",
    "interleaved1f1b": "interleaved_1f1b",
    "loopedbfs": "looped_bfs",
}
LOOPED = ("interleaved_1f1b", "looped_bfs")  # with several stages on a rank
DISPATCHERS = ("deepep", "hybridep")  # beside torch's own exchange, "standard"
BACKENDS = ("_flex_attn", "_flex", "_varlen_attn", "_varlen", "_sdpa")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a torchtitan job.

    Args:
        path: the file.
        num_gpus: GPUs of the run, which settle a data_parallel_shard_degree of -1.

    Raises:
        ConfigError: the model has no preset, or something changes the cost in a way that is not modelled; the message
            has a line for each problem.
    """
    job, problems = _load(path), Problems()
    job.problems = problems.lines
    return from_job(job, problems, num_gpus, FORMAT, [])


def from_job(job: Fields, problems: Problems, num_gpus: int | None, name: str, notes: list[str]) -> Read:
    """Return what the sections of a job say.

    Args:
        job: the sections by name, which share the record of problems.
        problems: what is wrong.
        num_gpus: GPUs of the run.
        name: of the file's format.
        notes: notes so far.

    Raises:
        ConfigError: something is wrong; the message has a line for each problem.
    """
    sections = {section: job.section(section) for section in SECTIONS}
    _refuse(job, sections)
    unsaid: dict[str, str] = {}
    nothing = dict[str, Any]
    nobody: dict[str, Any] = {"preset": "llama3-8b"}
    model, layers = problems.part((nobody, 32), _model, sections["model"])
    model["sequence_length"] = sections["training"].whole("seq_len", 2048)
    layout = sections["parallelism"]
    parallelism = problems.part(nothing(), _degrees, layout, num_gpus, unsaid)
    parallelism |= problems.part(nothing(), _pipeline, layout, layers, notes)
    parallelism |= problems.part(nothing(), _replicas, layout, notes)
    training = problems.part(nothing(), _batch, sections, parallelism, notes) | _precision(sections["training"])
    has_experts = "moe" in preset(model["preset"])
    low, gathers = problems.part(
        (nothing(), nothing()), low_precision, job, sections["model"], sections["training"], has_experts, notes
    )
    training |= low | problems.part(nothing(), _recompute, sections["activation_checkpoint"])
    training |= _compiled(sections, notes) | _graphs(sections["training"]) | {"framework": FAMILY}
    parallelism |= gathers if parallelism.get("zero_stage") else {}
    if sections["training"].text("mixed_precision_reduce", "float32", REDUCED) == "bfloat16" and parallelism.get(
        "zero_stage"
    ):
        parallelism["fp32_gradients"] = False
    # Ranks that split the layers split the loss over the vocabulary, which has a kernel of its own.
    model["loss"] = "torch" if parallelism.get("tensor_parallel_size", 1) == 1 else "vocabulary_parallel"
    _rest(job, sections, notes)
    problems.check()
    content = {"model": model, "parallelism": parallelism, "training": training}
    return Read(content, tuple(notes), name, unsaid)


def _graphs(training: Fields) -> dict[str, bool]:
    return {"cuda_graphs": True} if training.switch("cuda_graphs") else {}


def _load(path: Path) -> Fields:
    try:
        return Fields(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _refuse(job: Fields, sections: dict[str, Fields]) -> None:
    for name, reason in known_keys(KEYS).refused.items():
        section, _, key = name.partition(".")
        holder = sections.get(section) or job.section(section)
        value = holder.values.get(key)
        if value and (value is True or value != 1):  # a degree of 1 is none
            holder.broken(holder.error(key, reason))
    optimizer = sections["optimizer"]
    if optimizer.text("name", "AdamW") not in ("Adam", "AdamW"):
        optimizer.broken(optimizer.error("name", "only Adam and AdamW are modelled"))


def _model(section: Fields) -> tuple[dict[str, Any], int]:
    """Return the section ``model``, without its sequence length, and its number of layers."""
    name, flavor = section.text("name", "llama3"), section.text("flavor", "debugmodel")
    for backend in BACKENDS:
        flavor = flavor.removesuffix(backend)
    chosen = _preset_of(section, name, flavor)
    return {"preset": chosen}, int(preset(chosen)["num_layers"])


def _preset_of(section: Fields, name: str, flavor: str) -> str:
    """Return the preset of a model and its flavor.

    Raises:
        ConfigError: there is none.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise section.error("name", f"it has no preset.{nearest(name, PRESETS)} Known: {known}")
    if flavor not in PRESETS[name]:
        known = ", ".join(PRESETS[name])
        raise section.error("flavor", f"it has no preset.{nearest(flavor, PRESETS[name])} Known of {name}: {known}")
    return PRESETS[name][flavor]


def _degrees(layout: Fields, num_gpus: int | None, unsaid: dict[str, str]) -> dict[str, Any]:
    splits_tokens = layout.switch("enable_sequence_parallel", True)
    tp, pp = layout.whole("tensor_parallel_degree", 1), layout.whole("pipeline_parallel_degree", 1)
    cp, ep = layout.whole("context_parallel_degree", 1), layout.whole("expert_parallel_degree", 1)
    replicate = layout.whole("data_parallel_replicate_degree", 1)
    shard = layout.whole("data_parallel_shard_degree", -1, least=-1)
    split = layout.whole("expert_tensor_parallel_degree", tp)
    keys: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "sequence_parallel": tp > 1 and splits_tokens,
        "pipeline_parallel_size": pp,
        "context_parallel_size": cp,
    }
    keys |= {"expert_parallel_size": ep} if ep > 1 else {}
    keys |= {"expert_tensor_parallel_size": split} if ep > 1 and split != tp else {}
    backend = layout.text("expert_parallel_comm_backend", "standard")
    if ep > 1 and backend != "standard":
        if backend not in DISPATCHERS:
            layout.broken(layout.error("expert_parallel_comm_backend", f"modelled: standard, {', '.join(DISPATCHERS)}"))
        keys["expert_dispatcher"] = backend
    dp = replicate * shard
    if num_gpus is not None:
        rest = num_gpus % (tp * pp * cp)
        if rest or (shard > 0 and dp * tp * pp * cp != num_gpus):
            raise ConfigError(
                f"{layout.where}: the degrees make {abs(dp) * tp * pp * cp} GPUs or a multiple; the run has {num_gpus}"
            )
        dp = num_gpus // (tp * pp * cp)
        if dp % replicate:
            raise layout.error("data_parallel_replicate_degree", f"it must divide the {dp} replicas of the run")
    if dp > 0:
        hybrid = {"zero_group_size": dp // replicate * cp} if replicate > 1 and dp * cp > replicate else {}
        return keys | {"data_parallel_size": dp} | hybrid
    unsaid["parallelism.data_parallel_size"] = (
        f"{layout.where}: data_parallel_shard_degree -1 takes the rest of the GPUs"
    )
    return keys


def _replicas(layout: Fields, notes: list[str]) -> dict[str, Any]:
    """Return how weights are sharded and gradients reduced: FSDP, over context-parallel ranks too, or DDP.

    Source: torchtitan/distributed/parallel_dims.py, fsdp_enabled.
    """
    policy = layout.text("fsdp_reshard_after_forward", "default", ("default", "always", "never"))
    is_whole = layout.whole("pipeline_parallel_degree", 1) == 1 if policy == "default" else policy == "always"
    overlaps = layout.switch("enable_async_tensor_parallel")
    rotation = layout.text("context_parallel_rotate_method", "allgather", ("allgather", "alltoall"))
    if rotation == "allgather" and layout.whole("context_parallel_degree", 1) > 1:
        notes.append("context_parallel_rotate_method allgather: keys and values are predicted to travel around a ring")
    splits = layout.whole("tensor_parallel_degree", 1) > 1
    keys: dict[str, Any] = {"overlap_tensor_parallel": overlaps, "overlap_linear_traffic": overlaps and splits}
    sharding = (layout.whole("data_parallel_shard_degree", -1, least=-1), layout.whole("context_parallel_degree", 1))
    if sharding == (1, 1):
        return keys | TORCHTITAN_DDP.section("parallelism")
    stays = {} if is_whole else {"reshard_after_forward": False}
    return keys | TORCHTITAN_FSDP2.section("parallelism") | {"fp32_parameters": True} | stays


def _pipeline(layout: Fields, layers: int, notes: list[str]) -> dict[str, Any]:
    pp = layout.whole("pipeline_parallel_degree", 1)
    name = layout.text("pipeline_parallel_schedule", "1F1B")
    first = layout.whole("pipeline_parallel_first_stage_less_layers", 1, least=0)
    last = layout.whole("pipeline_parallel_last_stage_less_layers", 1, least=0)
    per_stage = layout.optional_whole("pipeline_parallel_layers_per_stage")
    if pp == 1:
        return {}
    schedule = SCHEDULES.get(name.lower())
    if schedule is None:
        raise layout.error("pipeline_parallel_schedule", "only 1F1B, Interleaved1F1B, GPipe and LoopedBFS are modelled")
    is_looped = schedule in LOOPED
    stages = pp * (2 if is_looped else 1) if per_stage is None else ceil((layers + first + last) / per_stage)
    if stages % pp or (stages > pp) != is_looped:
        raise layout.error(
            "pipeline_parallel_layers_per_stage",
            f"it makes {stages} stages for {pp} ranks and {name}, which do not fit",
        )
    split = _split(layers, stages, first, last)
    if min(split) < 1:
        raise layout.error("pipeline_parallel_degree", f"{layers} layers do not fill its {stages} stages")
    if not is_looped:
        return {"schedule": schedule, "layers_per_stage": split}
    if len(set(split)) > 1:
        notes.append(f"stages of {min(split)} to {max(split)} layers are predicted as evenly as the layers divide")
    return {"schedule": schedule, "virtual_pipeline_parallel_size": stages // pp}


def _split(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Return layers per stage; the embedding counts as ``first`` layers and the output as ``last``."""
    each, extra = divmod(layers + first + last, stages)
    split = [each + (stage < extra) for stage in range(stages)]
    split[0] -= first
    split[-1] -= last
    return split


def _batch(sections: dict[str, Fields], parallelism: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    training, layout = sections["training"], sections["parallelism"]
    older = training.optional_whole("batch_size")
    local = training.whole("local_batch_size", 8 if older is None else older)
    total = training.whole("global_batch_size", -1, least=-1)
    micro = layout.whole("pipeline_parallel_microbatch_size", 1)
    if parallelism.get("pipeline_parallel_size", 1) == 1:
        return {"micro_batch_size": local} | ({"global_batch_size": total} if total > 0 else {"num_micro_batches": 1})
    if local % micro:
        raise training.error("local_batch_size", f"it must be a multiple of pipeline_parallel_microbatch_size, {micro}")
    dp = parallelism.get("data_parallel_size")
    if total > 0 and dp is not None and total != local * dp:
        raise training.error(
            "global_batch_size",
            f"the pipeline is drained between rounds of {local} × {dp}, which is not modelled; write {local * dp}",
        )
    if total > 0 and dp is None:
        notes.append(f"global_batch_size: predicted is one round of local_batch_size, {local}, per replica")
    return {"micro_batch_size": micro, "num_micro_batches": local // micro}


def _precision(training: Fields) -> dict[str, str]:
    name = training.text("mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
    training.text("dtype", "float32", ("float32",))  # of weights and states; 16 bits are not modelled
    return {"precision": "bf16" if name == "bfloat16" else "fp32"}


def _recompute(section: Fields) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation: whole layers, every so many of them, or by operator."""
    mode = section.text("mode", "selective", ("none", "selective", "full", "memory_budget"))
    option = str(section.get("selective_ac_option") or "2")
    if mode == "memory_budget":
        raise section.error("mode", "torch.compile's memory budget is not modelled; write none, selective or full")
    stops = {"recompute_stops_early": True} if section.switch("early_stop") and mode != "none" else {}
    if mode != "selective":
        return {"recompute": mode, **stops}
    if option == "op":
        return {"recompute": "per_op", **stops}
    if not option.isdigit() or int(option) < 1:
        raise section.error("selective_ac_option", "expected op, or a number such as 2 for every second layer")
    return {"recompute": "full", "recompute_every": int(option), **stops}


def _compiled(sections: dict[str, Fields], notes: list[str]) -> dict[str, bool]:
    """Return the key for compiled kernels; releases of 2024 had training.compile."""
    section = sections["compile"]
    if not (section.switch("enable") or sections["training"].switch("compile")):
        return {}
    parts = section.get("components")
    if parts is not None and "model" not in parts:
        notes.append("compile.components without model: predicted without compiled kernels")
        return {}
    if parts is not None and "loss" not in parts:
        notes.append("compile.components without loss: predicted with a compiled loss")
    return {"compiled": True}


def _rest(job: Fields, sections: dict[str, Fields], notes: list[str]) -> None:
    known = known_keys(KEYS)
    for name, values in job.values.items():
        holder = sections.get(name) or job.section(name)
        for key in holder.unused():
            full = f"{name}.{key}"
            if full in known.noted:
                notes += [known.noted[full]] if values[key] else []
            elif full in known.refused or known.is_irrelevant(full) or not values[key]:
                continue
            elif name in SECTIONS:
                usual = sorted(holder.used | {name.partition(".")[2] for name in known.irrelevant})
                rule = f"it is not known here.{nearest(key, usual)} Remove it if it changes no cost"
                holder.broken(holder.error(key, rule))
            else:
                notes.append(f"{full}: not used, as unknown")
