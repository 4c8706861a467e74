"""Read a torchtitan job: model by name, parallelism and batch.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py and torchtitan/train.py.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import ON_HOST
from predictor.formats.hub_models import shape_of
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.torchtitan.flavors import model_of, presets
from predictor.formats.torchtitan.layout import DISPATCHERS, degrees, pipeline, replicas
from predictor.formats.torchtitan.precision import low_precision

__all__ = ["DISPATCHERS", "PRESETS", "from_job", "read"]

FAMILY = "torchtitan"  # as predictor/core/step/published_runs.yaml spells it
KEYS = "torchtitan"
SECTIONS = ("activation_checkpoint", "compile", "model", "optimizer", "parallelism", "training")
PRESETS = presets()
REDUCED = ("float32", "bfloat16")  # precisions in which FSDP reduces gradients
BF16_STATES = 4  # bytes of two moments per parameter, whose weights are in 16 bits
READ_ELSEWHERE = frozenset(  # where there is a pipeline, adapters, checkpointing of some layers
    {
        "activation_checkpoint.selective_ac_option",
        "lora.rank",
        "lora.target_modules",
        "model.converters",
        "parallelism.num_pp_microbatches",
        "parallelism.pipeline_parallel_microbatch_size",
        "parallelism.pipeline_parallel_microbatches",
    }
)
OF_IMAGES = {
    "images_per_sample": "the number of images in a sample; one, unless it is said",
    "image_size": "the size of an image",
}
# Keys of releases of 2024, by today's: those of training, and beginnings of those of experimental.
OF_2024 = {
    "data_parallel_degree": "data_parallel_shard_degree",
    "data_parallel_shard_degree": "data_parallel_shard_degree",
    "data_parallel_replicate_degree": "data_parallel_replicate_degree",
    "tensor_parallel_degree": "tensor_parallel_degree",
}
EXPERIMENTAL = ("pipeline_parallel_", "context_parallel_", "enable_async_tensor_parallel")


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
    return from_job(job, problems, num_gpus, [])


def from_job(job: Fields, problems: Problems, num_gpus: int | None, notes: list[str]) -> Read:
    """Return what the sections of a job say.

    Args:
        job: the sections by name, which share the record of problems.
        problems: what is wrong.
        num_gpus: GPUs of the run.
        notes: notes so far.

    Raises:
        ConfigError: something is wrong; the message has a line for each problem.
    """
    _as_today(job)
    sections = {section: job.section(section) for section in SECTIONS}
    optimizer = sections["optimizer"]
    if optimizer.text("name", "AdamW") not in ("Adam", "AdamW"):
        optimizer.broken(optimizer.error("name", "only Adam and AdamW are modelled"))
    unsaid: dict[str, str] = {}
    nothing = dict[str, Any]
    layout, trained = sections["parallelism"], sections["training"]
    model = problems.part(nothing(), _model, sections["model"], unsaid)
    known = shape_of(model)
    model["sequence_length"] = _sequence_length(trained)
    parallelism = problems.part(nothing(), degrees, layout, num_gpus, unsaid)
    parallelism |= problems.part(nothing(), pipeline, layout, known.get("num_layers"))
    parallelism |= problems.part(nothing(), replicas, layout, notes)
    training = problems.part(nothing(), _batch, sections, parallelism, notes) | _precision(trained)
    low, gathers = problems.part((nothing(), nothing()), low_precision, job, sections["model"], trained, known, notes)
    training |= low | problems.part(nothing(), _recompute, sections["activation_checkpoint"])
    training |= _compiled(sections, notes) | _graphs(trained) | {"framework": FAMILY}
    parallelism |= gathers if parallelism.get("zero_stage") else {}
    if trained.switch("enable_cpu_offload") and parallelism.get("zero_stage") == 3:
        training |= ON_HOST
    if trained.text("mixed_precision_reduce", "float32", REDUCED) == "bfloat16" and parallelism.get("zero_stage"):
        parallelism["fp32_gradients"] = False
    if trained.get("dtype") == "bfloat16":
        notes.append("training.dtype bfloat16: the optimizer's step is predicted with moments in fp32")
        training["optimizer_state_bytes"] = BF16_STATES
        parallelism.pop("fp32_parameters", None)
    # Ranks that split the layers split the loss over the vocabulary, which has a kernel of its own.
    whole = "torch" if _compiles_loss(sections["compile"]) else "torch_eager"
    model["loss"] = whole if parallelism.get("tensor_parallel_size", 1) == 1 else "vocabulary_parallel"
    others = [job.section(name) for name in job.values if name not in sections]
    notes += rest(known_keys(KEYS), "torchtitan", [*sections.values(), *others], READ_ELSEWHERE)
    problems.check()
    content = {"model": model, "parallelism": parallelism, "training": training}
    return Read(content, tuple(notes), unsaid=unsaid)


def _graphs(training: Fields) -> dict[str, bool]:
    return {"cuda_graphs": True} if training.switch("cuda_graphs") else {}


def _load(path: Path) -> Fields:
    try:
        return Fields(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _as_today(job: Fields) -> None:
    """Move keys of releases of 2024 to where those of 2025 have them."""
    values = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in job.values.items()}
    training, tried = values.get("training") or {}, values.get("experimental") or {}
    if not isinstance(training, dict) or not isinstance(tried, dict):
        return
    layout = values.setdefault("parallelism", {})
    if isinstance(layout, dict):
        moved = {new: training.pop(old) for old, new in OF_2024.items() if old in training}
        moved |= {key: tried.pop(key) for key in list(tried) if key.startswith(EXPERIMENTAL)}
        if moved.get("pipeline_parallel_degree", 1) != 1 and moved.get("pipeline_parallel_microbatch_size") is None:
            moved.setdefault("pipeline_parallel_microbatches", moved["pipeline_parallel_degree"])
        values["parallelism"] = {**moved, **layout}
    job.values = values


def _sequence_length(training: Fields) -> int:
    """Return the tokens of a sample; releases since 2026 say the most that a document has."""
    length = training.optional_whole("max_context_length")
    return training.whole("seq_len", 2048 if length is None else length)


def _model(section: Fields, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the section ``model``, without its sequence length; of a model without sizes here nothing, with why."""
    name, flavor = section.text("name", "llama3"), section.text("flavor", "debugmodel")
    model, why = model_of(section, name, flavor)
    if why:
        unsaid["model.num_layers"] = f"{why}; take its config.json in front (from: [config.json, {section.where}]), or"
    if "vision" in model:
        unsaid |= {f"model.vision.{key}": f"{section.where}: its data say {what}" for key, what in OF_IMAGES.items()}
    further = section.optional_whole("num_mtp_layers")
    return model | ({} if further is None else {"num_mtp_layers": further})


def _batch(sections: dict[str, Fields], parallelism: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the keys of ``training`` on the batch.

    Raises:
        ConfigError: micro-batches do not divide it, or the pipeline is drained several times a step.
    """
    training, layout = sections["training"], sections["parallelism"]
    key, unit = "global_batch_size", ""
    pp, dp = parallelism.get("pipeline_parallel_size", 1), parallelism.get("data_parallel_size")
    if training.has("num_tokens_per_microbatch_per_dp_rank") or training.has("max_context_length"):
        micro, rounds, total = _in_tokens(training)
        rounds = layout.whole("num_pp_microbatches", 1) if pp > 1 else rounds
        key, unit = "num_tokens_per_train_step", f" × {_sequence_length(training)}"
    else:
        older = training.optional_whole("batch_size")
        local = training.whole("local_batch_size", 8 if older is None else older)
        total = training.whole("global_batch_size", -1, least=-1)
        micro, rounds = (local, 1) if pp == 1 else _micro_batches(training, layout, local)
    if pp == 1:
        return {"micro_batch_size": micro} | ({"global_batch_size": total} if total > 0 else {"num_micro_batches": 1})
    if total > 0 and dp is not None and total != micro * rounds * dp:
        raise training.error(
            key,
            f"the pipeline is drained between rounds of {micro * rounds} × {dp}{unit}, which is not modelled; write "
            f"{micro * rounds * dp}{unit}",
        )
    if total > 0 and dp is None:
        notes.append(f"{key}: predicted is one round of {micro * rounds} samples per replica")
    return {"micro_batch_size": micro, "num_micro_batches": rounds}


def _micro_batches(training: Fields, layout: Fields, local: int) -> tuple[int, int]:
    """Return size and number of a pipeline's micro-batches; releases of 2024 say their number."""
    number = layout.optional_whole("pipeline_parallel_microbatches")
    micro = local // number if number and local % number == 0 else layout.whole("pipeline_parallel_microbatch_size", 1)
    if local % micro:
        raise training.error("local_batch_size", f"it must be a multiple of pipeline_parallel_microbatch_size, {micro}")
    return micro, local // micro


def _in_tokens(training: Fields) -> tuple[int, int, int]:
    """Return samples of a micro-batch, micro-batches and samples of a step, -1 where it is not said.

    Raises:
        ConfigError: tokens are no whole samples.
    """
    tokens = training.whole("num_tokens_per_microbatch_per_dp_rank", 16384)
    total = training.whole("num_tokens_per_train_step", -1, least=-1)
    length = _sequence_length(training)
    for key, value in (("num_tokens_per_microbatch_per_dp_rank", tokens), ("num_tokens_per_train_step", total)):
        if value > 0 and value % length:
            raise training.error(key, f"only whole samples of max_context_length, {length}, are modelled")
    return tokens // length, 1, total // length if total > 0 else -1


def _precision(training: Fields) -> dict[str, str]:
    name = training.text("mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
    training.text("dtype", "float32", ("float32", "bfloat16"))  # of weights and states
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
    return {"compiled": True}


def _compiles_loss(section: Fields) -> bool:
    """Return whether the loss is compiled wherever the model is."""
    parts = section.get("components")
    return parts is None or "loss" in parts or "model" not in parts
