"""A search question (model, GPUs, global batch) and the search problem that it becomes: a space of layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import LARGEST, LARGEST_RUN_GPUS, whole
from predictor.core.costs.hardware_change import KEYS, changed, is_of_hardware, network_notes, parse_change
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.slowest import slowest_of
from predictor.core.plan.framework_rules import FrameworkRules, rules_of
from predictor.core.plan.loading import Loaded, in_full, prepare
from predictor.core.plan.of_model import content_of_model
from predictor.core.schema.finding import published, usual_notes
from predictor.core.schema.inherited_keys import OwnKeys
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import NO_BUDGET, BudgetSection
from predictor.core.schema.settings import GPUS, Setting, keys_of, parse_setting, with_settings
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.layout_search.space import SEARCHED, ZERO_ALONE, Space

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
        "embedding_counts_as_layer",
        "loss_counts_as_layer",
        "schedule",
        "micro_batch_group_size",
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
        "recompute_group_layers",
        "recompute_modules",
        "offload_parameters",
        "offload_activation_layers",
        "offload_activations",
        "offload_modules",
    ),
}
DECIDED_KEYS = frozenset(f"{section}.{key}" for section, keys in DECIDED.items() for key in keys)
# Of them, what a candidate has for its own reasons, or not at all.
ABSENT = {
    "parallelism": ("zero_group_size",),
    "training": (
        "recompute_num_layers",
        "recompute_every",
        "recompute_group_layers",
        "recompute_modules",
        "offload_parameters",
        "offload_activation_layers",
        "offload_activations",
        "offload_modules",
    ),
}


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A search as the user states it; None where the model's file or the space decides.

    Attributes:
        model: a preset's name, a file (a configuration, or one of another tool), or the content of a configuration.
        memory_gib: memory of one GPU; the system's if None.
        framework: that is to run the layout, as ``--framework`` spells it; None: layouts of none.
        tensor_parallel_across_nodes: tensor-parallel groups may leave a node, or an NVLink domain that spans nodes; a
            ``max_tensor_parallel`` that is given allows it too.
        global_batch_tokens: tokens per step, instead of samples.
        max_memory_gib: of one GPU that a layout may need.
        train_tokens, price: tokens of the whole training, and the price of a GPU-hour.
        changes: KEY=VALUE, keys of the configuration that no search decides, and numbers of the hardware.
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
    schedules: tuple[str, ...] = SEARCHED
    zero_stages: tuple[ZeroStage, ...] = ZERO_ALONE
    framework: str | None = None
    tensor_parallel_across_nodes: bool = False
    global_batch_tokens: int | None = None
    max_memory_gib: float | None = None
    train_tokens: float | None = None
    price: float | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """A search question made ready to solve: the space of layouts, the open system, the memory of one GPU."""

    space: Space
    system: PublishedSystem
    memory_gib: float | None
    notes: tuple[str, ...]
    content: dict[str, Any] = field(default_factory=dict)
    budget: BudgetSection = NO_BUDGET


def _undecided(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that a search decides, on one GPU."""
    kept = dict(content)
    for section, keys in DECIDED.items():
        kept[section] = {key: value for key, value in content.get(section, {}).items() if key not in keys}
    kept["training"] = {**kept["training"], "micro_batch_size": 1, "num_micro_batches": 1}
    kept["parallelism"] = {**kept["parallelism"], "zero_stage": 0}
    if kept["parallelism"].get("expert_tensor_parallel_size") != 1:  # candidates split experts as all else, or not
        kept["parallelism"].pop("expert_tensor_parallel_size", None)
    return kept


def _of_any_zero_stage(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose framework decides what its ZeRO stage would rule out; candidates have others."""
    layout = content.get("parallelism") or {}
    return {**content, "parallelism": {key: value for key, value in layout.items() if key != "zero_stage"}}


def _left_out(content: dict[str, Any]) -> tuple[str, ...]:
    """Return a note on the keys that a search leaves out without deciding them; none where there are none."""
    given = [f"{name}.{key}" for name, keys in ABSENT.items() for key in keys if key in (content.get(name) or {})]
    said = "Left out: candidates recompute, share out states and offload activations as they choose"
    return (f"{said} ({', '.join(given)}).",) if given else ()


def _said_batch(content: dict[str, Any]) -> int | None:
    """Return the global batch that a configuration says; None where it does not.

    Raises:
        ConfigError: it would be a guess, which the fastest layout depends on.
    """
    training = content.get("training", {})
    if training.get("global_batch_size") is not None or training.get("num_micro_batches") is None:
        given: int | None = training.get("global_batch_size")
        return given
    counts = (training["num_micro_batches"], training.get("micro_batch_size", 1))
    replicas = content.get("parallelism", {}).get("data_parallel_size")
    batch = prod(whole("num_micro_batches", count) for count in (*counts, replicas or 1))
    if batch == 1 or replicas is None:
        unsaid = "no data_parallel_size" if replicas is None else "one sample for all replicas"
        raise ConfigError(
            f"--global-batch-size is missing: the model's file says {unsaid}, so a batch of {batch} would be a guess, "
            "and the fastest layout depends on it; write the samples of one step, or --global-batch-tokens"
        )
    return batch


def _batch(question: SearchQuestion, content: dict[str, Any]) -> int:
    """Return the samples of one step.

    Raises:
        ConfigError: nothing says them, or the tokens of a step are no whole number of samples.
    """
    samples, tokens = question.global_batch_size, question.global_batch_tokens
    if samples is not None and tokens is not None:
        raise ConfigError("--global-batch-size and --global-batch-tokens are both given; write one of them")
    if tokens is not None:
        length = whole("sequence_length", content.get("model", {}).get("sequence_length"))
        samples, rest = divmod(tokens, length)
        if rest or not samples:
            tries = " or ".join(f"{count * length:,}" for count in (samples, samples + 1) if count)
            raise ConfigError(
                f"--global-batch-tokens is {tokens}; it must be a multiple of sequence_length, {length}. Try {tries}."
            )
    if samples is None:
        samples = _said_batch(content)
    if samples is None:
        raise ConfigError(
            "--global-batch-size is missing: how many samples does one step take? (or --global-batch-tokens)"
        )
    return whole("--global-batch-size", samples, largest=LARGEST["global_batch_size"])


def _overrides(question: SearchQuestion) -> dict[str, Any]:
    """Return a question's other fields as a configuration."""
    given: dict[str, Any] = {} if question.system is None else {"system": question.system, "gpu": None}
    if question.sequence_length is not None:
        given["model"] = {"sequence_length": question.sequence_length}
    if question.precision is not None:
        given["training"] = {"precision": question.precision}
    rules = rules_of(question.framework)
    if rules is not None:
        given["training"] = {**given.get("training", {}), "framework": str(rules.software)}
    budget = {"train_tokens": question.train_tokens, "price_per_gpu_hour": question.price}
    said = {key: value for key, value in budget.items() if value is not None}
    return given | ({"budget": said} if said else {})


def problem_around(loaded: Loaded, rules: FrameworkRules | None = None) -> SearchProblem:
    """Return the space of all layouts of a run's model and global batch on as many GPUs.

    Args:
        loaded: the run.
        rules: of the framework that is to run them; None: of none.
    """
    run, limit = loaded.run, loaded.system.hardware.gpu.memory_gib
    batch = run.global_batch_size
    space = Space(
        base=run,
        num_gpus=run.layout.num_gpus,
        global_batch_size=batch,
        max_tensor_parallel=run.model.num_attention_heads,
        scatters_gradients=rules is not None or run.scatters_gradients,
        max_context_parallel=run.layout.num_gpus,
        max_micro_batch_size=batch,
        rules=rules,
        tensor_inside=run.layout.tensor_group().nodes == 1,
    )
    return SearchProblem(space, loaded.system, None if limit is None else limit.value, ())


def search_problem(question: SearchQuestion) -> SearchProblem:
    """Turn a question into a space on an open system.

    Raises:
        ConfigError: the model, the system, the GPUs or the batch is missing or not possible.
    """
    num_gpus = whole("--gpus", question.num_gpus, largest=LARGEST_RUN_GPUS)
    rules = rules_of(question.framework)
    settings = _settings(question)
    content, base, notes = content_of_model(question.model, OwnKeys(keys_of(settings) | DECIDED_KEYS))
    content = with_settings(merged(content, _overrides(question)), settings)
    batch = _batch(question, content)
    if not content.get("system"):
        raise ConfigError(f"--system is missing; published: {published()}")
    content, taken = in_full(_of_any_zero_stage(content), base)
    line = None if taken is None else taken.note()
    notes = notes if line is None else (*notes, line)
    loaded, changed_notes = _on_hardware(_undecided(content), base, question)
    memory = _memory(question, loaded.system)
    space = Space(
        base=loaded.run,
        num_gpus=num_gpus,
        global_batch_size=batch,
        max_tensor_parallel=question.max_tensor_parallel or loaded.run.model.num_attention_heads,
        # What frameworks call ZeRO-1 scatters gradients.
        scatters_gradients=rules is not None
        or content.get("parallelism", {}).get("gradient_reduction") == "reduce_scatter",
        max_context_parallel=question.max_context_parallel or num_gpus,
        max_micro_batch_size=question.max_micro_batch_size or batch,
        schedules=question.schedules,
        zero_stages=question.zero_stages,
        rules=rules,
        tensor_inside=not question.tensor_parallel_across_nodes and question.max_tensor_parallel is None,
    )
    said = (*notes, *usual_notes(content["system"]), *_left_out(content), *changed_notes)
    system = slowest_of(loaded.system, num_gpus)
    return SearchProblem(space, system, memory, said, _undecided(content), loaded.budget)


def _settings(question: SearchQuestion) -> list[Setting]:
    """Return the keys of a configuration that a question changes.

    Raises:
        ConfigError: no such key, or one that the search decides.
    """
    settings = [parse_setting(text, KEYS) for text in question.changes if not is_of_hardware(text)]
    for path, _ in settings:
        if path == (GPUS,) or path[-1] in DECIDED.get(path[0], ()):
            raise ConfigError(f"--set {'.'.join(path)}: the search decides it, or an option of its own says it")
    return settings


def _on_hardware(content: dict[str, Any], base: Path, question: SearchQuestion) -> tuple[Loaded, tuple[str, ...]]:
    """Return the base of the search on the hardware that a question changes, and a note where it does.

    Raises:
        ConfigError: a change is no number that the system could have.
    """
    loaded = prepare(content, base)
    texts = [text for text in question.changes if is_of_hardware(text)]
    if not texts:
        return loaded, ()
    numbers = dict(parse_change(text, loaded.system.hardware) for text in texts)
    note = f"On changed hardware ({', '.join(texts)}); a configuration that is written does not say so."
    notes = (note, *network_notes(texts, loaded.system.hardware))
    return prepare(content, base, lambda published: changed(published, numbers)), notes


def _memory(question: SearchQuestion, system: PublishedSystem) -> float | None:
    """Return what a layout may need of one GPU in GiB; None where nothing limits it.

    Raises:
        ConfigError: a limit is not possible.
    """
    known = system.hardware.gpu.memory_gib
    limits = [] if known is None or question.memory_gib is not None else [known.value]
    for option, value in (("--memory-gib", question.memory_gib), ("--max-memory-gib", question.max_memory_gib)):
        if value is not None and not 0.0 < value < LARGEST_MEMORY_GIB:
            raise ConfigError(f"{option} is {value:g}; expected GiB of one GPU, up to {LARGEST_MEMORY_GIB:,}")
        limits += [] if value is None else [value]
    return min(limits, default=None)
