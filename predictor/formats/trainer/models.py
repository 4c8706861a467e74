"""The model of a run that names it: a preset, a config.json beside the file, or one in the hub's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from predictor.formats.hub_models import known_model, last_part
from predictor.formats.shell.words import as_written, is_unknown
from predictor.formats.trainer.arguments import Arguments

LOSS = "torch"  # of transformers' models: src/transformers/loss/loss_utils.py, fixed_cross_entropy
CONFIG = "config.json"
IN_CACHE = re.compile(r"^.*models--([\w.-]+?)--([\w.-]+)/snapshots/.*$")  # a path of the hub's cache
NAMES = ("model_name_or_path", "config_name")


def model_of(arguments: Arguments, base: Path, has_images: bool) -> dict[str, Any]:
    """Return the section ``model``, without its sequence length; sizes that nothing says are recorded as open.

    Args:
        arguments: of the run.
        base: folder of the file.
        has_images: samples have images, whose tower a preset may lack.

    Raises:
        ConfigError: the model is not modelled.
    """
    named = [arguments.value(key) for key in NAMES]
    name = next((str(found) for found in named if found), None)
    keys: dict[str, Any] = {"loss": LOSS}
    if name is None or is_unknown(last_part(name)):
        which = "it names no model" if name is None else f"the model is {as_written(name)}, which comes from outside"
        return _open(arguments, which, keys)
    name = IN_CACHE.sub(r"\1/\2", name)
    own = base / name / CONFIG
    known = None if own.is_file() else known_model(name)
    if known is not None and (not has_images or "vision" in known.section):
        arguments.note(f"the model is {name}, with the sizes of {known.source}")
        arguments.notes += known.notes
        arguments.unsaid |= known.unsaid
        return {**known.section, **keys}
    file = next((file for file in (own, cached(name)) if file is not None and file.is_file()), None)
    if file is None:
        images = " and samples have images" if has_images else ""
        return _open(arguments, f"the model is {name}, which has no preset{images}", keys)
    from predictor.formats.hugging_face import reader as hugging_face  # only where it is needed, for a fast start

    read = hugging_face.read(file)
    arguments.note(f"the model is {name}, as {file} says")
    arguments.notes += read.notes
    arguments.unsaid |= {key: why for key, why in read.unsaid.items() if key != "model.sequence_length"}
    return {**read.content["model"], **keys}


def _open(arguments: Arguments, which: str, keys: dict[str, Any]) -> dict[str, Any]:
    arguments.unsaid["model.num_layers"] = (
        f"{arguments.where}: {which}; take its config.json in front of this file (from: [config.json, "
        f"{arguments.where}]), or"
    )
    return keys


def cached(name: str) -> Path | None:
    """Return the config.json of a model in the hub's cache on this machine; None where it is not there.

    Source of the layout: huggingface/huggingface_hub, src/huggingface_hub/file_download.py (repo_folder_name).
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = hub / f"models--{name.strip('/').replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob(f"*/{CONFIG}"), key=lambda file: file.stat().st_mtime) if folder.is_dir() else []
    return found[-1] if found else None
