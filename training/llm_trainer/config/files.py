"""Configuration files of a run: sections model, training and data, in YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from llm_trainer.config.data_config import DataConfig
from llm_trainer.config.model_config import ModelConfig
from llm_trainer.config.section import Section
from llm_trainer.config.training_config import TrainingConfig
from llm_trainer.exceptions import ModelConfigurationError
from predictor.core.base.errors import nearest
from predictor.core.base.read_yaml import read_keys

SECTIONS: dict[str, type[Section]] = {"model": ModelConfig, "training": TrainingConfig, "data": DataConfig}
NOT_TRAINED = ("prediction",)  # read by predictor/formats/llm_trainer.py alone


class Configs(NamedTuple):
    """The three configurations of a run."""

    model: ModelConfig
    training: TrainingConfig
    data: DataConfig


def read_config(path: str | Path) -> Configs:
    """Read a run's configuration; a section that is absent has its defaults.

    Raises:
        ModelConfigurationError: the file cannot be read, a section or key is unknown, or a value is not allowed.
    """
    content = read_keys(Path(path), ModelConfigurationError)
    for name in content:
        if name not in SECTIONS and name not in NOT_TRAINED:
            hint = nearest(name, SECTIONS)
            raise ModelConfigurationError(f"{path}: {name} is no section; expected {', '.join(SECTIONS)}.{hint}")
    sections: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        try:
            sections[name] = section.from_dict(content.get(name) or {})
        except ModelConfigurationError as error:
            raise ModelConfigurationError(f"{path}: {name}: {error}") from None
    configs = Configs(**sections)
    if configs.data.max_length > configs.model.max_seq_len:
        raise ModelConfigurationError(
            f"{path}: data.max_length is {configs.data.max_length}; model.max_seq_len is {configs.model.max_seq_len}. "
            "Shorten the samples, or lengthen the model"
        )
    return configs
