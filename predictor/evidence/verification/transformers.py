"""Transformers' training runs: any configuration that a prediction reads, in its full form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.costs.published import PublishedSystem
from predictor.core.plan import short_config
from predictor.core.plan.loading import Loaded, in_full, of_trainer, prepare
from predictor.core.predict.workloads import Kind, Opened, Program
from predictor.core.schema.finding import find_folder, published
from predictor.core.schema.inherited_keys import completed, of_record
from predictor.core.schema.input_kind import EXPERIMENT, is_of_trainer
from predictor.core.schema.sections import RunConfig, validate
from predictor.core.step.composition import StepTime
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import Framework

# Of a machine or of a bill; a run is the same on any system.
NOT_OF_THE_RUN = {"system", "gpu", "budget"}
LLM_TRAINER = Program("llm_trainer.measure", ("llm_trainer",), "config.yaml")


@dataclass(frozen=True, slots=True)
class TransformerWorkload:
    """A transformer's training run."""

    loaded: Loaded

    @property
    def run(self) -> TrainingRun:
        """Return model, layout and training."""
        return self.loaded.run

    @property
    def program(self) -> Program:
        """Return the reference trainer."""
        return LLM_TRAINER

    @property
    def system(self) -> PublishedSystem:
        """Return what predicts it."""
        return self.loaded.system

    @property
    def num_gpus(self) -> int:
        """Return its ranks."""
        return self.run.layout.num_gpus

    @property
    def num_stages(self) -> int:
        """Return its pipeline stages."""
        return len(self.run.layers_per_stage)

    @property
    def precision(self) -> str:
        """Return the precision of its products."""
        return self.run.precision

    def predict(self) -> StepTime:
        """Predict one step; errors as ``Workload.predict``."""
        return predict(self.run, self.system)


def tells(content: Mapping[str, Any]) -> bool:
    """Return whether a content is a transformer's configuration in any form."""
    return bool({"model", "training_config", EXPERIMENT} & set(content))


def on_system(content: dict[str, Any], system: str | None) -> dict[str, Any]:
    """Return a configuration on another system, its layout as it is: it has run, or will run, like that.

    Args:
        content: in any form.
        system: name, or folder from the current one; None for the configuration's own.

    Raises:
        ConfigError: there is no such system.
    """
    if system is None:
        return content
    folder = str(find_folder(system, Path.cwd()))
    if is_of_trainer(content):
        asked = content.get("prediction") or {}
        return {**content, "prediction": {**asked, "system": folder}} if isinstance(asked, dict) else content
    full = short_config.expand(content) if short_config.is_short(content) else content
    return {**full, "system": folder, "gpu": None}


def recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a record holds; in its full form every switch that it does not say was off."""
    is_full = {"model", "training"} <= content.keys() and "from" not in content
    return of_record(dict(content)) if is_full and not is_of_trainer(content) else dict(content)


def _full_form(content: dict[str, Any], base: Path) -> RunConfig:
    content, _ = of_trainer(content, base)
    if short_config.is_short(content):
        return validate(short_config.expand(content), is_short=True)
    whole, _ = completed(content, base)
    return validate(in_full(whole, base)[0])


def opened(content: dict[str, Any], base: Path, system: str | None) -> Opened:
    """Read a configuration.

    Args:
        content: in any form.
        base: folder that paths in it are relative to.
        system: that predicts, instead of its own.

    Raises:
        ConfigError, MissingKeyError, PublishedError: as ``prepare``.
    """
    content = on_system(content, system)
    if not ("system" in content or is_of_trainer(content) or short_config.is_short(content)):
        raise ConfigError(f"system is missing; --system NAME says which published system predicts: {published()}")
    config = _full_form(content, base)
    full = config.model_dump(mode="json", exclude=NOT_OF_THE_RUN, exclude_none=True)
    if config.training.framework is Framework.PYTORCH:
        del full["training"]["framework"]  # all that it means is said; records from before the name keep their hash
    return Opened(full, TransformerWorkload(prepare(content, base)))


TRANSFORMER = Kind(tells, opened)
