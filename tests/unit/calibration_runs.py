"""Runs of a made cluster: a published system whose components take other times than published."""

from __future__ import annotations

import copy
from math import exp, log
from pathlib import Path
from typing import Any

import yaml

from predictor.core.hardware.hardware import COMPONENTS
from predictor.core.step.calibrated import log_time
from predictor.core.step.composition import step_us
from predictor.evidence.verification.configurations import configured

BASE = "Perlmutter"
GPT: dict[str, Any] = {
    "system": BASE,
    "model": {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048},
    "parallelism": {"tensor_parallel_size": 1, "data_parallel_size": 8},
    "training": {"framework": "pytorch", "precision": "fp16", "micro_batch_size": 2, "num_micro_batches": 4},
}
# Long sequences, tensor parallelism, small micro-batches: each run has another share of every component.
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "long": {"model": {"sequence_length": 4096}, "training": {"micro_batch_size": 1}},
    "split": {"parallelism": {"tensor_parallel_size": 4, "data_parallel_size": 2}},
    "wide": {"model": {"hidden_size": 4096, "num_attention_heads": 32}},
    "deep": {"model": {"num_layers": 24}, "training": {"micro_batch_size": 4}},
}
SLOWER = {"compute": 1.25, "memory_bound": 1.4, "links_between_nodes": 1.3}


def content_of(name: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    content = copy.deepcopy(GPT)
    for section, keys in RUNS[name].items():
        content[section].update(keys)
    return content


def seconds_of(name: str, factors: dict[str, float]) -> float:
    """Return what a step takes on a cluster whose components take ``factors`` times as long as published."""
    workload = configured(name, content_of(name), Path.cwd()).workload
    tasks = workload.predict().tasks
    logs = [log(factors.get(component, 1.0)) for component in COMPONENTS]
    return exp(log_time(lambda system: step_us(tasks, system), workload.system, logs)) / 1e6


def write_run(folder: Path, name: str, seconds: float | None = None, file: str = "") -> Path:
    """Write a run's configuration with its measured time and return its path."""
    measured = seconds_of(name, SLOWER) if seconds is None else seconds
    path = folder / f"{file or name}.yaml"
    path.write_text(yaml.safe_dump({**content_of(name), "measured_seconds": measured}), encoding="utf-8")
    return path
