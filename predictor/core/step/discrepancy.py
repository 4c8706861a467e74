"""Model discrepancy: the distribution of measured over modelled time of runs like this one.

A model of kernels, traffic and launches leaves out gaps between kernels, allocators, data loading, logging and uneven
work. Steps that others published say how much that is. ``discrepancy.yaml`` has a hierarchical linear model of the log
of measured over modelled time, fitted to them by ``training/fitting/discrepancy.py``: one term for all runs, one for
each framework, kind of run and generation of GPUs (whose tables others measured), each as far from zero as its runs say
and no farther; beside them the deviation between sources of one kind, that between runs of one source, and what the
host of an unknown node adds. Point and interval of a step both follow from it (docs/adr/0038-model-discrepancy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, hypot, log, sqrt
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.remembered import remembered
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Conditions
from predictor.core.workload.software import Framework

DATA = Path(__file__).with_suffix(".yaml")
# The same kernel twice on the A100 of the measured tables differs by 3.0 %: no interval's end is nearer.
RUN_NOISE = 0.03
ALL, ORDINARY, UNMEASURED = "all", "ordinary", "unmeasured GPU"
FRAMEWORK, TABLES = "framework ", "tables "
OF_THE_CLUSTER = f"{TABLES}of the cluster"  # on which every operator of a step was measured, not a few by others
GENERATIONS = {
    "Volta": ("NVIDIAV100", "Tesla"),
    "Ampere": ("NVIDIAA100", "NVIDIAA800"),
    "Hopper": ("NVIDIAH", "NVIDIAGH"),
    "Blackwell": ("NVIDIAB", "NVIDIAGB", "NVIDIARTXPRO"),
    "Ada": ("NVIDIAL40", "NVIDIARTX", "NVIDIAGeForce"),
    "CDNA 3": ("AMD",),
}


def generation(gpu: str) -> str:
    """Return the generation of a GPU by the name that its driver gives; the name itself of any other.

    >>> generation("NVIDIAH100-80GB-HBM3"), generation("NVIDIARTXPRO6000")
    ('Hopper', 'Blackwell')
    """
    return next((name for name, starts in GENERATIONS.items() if gpu.startswith(starts)), gpu)


class Runs(BaseModel):
    """Published runs of one framework under one of both conditions; logs are of measured over modelled time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    framework: Framework | None = Field(description="null: of any")
    ordinary: bool
    rows: int = Field(gt=0)
    sources: int = Field(gt=0)
    fewest_gpus: int = Field(gt=0)
    most_gpus: int = Field(gt=0)
    mean_log: float = Field(description="every source counted once")

    @property
    def summary(self) -> str:
        """Return what the runs took, in words."""
        change = exp(self.mean_log) - 1.0
        took = f"{abs(change):.0%} {'longer' if change > 0.0 else 'shorter'} than"
        of = "any framework" if self.framework is None else str(self.framework)
        few, most = (f"{count:,}" for count in (self.fewest_gpus, self.most_gpus))
        sizes = counted(self.most_gpus, "GPU") if few == most else f"{few} to {most} GPUs"
        return (
            f"published {'ordinary' if self.ordinary else 'tuned'} runs of {of} took "
            f"{'as long as' if took.startswith('0%') else took} modelled ({counted(self.rows, 'row')} of "
            f"{counted(self.sources, 'source')}, {sizes})"
        )


class DiscrepancyModel(BaseModel):
    """Terms of the log of measured over modelled time, and what deviates from their sum; deviations are standard ones.

    Source: predictor/evidence/published, whose rows were fitted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    means: dict[str, float] = Field(description="expected terms, by name")
    covariance: tuple[tuple[float, ...], ...] = Field(description="of the terms, in their order; the lower triangle")
    new_framework: float = Field(gt=0, description="deviation of the term of a framework without runs")
    new_tables: float = Field(gt=0, description="of the term of tables of a generation of GPUs without runs")
    sources: dict[str, float] = Field(description="between sources, by framework, and of any other")
    within: float = Field(gt=0, description="between runs of one source")
    ordinary: float = Field(gt=0, description="both deviations of ordinary runs, over those of tuned ones")
    host: float = Field(ge=0, description="per share of a step that waits for the host: its processor is not known")
    operators: float = Field(ge=0, description="share of the variance of operators' own intervals that adds")
    low: float = Field(
        lt=0, description="lower end, in deviations, of the shortest interval that holds 90 % of left-out runs"
    )
    high: float = Field(gt=0, description="its upper end")
    runs: tuple[Runs, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """Return the place of every term in the covariance."""
        return {name: place for place, name in enumerate(self.means)}

    @cached_property
    def _variances(self) -> dict[tuple[str, ...], float]:
        """Variances of the terms that were asked for."""
        return {}

    def _covariance(self, one: str, other: str) -> float:
        first, second = sorted((self.places[one], self.places[other]))
        return self.covariance[second][first]

    def mean(self, terms: tuple[str, ...]) -> float:
        """Return the expected log of measured over modelled time."""
        return sum(self.means.get(name, 0.0) for name in terms)

    def variance(self, terms: tuple[str, ...]) -> float:
        """Return how uncertain that expectation is, as a variance."""
        return remembered(self._variances, terms, lambda: self._variance(terms))

    def _variance(self, terms: tuple[str, ...]) -> float:
        known = [name for name in terms if name in self.places]
        together = sum(self._covariance(one, other) for one in known for other in known)
        new = {FRAMEWORK: self.new_framework, TABLES: self.new_tables}
        return together + sum(
            deviation**2 for word, deviation in new.items() if not any(name.startswith(word) for name in known)
        )

    def between(self, framework: Framework | None, terms: tuple[str, ...]) -> float:
        """Return the deviation between sources of a framework."""
        return self.sources.get(str(framework), self.sources["other"]) * self.times(terms)

    @property
    def unknown(self) -> float:
        """Return how far the modelled time of ordinary runs of unknown software errs as a whole, as a deviation."""
        return hypot(self.new_framework, self.sources["other"] * self.ordinary)

    def times(self, terms: tuple[str, ...]) -> float:
        """Return how far runs with these terms lie apart, over tuned ones."""
        return self.ordinary if ORDINARY in terms else 1.0

    def closest(self, framework: Framework | None, ordinary: bool) -> Runs:
        """Return the runs of a framework under such conditions; of any framework where there are none."""
        alike = [each for each in self.runs if each.ordinary is ordinary]
        any_framework = next(each for each in alike if each.framework is None)
        return next((each for each in alike if each.framework is framework), any_framework)


@lru_cache(maxsize=1)
def discrepancy_model() -> DiscrepancyModel:
    """Read the model, once per process."""
    return DiscrepancyModel.model_validate(read_mapping(DATA))


def terms_of(run: TrainingRun, system: PublishedSystem, ordinary: bool) -> tuple[str, ...]:
    """Return the terms of a run.

    Args:
        run: that is predicted.
        system: that it runs on.
        ordinary: it is no tuned benchmark.
    """
    has = {
        ORDINARY: ordinary,
        "experts": run.model.experts is not None,
        "low precision": run.gemm_recipe is not None,
        "adapters": run.lora is not None,
        UNMEASURED: not system.has_own_operators,
        f"{FRAMEWORK}{run.framework}": run.framework is not None,
    }
    is_measured_whole = system.hardware.transfer is None and system.hardware.like is None
    tables = OF_THE_CLUSTER if is_measured_whole else f"{TABLES}{generation(system.gpu)}"
    return (ALL, *(name for name, is_so in has.items() if is_so), tables)


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Measured over modelled time of one run, as it is expected.

    Attributes:
        log_mean: expected log.
        low_log, high_log: ends of its 90 % interval.
        conditions: under which the run is predicted.
        other_log_mean: expected log under the other conditions.
        systematic: deviation of the log between sources that are like this run's, its expectation's own included.
        runs: published ones of its kind.
    """

    log_mean: float
    low_log: float
    high_log: float
    conditions: Conditions
    other_log_mean: float
    systematic: float
    runs: Runs

    @property
    def ratio(self) -> float:
        """Return measured over modelled time."""
        return exp(self.log_mean)

    def log_means(self) -> Mapping[Conditions, float]:
        """Return the expected log under both conditions, tuned first."""
        other = Conditions.ORDINARY if self.conditions is Conditions.TUNED else Conditions.TUNED
        both = {self.conditions: self.log_mean, other: self.other_log_mean}
        return {each: both[each] for each in (Conditions.TUNED, Conditions.ORDINARY)}

    def applied(self, modelled: Cost, retries: float = 0.0) -> Cost:
        """Return a modelled step with what is not modelled, and its interval.

        Args:
            modelled: time of the step.
            retries: log by which allocations that are tried again may lengthen it, where memory is nearly full.
        """
        us, high_log = modelled.us * self.ratio, self.high_log + retries
        return Cost(us, modelled.us * exp(self.low_log), modelled.us * exp(high_log), modelled.source)


def operators_deviation(step: Cost, closing: Cost) -> float:
    """Return the standard deviation of the log of a step, of operators and machines, as if its update were sure.

    On most GPUs no table holds an update: its time is a donor's, by the bytes, and so is far surer than the interval of
    operators that are derived without rows.

    Args:
        step: with the interval that operators and machines make.
        closing: the longest update behind the last reduction, part of the step.
    """
    low = min(step.low_us + (closing.us - closing.low_us), step.us)
    high = max(step.high_us - (closing.high_us - closing.us), step.us)
    return log(high / low) / 2.0 / TWO_SIDED_90


def deviation_of(
    model: DiscrepancyModel,
    terms: tuple[str, ...],
    framework: Framework | None,
    host_share: float,
    operators: float,
) -> float:
    """Return the standard deviation of the log of measured over modelled time of a run of a source without others.

    Args:
        model: that has the terms.
        terms: of the run.
        framework: that trains; None: not said.
        host_share: of the step, in which it waits for the host.
        operators: deviation of the log of the step, of operators and machines.
    """
    within = (model.within * model.times(terms)) ** 2 + (model.host * host_share) ** 2 + model.operators * operators**2
    return sqrt(model.variance(terms) + model.between(framework, terms) ** 2 + within)


def discrepancy(
    run: TrainingRun,
    system: PublishedSystem,
    host_share: float,
    operators: float,
    model: DiscrepancyModel | None = None,
) -> Discrepancy | None:
    """Return what is not modelled of a run; None where nothing that was published tells.

    That is a run predicted by the model alone, on a calibrated system, whose own runs tell, and on processors.

    Args:
        run: that is predicted.
        system: that it runs on.
        host_share: of the step, in which it waits for the host.
        operators: deviation of the log of the step, of operators and machines.
        model: of the discrepancy; the published one if absent.
    """
    conditions = run.conditions
    is_gpu = system.hardware.links.engine != "processor"
    if conditions is Conditions.MODEL or system.hardware.calibration is not None or not is_gpu:
        return None
    model, ordinary = model or discrepancy_model(), conditions is Conditions.ORDINARY
    terms, other = (terms_of(run, system, each) for each in (ordinary, not ordinary))
    deviation = deviation_of(model, terms, run.framework, host_share, operators)
    mean = model.mean(terms)
    return Discrepancy(
        log_mean=mean,
        low_log=mean + min(model.low * deviation, -RUN_NOISE),
        high_log=mean + max(model.high * deviation, RUN_NOISE),
        conditions=conditions,
        other_log_mean=model.mean(other),
        systematic=sqrt(model.variance(terms) + model.between(run.framework, terms) ** 2),
        runs=model.closest(run.framework, ordinary),
    )
