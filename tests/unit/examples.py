"""Configurations that the tests change one thing of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.bundled import EXAMPLES_FOLDER
from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan.model import transformer
from predictor.core.schema.model_section import ModelSection
from predictor.core.workload.transformer import Transformer

EXAMPLE = EXAMPLES_FOLDER / "llemma_7b_4_2_2_P.yml"
NUMBERS = ("pp", "mp", "dp", "b", "h", "l", "dim", "steps_per_update", "gpus_per_node")


def short_form(**changes: Any) -> dict[str, Any]:
    """Return the example with keys changed; a number of training_config goes by its own name, None removes a key."""
    content = read_mapping(EXAMPLE)
    numbers = dict(zip(NUMBERS, content["training_config"], strict=True))
    numbers.update({key: changes.pop(key) for key in NUMBERS if key in changes})
    content |= {"training_config": list(numbers.values())}
    content |= changes
    return {key: value for key, value in content.items() if value is not None}


def full_form(**sections: dict[str, Any] | str) -> dict[str, Any]:
    """Return a small full form with sections merged in."""
    content: dict[str, Any] = {
        "system": "Perlmutter",
        "model": {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048},
        "parallelism": {},
        "training": {"micro_batch_size": 2, "num_micro_batches": 4},
    }
    for name, section in sections.items():
        content[name] = {**content[name], **section} if isinstance(section, dict) else section
    return content


def model_of(content: dict[str, Any]) -> Transformer:
    """Return the model that the keys of a configuration's ``model`` section describe."""
    return transformer(ModelSection.model_validate(content))


def write(content: object, path: Path) -> Path:
    """Write a configuration file."""
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
