"""Change keys of a configuration by text, ``KEY=VALUE``, as ``--set`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import yaml

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import parse_value
from predictor.core.base.sizes import BOTH_NAMES, LARGEST_RUN_GPUS, whole
from predictor.core.schema.merging import merged
from predictor.core.schema.section import section_in, section_keys
from predictor.core.schema.sections import RunConfig

# A key that stands for the data-parallel size: so many GPUs over the sizes of all other dimensions.
GPUS = "gpus"
# Two ways to say one thing: setting one unsets the other.
EXCLUSIVE = {"num_micro_batches": "global_batch_size", "global_batch_size": "num_micro_batches"}
# What people call keys, beside their names in the short form (``sizes.BOTH_NAMES``).
SHORT_NAMES = {
    "tp": "tensor_parallel_size",
    "vp": "virtual_pipeline_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_parallel_size",
    "num_gpus": "gpus",
    "n_gpus": "gpus",
    "world_size": "gpus",
    "batch_size": "micro_batch_size (of a GPU) or global_batch_size (of a step)",
    "gradient_accumulation_steps": "num_micro_batches",
    "grad_accum": "num_micro_batches",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "max_seq_length": "sequence_length",
    "dtype": "precision",
    "fp8": "gemm_recipe",
    "zero": "zero_stage",
    "gradient_checkpointing": "recompute",
    "activation_checkpointing": "recompute",
    "lora_r": "training.lora.rank",
    "lora_rank": "training.lora.rank",
    "torch_compile": "compiled",
    "bandwidth": "network",
} | {short: name for name, short in BOTH_NAMES.items()}
REPLICATED = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


class Setting(NamedTuple):
    """One changed key: its path from the top of a configuration, and its value."""

    path: tuple[str, ...]
    value: Any


def _paths() -> dict[str, tuple[str, ...]]:
    """Return the path of every key of a section by its dotted name, and by its own name.

    Of keys with one name the one that is nested least has it: ``num_layers`` is the model's, not its vision tower's.
    Where two are nested alike, neither has it.
    """
    dotted: dict[str, tuple[str, ...]] = {}
    for section in RunConfig.model_fields:
        inside = section_in(RunConfig, section)
        for key in () if inside is None else section_keys(inside):
            dotted[f"{section}.{key}"] = (section, key)
            deeper = section_in(inside, key) if inside is not None else None
            for inner in () if deeper is None else section_keys(deeper):
                dotted[f"{section}.{key}.{inner}"] = (section, key, inner)
    own: dict[str, list[tuple[str, ...]]] = {}
    for path in dotted.values():
        own.setdefault(path[-1], []).append(path)
    least = {name: [path for path in paths if len(path) == min(map(len, paths))] for name, paths in own.items()}
    return dotted | {name: paths[0] for name, paths in least.items() if len(paths) == 1}


def _hint(key: str, known: Sequence[str]) -> str:
    """Return what a key that is none may stand for, as a sentence."""
    if key in RunConfig.model_fields:
        how = f"name one of its keys, such as {key}.{_first_key(key)}" if _first_key(key) else f"use --{key}"
        return f" {key} is no key of a section: {how}."
    if key in SHORT_NAMES:
        return f" Did you mean {SHORT_NAMES[key]}?"
    same = [name for name in known if name.rpartition(".")[2] == key]
    return f" Did you mean {' or '.join(same)}?" if same else nearest(key, known)


def _first_key(section: str) -> str:
    """Return the first key of a section; nothing of a key with a value."""
    inside = section_in(RunConfig, section)
    return "" if inside is None else next(iter(section_keys(inside)))


def parse_setting(text: str, others: Iterable[str] = ()) -> Setting:
    """Return the key and the value of ``KEY=VALUE``; the value is YAML, the key dotted or without its section.

    Args:
        text: of the command line.
        others: keys that the caller knows besides, for the message.

    Raises:
        ConfigError: no such key, or the value does not parse.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    paths = _paths()
    path = (GPUS,) if key == GPUS else paths.get(key)
    if not equals or path is None:
        known = (*paths, *others, GPUS)
        sections = ", ".join(name for name in RunConfig.model_fields if section_in(RunConfig, name))
        wrong = f"{key} is no key.{_hint(key, known)}" if equals or key not in known else "expected KEY=VALUE."
        raise ConfigError(
            f"--set {text}: {wrong} Keys: those of a configuration's sections ({sections}), {GPUS}; of the hardware: "
            f"{', '.join(others)}"
        )
    try:
        return Setting(path, parse_value(value))
    except (yaml.YAMLError, ValueError):
        raise ConfigError(f"--set {text}: {value!r} is not a value of YAML") from None


def as_option(name: str) -> str | None:
    """Return how a command takes what an unknown option asks for; None where it is no key of a configuration."""
    key = name.lstrip("-").replace("-", "_")
    paths = _paths()
    path = paths.get(SHORT_NAMES.get(key, key))
    if path is None:
        return next((f"--set {dotted}=…" for dotted in paths if key in dotted.split(".")), None)
    return f"--set {'.'.join(path)}=…"


def keys_of(settings: Iterable[Setting]) -> frozenset[str]:
    """Return the dotted keys that settings say; GPUs say the number of replicas."""
    return frozenset("parallelism.data_parallel_size" if path == (GPUS,) else ".".join(path) for path, _ in settings)


def with_settings(content: dict[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """Return a complete full-form configuration with changed keys.

    Raises:
        ConfigError: one key is given twice, or the GPUs do not divide over the other dimensions of parallelism.
    """
    seen: set[tuple[str, ...]] = set()
    gpus: int | None = None
    for path, value in settings:
        _refuse_second(path, seen)
        seen.add(path)
        if path == (GPUS,):
            gpus = whole(GPUS, value, largest=LARGEST_RUN_GPUS)
            continue
        other = EXCLUSIVE.get(path[-1])
        change: dict[str, Any] = {path[-1]: value} | ({} if other is None else {other: None})
        for name in reversed(path[:-1]):
            change = {name: change}
        content = merged(content, change)
    return content if gpus is None else _on_gpus(content, gpus)


def _refuse_second(path: tuple[str, ...], seen: set[tuple[str, ...]]) -> None:
    """Check that no setting before says the same thing."""
    if path in seen:
        raise ConfigError(f"--set names {'.'.join(path)} twice; give each key once")
    other = EXCLUSIVE.get(path[-1])
    if other is not None and any(before[-1] == other for before in seen):
        raise ConfigError(f"--set names {path[-1]} and {other}, which say the same thing; give one of them")


def _on_gpus(content: dict[str, Any], gpus: int) -> dict[str, Any]:
    """Return a configuration whose replicas fill so many GPUs."""
    layout = content.get("parallelism") or {}
    one = 1
    for name in REPLICATED:
        one *= whole(name, layout.get(name, 1))
    if gpus % one:
        raise ConfigError(f"gpus is {gpus}; a replica takes {one} GPUs ({', '.join(REPLICATED)}), which must divide it")
    return merged(content, {"parallelism": {"data_parallel_size": gpus // one}})
