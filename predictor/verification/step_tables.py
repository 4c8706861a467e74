"""Convert tables of measured steps to configurations.

Nothing here is fitted: switches follow the columns, or the source code of the framework that a column names.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.verification.measured import MeasuredStep

STEPS, COMPONENTS = "step_times.csv", "step_components.csv"
# Published system by a word of the column « system ».
SYSTEMS = {"Perlmutter": "Perlmutter", "Vista": "Vista", "vTrain": "Perlmutter"}


@dataclass(frozen=True, slots=True)
class MeasuredComponent:
    """One part of a measured step, in microseconds: a single value, or those of the first, a middle and the last stage.

    Attributes:
        run: name of the measured step.
        name: of the part.
        reference: predictions of the source itself; empty where it has none.
    """

    run: str
    name: str
    microseconds: list[float]
    reference: list[float]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _model(row: dict[str, str]) -> dict[str, Any]:
    """Return the model section; sizes from their columns, switches from the model's and the attention's description."""
    text, attention = row["model"].lower(), row["attention"].lower()
    rotary = re.search(r"rotary ([0-9.]+)", text)
    sizes = {
        "num_layers": int(row["layers"]),
        "hidden_size": int(row["hidden"]),
        "num_attention_heads": int(row["heads"]),
        "sequence_length": int(row["seq"]),
        "ffn_hidden_size": int(row["ffn"]),
        "vocab_size": int(row["vocab"].split()[0]),
        "normalization": "rms_norm" if "rmsnorm" in text else "layer_norm",
        "attention": "flash" if "flash" in attention else "fused_softmax",
    }
    if "Megatron-DeepSpeed" in row["framework"]:
        # Megatron's defaults: learned positions, biases, dropout 0.1, tied embeddings, fused bias, dropout, residual
        # and GELU.
        switches: dict[str, Any] = {
            "rotary_fraction": 0.0,
            "biases": True,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "tied_embeddings": True,
            "fused_side_kernels": True,
        }
    else:
        parallel = "gpt_j_residual" in text
        fraction = float(rotary[1]) if rotary else 1.0
        switches = {"rotary_fraction": fraction, "parallel_residual": parallel, "biases": "rmsnorm" not in text}
    return {**sizes, **switches}


def to_config(row: dict[str, str]) -> dict[str, Any]:
    """Return the full-form configuration of one row of step_times.csv."""
    system = next(name for key, name in SYSTEMS.items() if key in row["system"])
    neox = "GPT-NeoX" in row["framework"]
    parallelism: dict[str, Any] = {
        "tensor_parallel_size": int(row["tp"]),
        "pipeline_parallel_size": int(row["pp"]),
        "data_parallel_size": int(row["dp"]),
        "gpus_per_node": int(row["gpus_per_node"]),
        "layers_per_stage": "gpt_neox" if neox else "uniform",
        "zero_stage": 1 if "ZeRO-1" in row["zero_fsdp"] else 0,
    }
    if "vTrain" in row["system"]:
        parallelism["intra_node"] = "switch"  # eight A100s on one board always meet in NVSwitches
    training = {
        "micro_batch_size": int(row["micro_batch"]),
        "num_micro_batches": int(row["grad_accum"]),
        "precision": row["precision"].split()[0],
        "recompute": "full" if row["recompute"].startswith("full") else "none",
        "synchronize_each_layer": neox,  # recorded with synchronize_each_layer on, as the notes say
    }
    return {"system": system, "model": _model(row), "parallelism": parallelism, "training": training}


def _job(row: dict[str, str]) -> str:
    job = re.search(r"job ([^\s;]+)", row["notes"])
    return job[1] if job else row["id"]


def measured_steps(folder: Path) -> Iterator[MeasuredStep]:
    """Yield every row of step_times.csv that ran on a system with a published GPU.

    Raises:
        FileNotFoundError: the folder has no such table.
    """
    for row in _rows(folder / STEPS):
        if not any(known in row["system"] for known in SYSTEMS):
            continue
        yield MeasuredStep(
            table=row["group"],
            name=_job(row),
            seconds=float(row["derived_step_time_s"]),
            num_gpus=int(row["n_gpus"]),
            config=to_config(row),
            statistic=row["stat"],
        )


def _numbers(text: str) -> list[float]:
    parsed = json.loads(text) if text else []
    return [float(x) for x in (parsed if isinstance(parsed, list) else [parsed])]


def measured_components(folder: Path) -> Iterator[MeasuredComponent]:
    """Yield every row of step_components.csv.

    Raises:
        FileNotFoundError: the folder has no such table.
    """
    for row in _rows(folder / COMPONENTS):
        yield MeasuredComponent(
            run=row["job"],
            name=row["component"],
            microseconds=_numbers(row["measured_us_by_stage_first_middle_last"]),
            reference=_numbers(row["authors_prediction_us"]),
        )
