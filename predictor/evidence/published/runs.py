"""Published step times with their configurations, read from ``published_runs.yaml``.

Two papers' tables are also among the converted ones (``verification/published``). Both are kept because they test
different things: these come with the package, are set by hand on Selene, which is known from data sheets alone, and so
test a transfer; the converted rows run on A100_SXM, whose products and attention were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.inherited_keys import of_record
from predictor.evidence.verification.measured import MeasuredStep

DATA = Path(__file__).with_suffix(".yaml")
SECTIONS = ("model", "parallelism", "training")


def iteration_seconds(config: dict[str, Any], num_gpus: int, tflop_per_s: float) -> float:
    """Return the iteration time of a throughput per GPU: Narayanan et al. 2021, equation 3, with recomputation."""
    model, batch = config["model"], config["training"]["global_batch_size"]
    hidden, layers, tokens = model["hidden_size"], model["num_layers"], model["sequence_length"]
    factor = 1 + tokens / (6 * hidden) + model["vocab_size"] / (16 * layers * hidden)
    return float(96 * batch * tokens * layers * hidden**2 * factor / (num_gpus * tflop_per_s * 1e12))


def _step(shared: dict[str, Any], table: dict[str, Any], step: dict[str, Any]) -> MeasuredStep:
    config: dict[str, Any] = {"system": shared["system"]}
    for section in SECTIONS:
        config[section] = {
            key: value for level in (shared, table, step) for key, value in level.get(section, {}).items()
        }
    config["training"] |= {"framework": "megatron-lm", "conditions": "tuned"}
    num_gpus = step["num_gpus"]
    seconds = step.get("seconds") or iteration_seconds(config, num_gpus, step["tflop_per_s_per_gpu"])
    return MeasuredStep(table["name"], step["name"], seconds, num_gpus, of_record(config))


def published_runs() -> list[MeasuredStep]:
    """Return every published step time."""
    data = read_mapping(DATA)
    return [_step(data["shared"], table, step) for table in data["tables"] for step in table["steps"]]
