"""``predict_recommender``: step time, memory and sources of one training step of a HugeCTR configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from predictor.core.costs.cost import Cost
from predictor.core.report.json_document import count_by_source
from predictor.core.step import breakdown
from predictor.core.step.breakdown import Answer
from predictor.core.step.memory import GIB
from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.hugectr.to_run import LoadedRecommender, Options, to_run
from predictor.recommender.options import opened, options_of, system_path
from predictor.recommender.report import prediction as report
from predictor.recommender.step import RecommenderParts, RecommenderPrediction, recommender_parts
from predictor.recommender.step import predict_recommender as predict_step
from predictor.recommender.workload.plan import ShardingPlan
from predictor.recommender.workload.run import RecommenderRun

USUAL_WIDTH = 100


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecommenderStep:
    """One predicted training step of a recommender.

    Attributes:
        name: of the configuration and its system.
        loaded: its run on its published system, with what was assumed.
        prediction: the step's costs.
    """

    name: str
    config: HugeCtrConfig
    base: Path
    options: Options
    loaded: LoadedRecommender
    prediction: RecommenderPrediction

    @property
    def step(self) -> Cost:
        """Return the step: ``us``, its 90 % interval ``low_us`` to ``high_us``, and its weakest ``source``."""
        return self.prediction.step

    @property
    def run(self) -> RecommenderRun:
        """Return model, plan and settings as they were predicted."""
        return self.prediction.run

    @property
    def plan(self) -> ShardingPlan:
        """Return the sharding plan; ``write_plan`` writes it."""
        return self.run.plan

    @property
    def samples_per_second(self) -> float:
        """Return samples per second of the whole run."""
        return self.prediction.samples_per_second

    @property
    def parts(self) -> RecommenderParts:
        """Return where the step goes, in microseconds."""
        return recommender_parts(self.prediction, self.loaded.system)

    @property
    def memory_gib(self) -> float:
        """Return the memory of the fullest GPU, in GiB (2³⁰ bytes)."""
        return report.memory_of(self.prediction).total / GIB

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None where the GPU's memory is not known."""
        return self.loaded.system.hardware.gpu.holds(report.memory_of(self.prediction).total)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return time and source of each operator and collective, the longest first."""
        return tuple(breakdown.answers(self.prediction, self.loaded.system))

    @property
    def sources(self) -> dict[str, int]:
        """Return the number of ``answers`` by source."""
        return count_by_source(self.answers)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the prediction takes for granted, a sentence each."""
        return self.loaded.assumptions

    def on(self, system: str | PathLike[str]) -> RecommenderStep:
        """Predict the same question on another system."""
        return _predict(
            self.name.rpartition(" on ")[0], self.config, self.base, replace(self.options, system=system_path(system))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what ``predict --json`` prints."""
        return report.to_json(report.Reported(self.prediction, self.loaded))

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the report that ``predict`` prints, wrapped at ``width`` columns."""
        return report.render(report.Reported(self.prediction, self.loaded), width)

    def __str__(self) -> str:
        """Return the report."""
        return self.text()

    def __repr__(self) -> str:
        """Return name and step in a line."""
        step = self.step
        return f"<{self.name}: {step.us:.6g} us, 90 % interval {step.low_us:.6g} to {step.high_us:.6g}>"


def _predict(name: str, config: HugeCtrConfig, base: Path, options: Options) -> RecommenderStep:
    loaded = to_run(config, options, base)
    prediction = predict_step(loaded.run, loaded.system)
    return RecommenderStep(f"{name} on {loaded.system.name}", config, base, options, loaded, prediction)


def predict_recommender(
    config: str | PathLike[str] | Mapping[str, Any],
    *,
    system: str | PathLike[str] | None = None,
    gpus: int | None = None,
    batch_size: int | None = None,
    plan: str | PathLike[str] | None = None,
    key_exponent: float | None = None,
    precision: str | None = None,
    cached_share: float | None = None,
) -> RecommenderStep:
    """Predict one training step of a HugeCTR configuration.

    Args:
        config: path of the JSON file, or a mapping with the same clauses.
        system: published system, a name or a folder, in place of the clause ``prediction``'s.
        gpus: in place of the solver's.
        batch_size: samples of a step over all GPUs, in place of the solver's.
        plan: file of a sharding plan, or "default", HugeCTR's own placement.
        key_exponent: of the power law of keys; 0 is uniform.
        precision: fp32, fp16 or bf16, in place of the solver's.
        cached_share: of every table's rows that device memory holds; the host has the others.

    Raises:
        FileNotFoundError: there is no such configuration or plan.
        KeyError: a required clause or key is missing.
        ValueError: a value is not allowed, or nothing published answers for it.
    """
    options = options_of(
        system=system,
        gpus=gpus,
        batch_size=batch_size,
        plan=plan,
        key_exponent=key_exponent,
        precision=precision,
        cached_share=cached_share,
    )
    name, read, base = opened(config)
    return _predict(name, read, base, options)
