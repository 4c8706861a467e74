"""Rows that bring a configuration of their own, in the column « expressed_as ».

Its makers wrote it from the source's documents, with what the source leaves open in the column « not_stated ».
"""

from __future__ import annotations

import json
from typing import Any

from predictor.evidence.published import nemo
from predictor.evidence.published.row import Row, UnexpressedError

BY_NEMO = "CONVERT:nemo"
# The framework of configurations that name none, by a word of the column « framework »; plain PyTorch otherwise.
FRAMEWORKS = {
    "deepspeed": "deepspeed",
    "hf trainer": "transformers",
    "megatron-lm": "megatron-lm",
    "torchtitan": "torchtitan",
}


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration of a row.

    Raises:
        UnexpressedError: it has none.
    """
    text = row.text("expressed_as")
    if text == BY_NEMO:
        return nemo.megatron_core(row)
    if not text.startswith("{"):
        raise UnexpressedError("expressed_as holds no configuration")
    content: dict[str, Any] = json.loads(text)
    framework = next((name for word, name in FRAMEWORKS.items() if row.has("framework", word)), "pytorch")
    content["training"] = {"framework": framework, **content["training"]}
    if framework == "transformers":
        content["training"] |= _by_trainer(content["training"])
    return content


def _by_trainer(training: dict[str, Any]) -> dict[str, Any]:
    """Return what Hugging Face's Trainer and the benchmark's scenarios do and these configurations leave out.

    Source: transformers, gradient_checkpointing_enable, whose checkpoint is reentrant where no argument says otherwise;
    fms-acceleration, scripts/benchmarks/scenarios.yaml (lora_dropout: 0.1).
    """
    lora = training.get("lora")
    adapters = {} if lora is None else {"lora": {"dropout": 0.1, **lora}}
    return {"recompute_stops_early": False, **adapters}
