"""Keys that a configuration inherits: from files of other tools (``from``) and from the preset of its model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import clashing, merged
from predictor.core.schema.presets import preset
from predictor.core.schema.software import recorded_in_full, said_in_full

# Keys that a file of another tool may leave open and whose default would be a guess.
DEGREES = tuple(f"parallelism.{part}_parallel_size" for part in ("tensor", "pipeline", "context", "expert"))
GUESSES = (
    *DEGREES,
    "model.num_layers",
    "model.vocab_size",
    "parallelism.data_parallel_size",
    "parallelism.zero_stage",
    "training.micro_batch_size",
    "training.precision",
)


def with_preset(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its model's preset expanded under its own keys."""
    model = content.get("model")
    name = model if isinstance(model, str) else model.get("preset") if isinstance(model, dict) else None
    if name is None:
        return content
    if not isinstance(name, str):
        raise ConfigError(f"model.preset is {name!r}; expected the name of a preset, as list-presets shows them")
    own = {key: value for key, value in model.items() if key != "preset"} if isinstance(model, dict) else {}
    return {**content, "model": merged(preset(name), own)}


def of_record(content: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a step that was measured, its preset expanded, with every switch that it left off."""
    return recorded_in_full(with_preset(content))


class OwnKeys(NamedTuple):
    """Keys that a configuration sets itself, beside those that it inherits.

    Attributes:
        said: dotted keys that are set afterwards, so that the files may leave them open.
        num_gpus: GPUs of the run, where the files do not decide them.
    """

    said: Collection[str] = ()
    num_gpus: int | None = None


NOTHING = OwnKeys()


def file_of(path: Path) -> Path:
    """Return the file of a path that may name a function in it, such as recipe.py:llama3_8b."""
    file, colon, _ = path.name.rpartition(":")
    return (
        path.with_name(file.rstrip(":")) if colon and file.rstrip(":").endswith(".py") and not path.exists() else path
    )


def completed(content: dict[str, Any], base: Path, beside: OwnKeys = NOTHING) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a full-form configuration with the keys of its ``from`` files and of its preset, and notes on them.

    ``from`` names files of other tools, or models of the Hugging Face Hub (``hf:…``); later files override earlier
    ones, the configuration's own keys override all.

    Args:
        content: of the configuration.
        base: folder that its paths are relative to.
        beside: what is said beside the files.

    Raises:
        ConfigError: files cannot be taken from, leave open what no default can stand for, or there is no such preset.
    """
    whole, notes, left_open = with_files(content, base, beside.num_gpus)
    unsaid = {key: sentence for key, sentence in left_open.items() if key not in beside.said}
    refuse_guesses(unsaid, ("model.num_layers", "model.vocab_size", "model.vision.image_size", *DEGREES))
    return whole, (*notes, *unsaid.values())


def refuse_guesses(unsaid: dict[str, str], keys: tuple[str, ...]) -> None:
    """Refuse keys that the files leave open and whose default would be a guess that changes the answer.

    Raises:
        ConfigError: there are such keys; the message has a line for each.
    """
    open_keys = [unsaid[key] for key in keys if key in unsaid]
    if open_keys:
        from predictor.core.schema.problems import Problems  # only when needed, for a fast start

        Problems(open_keys).check()


def with_files(
    content: dict[str, Any], base: Path, num_gpus: int | None = None
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, str]]:
    """Return a configuration with its files and preset, notes, and a sentence for each key that they leave open."""
    named = content.get("from")
    if named is None:
        return with_preset(content), (), {}
    files = [named] if isinstance(named, str) else named
    if not isinstance(files, list) or not files or not all(isinstance(name, str) for name in files):
        raise ConfigError(f"from is {named!r}; expected a file of another tool, or a list of such files")
    from predictor.core.schema.foreign import readers  # only when needed, for a fast start

    read = readers().read_all(files, base, num_gpus)
    taken: dict[str, Any] = {}
    clashes: list[str] = []
    for name, file in zip(files, read, strict=True):
        clashes += [
            f"{name} says {key}: {new}, a file before it {old}; {name} counts."
            for key, old, new in clashing(taken, file.content)
        ]
        taken = merged(taken, file.content)
    own = {key: value for key, value in content.items() if key != "from"}
    whole = with_preset(merged(with_preset(taken), own))
    for file in read:
        whole = file.with_derived(whole)
    notes = clashes + [note for file in read for note in file.notes]
    unsaid = {key: sentence for file in read for key, sentence in file.still_unsaid(whole).items()}
    if any(not file.describes_model_alone for file in read):
        whole = said_in_full(whole)
    return whole, tuple(dict.fromkeys(notes)), unsaid
