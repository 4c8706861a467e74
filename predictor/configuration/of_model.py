"""The configuration that the name of a model stands for: a preset, a configuration, or a file of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.base.errors import ConfigError, nearest
from predictor.configuration.loading import completed, on_nodes_of, read_config
from predictor.configuration.merging import merged
from predictor.configuration.presets import preset_names, spelled
from predictor.workloads.frameworks import MEGATRON_LM_BF16, SECTIONS


def content_of_model(model: str | dict[str, Any]) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration that a model stands for, the folder its paths start from, and notes on its files.

    Args:
        model: a preset's name, a file (a configuration, or one of another tool), or the content of a configuration.

    Raises:
        ConfigError: it is neither a preset nor a file, or the file says no model.
    """
    if isinstance(model, dict):
        base = Path.cwd()
        content, notes = completed(on_nodes_of(model), base)
        return content, base, notes
    path = Path(model)
    name = spelled(model)
    if name is not None:
        content = {"model": name}
        base = Path.cwd()
    elif not path.exists():
        raise ConfigError(
            f"--model is {model}; expected a file, or a preset such as {', '.join(preset_names()[-3:])}"
            f" (list-presets shows all).{nearest(model, preset_names())}"
        )
    elif path.suffix in (".yml", ".yaml"):
        content, base = read_config(path)
        content, notes = completed(on_nodes_of(content), base)
        return content, base, notes
    else:
        content, base = {"from": str(path.resolve())}, path.resolve().parent
    content, notes = completed(content, base)
    if not isinstance(content.get("model"), dict):
        raise ConfigError(
            f"--model is {model}, which says no model; name a preset or a file that does (a Hugging Face "
            "config.json, Megatron-LM arguments), or put both into a configuration with from: [...]"
        )
    if "framework" in content.get("training", {}):
        return content, base, notes  # the file of a trainer, which says how it runs
    norm = content["model"].get("normalization")
    switches = {name: MEGATRON_LM_BF16.section(name, normalization=norm) for name in SECTIONS}
    said = "Runs as Megatron-LM trains in bf16 today, unless a configuration says otherwise: " + ", ".join(
        f"{key}: {str(value).lower()}" for section in switches.values() for key, value in section.items()
    )
    return merged(content, switches), base, (*notes, f"{said}.")
