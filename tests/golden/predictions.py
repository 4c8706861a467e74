"""Configurations whose predictions are stored: ``python -m tests.golden.predictions`` stores them anew.

A refactor changes none of them; a change that means to move them shows by how much.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from predictor.bundled import REGRESSORS_FOLDER
from predictor.config import to_run
from predictor.costs.published import open_system
from predictor.sections import validate
from predictor.step_time import predict

STORED = Path(__file__).with_name("predictions.json")

MODEL_7B = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 4096}
MODEL_1B = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048}
BATCH = {"micro_batch_size": 4, "num_micro_batches": 8}


def _config(system: str, model: dict[str, Any], layout: tuple[int, int, int], **training: Any) -> dict[str, Any]:
    tensor, pipeline, data = layout
    parallelism = {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "data_parallel_size": data,
        **training.pop("parallelism", {}),
    }
    return {"system": system, "model": model, "parallelism": parallelism, "training": {**BATCH, **training}}


UNFUSED = {**MODEL_1B, "attention": "unfused", "normalization": "layer_norm", "biases": True, "hidden_dropout": 0.1}
CONFIGS: dict[str, dict[str, Any]] = {
    "7B, 2×4×2, full recompute": _config("Perlmutter", MODEL_7B, (2, 4, 2), recompute="full"),
    "7B, 4×2×2, none": _config("Perlmutter", MODEL_7B, (4, 2, 2)),
    "7B, 1×8×2, AFAB": _config("Perlmutter", MODEL_7B, (1, 8, 2), parallelism={"schedule": "all_forward_all_backward"}),
    "7B, 1×1×1": _config("Perlmutter", MODEL_7B, (1, 1, 1)),
    "1B, unfused, selective": _config("Perlmutter", UNFUSED, (2, 1, 4), recompute="selective"),
    "1B, one sample, ZeRO-0": _config(
        "Perlmutter", MODEL_1B, (1, 2, 2), micro_batch_size=1, parallelism={"zero_stage": 0}
    ),
    "GH200 7B, 2×4×2, full recompute": _config("Vista", MODEL_7B, (2, 4, 2), recompute="full"),
    "GH200 7B, 1×2×8": _config("Vista", MODEL_7B, (1, 2, 8)),
}


def predictions() -> dict[str, list[float]]:
    """Return low, predicted and high step time of every configuration, in microseconds."""
    result = {}
    for name, content in CONFIGS.items():
        config = validate(content)
        system = open_system(REGRESSORS_FOLDER / config.system, config.training.precision)
        step = predict(to_run(config, system.system.gpus_per_node), system).step
        result[name] = [float(f"{value:.9g}") for value in (step.low_us, step.us, step.high_us)]
    return result


if __name__ == "__main__":
    STORED.write_text(json.dumps(predictions(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
