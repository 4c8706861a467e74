"""Recommenders' training runs: HugeCTR's JSON with a clause ``prediction`` for settings that the file lacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.costs.published import PublishedSystem
from predictor.core.predict.workloads import Kind, Opened, Program
from predictor.core.schema.finding import find_folder, published
from predictor.core.schema.input_kind import is_hugectr
from predictor.core.step.composition import StepTime
from predictor.recommender.hugectr.plan_file import plan_entries
from predictor.recommender.hugectr.reading import parse_hugectr
from predictor.recommender.hugectr.to_run import HUGECTR_PLAN, LoadedRecommender, Options, to_run
from predictor.recommender.step import predict_recommender
from predictor.recommender.workload.run import RecommenderRun

HUGECTR = Program("hugectr.measure", ("hugectr", "torchrec"), "config.json")
# Of the clause prediction: what is of a machine or of a bill; a run is the same on any system.
NOT_OF_THE_RUN = {"system", "price_per_gpu_hour"}


@dataclass(frozen=True, slots=True)
class RecommenderWorkload:
    """A recommender's training run."""

    loaded: LoadedRecommender

    @property
    def run(self) -> RecommenderRun:
        """Return model, plan and settings."""
        return self.loaded.run

    @property
    def program(self) -> Program:
        """Return the trainer of recommenders."""
        return HUGECTR

    @property
    def system(self) -> PublishedSystem:
        """Return what predicts it."""
        return self.loaded.system

    @property
    def num_gpus(self) -> int:
        """Return its ranks."""
        return self.run.num_gpus

    @property
    def num_stages(self) -> int:
        """Return 1: every rank has the whole dense network."""
        return 1

    @property
    def precision(self) -> str:
        """Return the precision of its products."""
        return self.run.precision

    def predict(self) -> StepTime:
        """Predict one step; errors as ``Workload.predict``."""
        return predict_recommender(self.run, self.system)


def opened(content: dict[str, Any], base: Path, system: str | None) -> Opened:
    """Read a configuration; the plan that it names is written out in the content, so that it runs from any folder.

    Raises:
        ConfigError, MissingKeyError, PublishedError: as ``parse_hugectr`` and ``to_run``.
    """
    config = parse_hugectr(content)
    if system is None and config.prediction.system is None:
        raise ConfigError(f"system is missing; --system NAME says which published system predicts: {published()}")
    folder = None if system is None else str(find_folder(system, Path.cwd()))
    loaded = to_run(config, Options(system=folder), base)
    clause = {
        key: value
        for key, value in config.prediction.model_dump(mode="json", exclude_defaults=True).items()
        if key not in NOT_OF_THE_RUN
    }
    if config.prediction.plan != HUGECTR_PLAN:
        clause["plan"] = plan_entries(loaded.run.plan)
    return Opened({**content, "prediction": clause}, RecommenderWorkload(loaded))


RECOMMENDER = Kind(is_hugectr, opened)
