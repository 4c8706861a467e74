"""Judge configurations by DeepSpeed's own parser and checks.

Usage: judge_deepspeed.py CASES VERDICTS. The first file is a list of {"content": configuration, "replicas": N, "sizes":
what its parser has to say} as JSON; the second becomes a list of what is refused, or said otherwise, null where nothing
is.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from deepspeed import comm
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

TOPS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16", "fp16"),
    *("data_types", "zero_optimization", "tensor_parallel", "activation_checkpointing", "pipeline"),
)


def strange(content: dict[str, Any], parsed: DeepSpeedConfig) -> list[str]:
    """Return keys that DeepSpeed's sections have not; it passes over those that it does not know."""
    known: dict[str, DeepSpeedConfigModel] = {"zero_optimization": parsed.zero_config}
    found = [
        f"{section}.{key}"
        for section, model in known.items()
        for key in content.get(section, {})
        if key not in type(model).model_fields
    ]
    return found + [key for key in content if key not in TOPS]


def judge(content: dict[str, Any], replicas: int, sizes: dict[str, Any]) -> str | None:
    """Return what is refused, None where nothing is."""
    comm.get_rank = lambda *_: 0
    ranks = MagicMock(get_data_parallel_world_size=lambda: replicas)
    try:
        parsed = DeepSpeedConfig(content, mpu=ranks)
        assert not strange(content, parsed), f"no keys of DeepSpeed: {strange(content, parsed)}"
        for name, size in sizes.items():
            said = getattr(parsed, name)
            assert said == size, f"{name} is {said}, expected {size}"
    except (AssertionError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    cases, verdicts = map(Path, sys.argv[1:])
    logging.disable(logging.CRITICAL)
    found = [judge(**case) for case in json.loads(cases.read_text(encoding="utf-8"))]
    verdicts.write_text(json.dumps(found), encoding="utf-8")
