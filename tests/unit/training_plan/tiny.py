"""A plan whose searches take a few milliseconds."""

from __future__ import annotations

from datetime import date
from typing import Any

from predictor.training_plan.interface import PlanResult, plan

TINY: dict[str, Any] = {
    "model": {
        "system": "H100",
        "model": {
            "num_layers": 4,
            "hidden_size": 1024,
            "num_attention_heads": 8,
            "vocab_size": 32000,
            "sequence_length": 1024,
        },
        "training": {"precision": "bf16"},
    },
    "train_tokens": 1e11,
    "start": date(2027, 1, 1),
    "global_batch_size": 256,
    "systems": {"H100": {"gpus": [8, 16], "price_per_gpu_hour": 2.0}},
}


def tiny(**keys: Any) -> PlanResult:
    return plan({**TINY, **keys})
