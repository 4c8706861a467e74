"""An experiment as a question to the predictor, without its irrelevant keys, so that a grid asks each once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from model_training_framework.config import ExperimentConfig
from model_training_framework.utils import Error, Result, Success
from predictor import predict
from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError, PublishedError
from predictor.formats.experiment import num_steps

KEPT = {
    "model": (
        "name",
        "hidden_size",
        "num_layers",
        "num_heads",
        "dropout",
        "vocab_size",
        "ffn_hidden_size",
        "num_key_value_heads",
    ),
    "training": (
        "batch_size",
        "gradient_accumulation_steps",
        "sequence_length",
        "precision",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "zero_stage",
    ),
    "data": ("sequence_length",),
    "optimizer": ("name",),
    "slurm": ("nodes", "ntasks_per_node", "gres"),
    "prediction": ("system", "config"),
}
NAME = "this"  # of every question, as an experiment's own name does not change the answer
UNKNOWN_STEPS = "The number of steps"
MOST_QUESTIONS = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What the predictor says about one step.

    Attributes:
        system: the published system.
        num_gpus: GPUs that the step runs on.
        us, low_us, high_us: the step and its 90 % interval.
        source: the weakest source of any part of it.
        samples, tokens: of one step.
        memory_gib: of the fullest GPU.
        gpu_memory_gib: what a GPU has; None where the system does not say.
        parameters: of the model.
        notes: what a reader must know before trusting the numbers.
    """

    system: str
    num_gpus: int
    us: float
    low_us: float
    high_us: float
    source: str
    samples: int
    tokens: int
    memory_gib: float
    gpu_memory_gib: float | None
    parameters: int
    notes: tuple[str, ...]


def question_of(config: ExperimentConfig, base: Path) -> str:
    """Return the part of an experiment that changes the time or the memory of its step, as canonical JSON."""
    content: dict[str, Any] = {"experiment_name": NAME}
    for section, keys in KEPT.items():
        values = getattr(config, section)
        if values is not None:
            content[section] = {key: getattr(values, key) for key in keys}
    if "slurm" in content:
        content["slurm"]["ntasks_per_node"] = config.processes_per_node
    asked = content.get("prediction", {})
    path, system = asked.get("config"), asked.get("system")
    if isinstance(path, str):
        asked["config"] = str(base / path)
    if system is not None and system not in systems() and (base / system).is_dir():
        asked["system"] = str(base / system)
    return json.dumps(content, sort_keys=True)


def changes_with(config: ExperimentConfig, base: Path) -> tuple[object, ...]:
    """Return what else changes the answer: the folder, and the file that ``prediction.config`` names."""
    path = config.prediction.config if config.prediction is not None else None
    if not isinstance(path, str) or not (base / path).is_file():
        return (str(base),)
    status = (base / path).stat()
    return (str(base), status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=MOST_QUESTIONS)
def answer(question: str, _changes_with: tuple[object, ...]) -> Result[Answer, str]:
    """Return what the predictor says, or why it says nothing.

    Args:
        question: as ``question_of`` returns it.
    """
    try:
        found = predict(json.loads(question))
        run, gpu = found.run, found.loaded.system.hardware.gpu
        return Success(
            Answer(
                system=found.system,
                num_gpus=run.layout.num_gpus,
                us=found.step.us,
                low_us=found.step.low_us,
                high_us=found.step.high_us,
                source=found.step.source.label,
                samples=run.global_batch_size,
                tokens=run.tokens_per_step,
                memory_gib=found.memory_gib,
                gpu_memory_gib=None if gpu.memory_gib is None else gpu.memory_gib.value,
                parameters=run.model.num_parameters(),
                notes=tuple(note for note in found.notes if not note.startswith(UNKNOWN_STEPS)),
            )
        )
    except (ConfigError, PublishedError, KeyError, OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()).removeprefix(f"experiment {NAME}: ")
        return Error(f"{reason}; set training.precision" if reason.startswith("precision is ") else reason)


def steps_of(config: ExperimentConfig) -> int | None:
    """Return the steps (parameter updates) that an experiment asks for; None where it does not say how many samples."""
    return num_steps(config.to_dict())
