"""A search question (model, GPUs, global batch) and the search problem that it becomes: a space of layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from predictor.base.errors import ConfigError
from predictor.base.sizes import LARGEST, LARGEST_RUN_GPUS, whole
from predictor.configuration.finding import published
from predictor.configuration.loading import Loaded, prepare
from predictor.configuration.merging import merged
from predictor.configuration.of_model import content_of_model
from predictor.costs.published import PublishedSystem
from predictor.costs.slowest import slowest_of
from predictor.search.space import ZERO_ALONE, Space
from predictor.timeline.schedules import SCHEDULES

LARGEST_MEMORY_GIB = 100_000
# Keys of a configuration that a search decides.
DECIDED = {
    "parallelism": (
        "tensor_parallel_size",
        "sequence_parallel",
        "context_parallel_size",
        "pipeline_parallel_size",
        "virtual_pipeline_parallel_size",
        "data_parallel_size",
        "expert_parallel_size",
        "layers_per_stage",
        "schedule",
        "zero_stage",
        "zero_group_size",
        "gradient_reduction",
    ),
    "training": (
        "micro_batch_size",
        "num_micro_batches",
        "global_batch_size",
        "recompute",
        "recompute_num_layers",
        "recompute_every",
        "recompute_modules",
    ),
}
# Of them, what no candidate has: each recomputes all layers alike, and all its replicas share out states.
ABSENT = {
    "parallelism": ("zero_group_size",),
    "training": ("recompute_num_layers", "recompute_every", "recompute_modules"),
}


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A search as the user states it; None where the model's file or the space decides.

    Attributes:
        model: a preset's name, a file (a configuration, or one of another tool), or the content of a configuration.
        memory_gib: memory of one GPU; the system's if None.
    """

    model: str | dict[str, Any]
    num_gpus: int
    system: str | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    precision: str | None = None
    memory_gib: float | None = None
    max_tensor_parallel: int | None = None
    max_context_parallel: int | None = None
    max_micro_batch_size: int | None = None
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    zero_stages: tuple[int, ...] = ZERO_ALONE


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """A search question made ready to solve: the space of layouts, the open system, the memory of one GPU."""

    space: Space
    system: PublishedSystem
    memory_gib: float | None
    notes: tuple[str, ...]
    content: dict[str, Any] = field(default_factory=dict)


def _undecided(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that a search decides, on one GPU."""
    kept = dict(content)
    for section, keys in DECIDED.items():
        kept[section] = {key: value for key, value in content.get(section, {}).items() if key not in keys}
    kept["training"] = {**kept["training"], "micro_batch_size": 1, "num_micro_batches": 1}
    kept["parallelism"] = {**kept["parallelism"], "zero_stage": 0}
    return kept


def _left_out(content: dict[str, Any]) -> tuple[str, ...]:
    """Return a note on the keys that a search leaves out without deciding them; none where there are none."""
    given = [f"{name}.{key}" for name, keys in ABSENT.items() for key in keys if key in (content.get(name) or {})]
    said = "Left out: candidates recompute all layers alike, and all their replicas share out states"
    return (f"{said} ({', '.join(given)}).",) if given else ()


def _batch(content: dict[str, Any]) -> int | None:
    """Return the global batch of a configuration, however it is given; None where it is not."""
    training = content.get("training", {})
    if training.get("global_batch_size") is not None or training.get("num_micro_batches") is None:
        given: int | None = training.get("global_batch_size")
        return given
    counts = (training["num_micro_batches"], training.get("micro_batch_size", 1))
    replicas = content.get("parallelism", {}).get("data_parallel_size", 1)
    return prod(whole("num_micro_batches", count) for count in (*counts, replicas))


def _overrides(question: SearchQuestion) -> dict[str, Any]:
    """Return a question's other fields as a configuration."""
    given: dict[str, Any] = {} if question.system is None else {"system": question.system, "gpu": None}
    if question.sequence_length is not None:
        given["model"] = {"sequence_length": question.sequence_length}
    if question.precision is not None:
        given["training"] = {"precision": question.precision}
    return given


def problem_around(loaded: Loaded) -> SearchProblem:
    """Return the space of all layouts of a run's model and global batch on as many GPUs."""
    run, limit = loaded.run, loaded.system.hardware.gpu.memory_gib
    batch = run.global_batch_size
    space = Space(
        base=run,
        num_gpus=run.layout.num_gpus,
        global_batch_size=batch,
        max_tensor_parallel=run.model.num_attention_heads,
        scatters_gradients=run.scatters_gradients,
        max_context_parallel=run.layout.num_gpus,
        max_micro_batch_size=batch,
    )
    return SearchProblem(space, loaded.system, None if limit is None else limit.value, ())


def search_problem(question: SearchQuestion) -> SearchProblem:
    """Turn a question into a space on an open system.

    Raises:
        ConfigError: the model, the system, the GPUs or the batch is missing or not possible.
    """
    num_gpus = whole("--gpus", question.num_gpus, largest=LARGEST_RUN_GPUS)
    content, base, notes = content_of_model(question.model)
    content = merged(content, _overrides(question))
    batch = question.global_batch_size if question.global_batch_size is not None else _batch(content)
    if batch is None:
        raise ConfigError("--global-batch-size is missing: how many samples does one step take?")
    if not content.get("system"):
        raise ConfigError(f"--system is missing; published: {published()}")
    loaded = prepare(_undecided(content), base)
    limit = loaded.system.hardware.gpu.memory_gib
    memory = question.memory_gib if question.memory_gib is not None else None if limit is None else limit.value
    if memory is not None and not 0.0 < memory < LARGEST_MEMORY_GIB:
        raise ConfigError(f"--memory-gib is {memory:g}; expected GiB of one GPU, up to {LARGEST_MEMORY_GIB:,}")
    space = Space(
        base=loaded.run,
        num_gpus=num_gpus,
        global_batch_size=whole("--global-batch-size", batch, largest=LARGEST["global_batch_size"]),
        max_tensor_parallel=question.max_tensor_parallel or loaded.run.model.num_attention_heads,
        scatters_gradients=content.get("parallelism", {}).get("gradient_reduction") == "reduce_scatter",
        max_context_parallel=question.max_context_parallel or num_gpus,
        max_micro_batch_size=question.max_micro_batch_size or batch,
        schedules=question.schedules,
        zero_stages=question.zero_stages,
    )
    return SearchProblem(
        space, slowest_of(loaded.system, num_gpus), memory, (*notes, *_left_out(content)), _undecided(content)
    )
