"""What starts a run of NeMo 1: a YAML with the files that it builds on, or a script's command line with overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.formats.hydra import Invocation, composed, invocations, overridden
from predictor.formats.interpolation import filled
from predictor.formats.source import YAML, Source

PROGRAMS = re.compile(r"(?:megatron_gpt_\w*(?:pretraining|finetuning|continue_training|sft)|(?:^|/)main)\.py$")
LAUNCHER = "training"  # the launcher has a run under this key
GROUP = re.compile(r"\+{0,2}training=(\S+)")
# What a command line leaves to NeMo's own file: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml.
OWN = "megatron_gpt_config"
OWN_TUNING = "megatron_gpt_finetuning_config"
BASE: dict[str, Any] = {
    "trainer": {"devices": 1, "num_nodes": 1, "precision": 16},
    "model": {
        "mcore_gpt": True,
        "micro_batch_size": 4,
        "global_batch_size": 8,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "encoder_seq_length": 512,
        "max_position_embeddings": "${.encoder_seq_length}",
        "num_layers": 12,
        "hidden_size": 768,
        "ffn_hidden_size": 3072,
        "num_attention_heads": 12,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "gradient_accumulation_fusion": False,
        "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer"},
        "optim": {"name": "fused_adam"},
    },
}
OF_A_CHECKPOINT = re.compile(r"finetuning|continue_training|sft")
SHAPE = (  # what a checkpoint holds
    "encoder_seq_length",
    "max_position_embeddings",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "hidden_dropout",
    "attention_dropout",
    "tokenizer",
)


def configuration(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the sections of a run, its references filled in, and notes on where they come from.

    Raises:
        ConfigError: a file that it builds on is not there, or a script starts no run of NeMo.
    """
    notes: list[str] = []
    source = Source(path)
    if source.syntax == YAML:
        found = composed(path)
        content, absent = found.content, found.absent
    else:
        content, absent = _of_script(path, source.text, notes), []
    inner = content.get(LAUNCHER)
    is_launched = "trainer" not in content and isinstance(inner, dict)
    whole = content if is_launched else {**content, LAUNCHER: content} if _refers_up(content) else content
    result = filled(whole, path.name)
    result = result[LAUNCHER] if is_launched else result
    if not isinstance(result.get("model"), dict):
        missing = f"; its defaults name {', '.join(absent)}, which is not beside it" if absent else ""
        raise ConfigError(f"{path.name} has no section model{missing}")
    return result, notes


def _refers_up(content: Any) -> bool:
    """Return whether references go through the launcher's key, as those of its own files do."""
    if isinstance(content, dict):
        return any(map(_refers_up, content.values()))
    return isinstance(content, str) and f"${{{LAUNCHER}." in content


def _of_script(path: Path, text: str, notes: list[str]) -> dict[str, Any]:
    started = [one for one in invocations(text, PROGRAMS) if one.overrides]
    if not started:
        raise ConfigError(f"{path.name} starts no run of NeMo with keys such as model.num_layers=12")
    last = started[-1]
    group = next((GROUP.fullmatch(word) for word in last.overrides if GROUP.fullmatch(word)), None)
    if group is None:
        return overridden(_base(path, last, notes), last.overrides)
    name = f"{group[1]}.yaml"
    places = (folder / "conf" / LAUNCHER / name for folder in _folders(path, "launcher_scripts"))
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{path.name} starts from {LAUNCHER}={group[1]}, a file of the launcher's; put it beside the script, as "
            f"conf/{LAUNCHER}/{name}"
        )
    rest = [word for word in last.overrides if not GROUP.fullmatch(word)]
    return overridden({LAUNCHER: composed(file).content}, rest)


def _base(path: Path, started: Invocation, notes: list[str]) -> dict[str, Any]:
    """Return the configuration that a command line starts from."""
    name = (started.flags.get("config-name") or OWN).removesuffix(".yaml")
    folder = started.flags.get("config-path") or "conf"
    places = (place / inner / f"{name}.yaml" for place in _folders(path, "") for inner in (folder, ".", "conf"))
    file = next((place for place in places if place.is_file()), None)
    if file is not None:
        return composed(file).content
    if name not in (OWN, OWN_TUNING):
        raise ConfigError(f"{path.name} starts from {name}.yaml (--config-name), which is not beside it; put it there")
    notes.append(f"{path.name}: keys that its command line does not set are those of NeMo's {OWN}.yaml")
    if OF_A_CHECKPOINT.search(started.program) is None:
        return merged(BASE, {})
    model = {key: value for key, value in BASE["model"].items() if key not in SHAPE}
    return {**BASE, "model": {**model, "restore_from_path": "???"}}


def _folders(path: Path, below: str) -> Iterator[Path]:
    """Yield the folders around a file, and one of a name inside each."""
    for folder in (path.parent, *path.resolve().parents[:4]):
        yield folder
        if below:
            yield folder / below
