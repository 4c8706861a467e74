"""Software families with published runs, and the interval that their errors make around a prediction.

Frameworks differ in what a model of kernels and traffic leaves out: gaps between kernels, allocators, fallbacks. Steps
that others published say how far predictions of a family lie from what was measured; ``published_runs.yaml`` has the
errors per family, kind of run, and generation of GPUs.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import Framework

DATA = Path(__file__).with_name("published_runs.yaml")
WIDE = 8  # tensor parallel size from which on kernels are short and collectives many; a family may tell such runs apart
# Rows of a family of all frameworks that make the interval of a plain run that names none.
ENOUGH_ROWS = 10
# Configurations of a framework from which on it is known to err to one side; fewer leave room for the operators' error.
ENOUGH_CONFIGURATIONS = 10
# The same kernel twice on the A100 of the measured tables differs by 3.0 %: no evidence is surer than a run of it.
RUN_NOISE = 0.03
SHARDS_GRADIENTS = 2  # the ZeRO stage from which on ranks hold a share of the gradients


IN_WORDS = {
    "experts": "with experts",
    "low_precision": "in 8 or 4 bits",
    "blocking_launches": "with blocking launches",
    "sharded": "with ZeRO-2/3 or FSDP",
    "adapters": "with adapters",
}


class Kind(NamedTuple):
    """What tells runs of one framework apart.

    Attributes:
        experts: a mixture of experts.
        low_precision: linear layers compute in 8 or 4 bits.
        blocking_launches: the host waits for every kernel.
        sharded: ZeRO-2/3 or FSDP.
        adapters: low-rank adapters train, base weights do not.
    """

    experts: bool
    low_precision: bool
    blocking_launches: bool
    sharded: bool
    adapters: bool


class Family(BaseModel):
    """Errors of published runs of one family; logs are of measured over predicted time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experts: bool = Field(description="of its kind, as the next four")
    low_precision: bool
    blocking_launches: bool
    sharded: bool
    adapters: bool = False
    framework: Framework | None = Field(description="null: of all frameworks together, at least two")
    gpus: tuple[str, ...] = Field(description="GPUs of one generation; empty: all")
    wide: bool = Field(default=False, description="only runs whose tensor parallelism fills a node of eight")
    rows: int = Field(gt=0)
    configurations: int = Field(gt=0, description="different ones among the rows")
    fewest_gpus: int = Field(gt=0, description="of a row")
    most_gpus: int = Field(gt=0, description="of a row")
    most_host_share: float = Field(
        ge=0, description="of a step that a row is predicted to wait for the host's launches"
    )
    mean_log: float
    deviation: float = Field(ge=0, description="standard deviation of the logs")
    low_log: float = Field(description="5 % of the runs to come measure less than this beyond the prediction")
    high_log: float = Field(description="5 % of the runs to come measure more")
    operator_log_error: float = Field(
        ge=0, description="half width of these rows' intervals as operators and machines make them, the widest of ten"
    )

    @property
    def kind(self) -> Kind:
        """Return what tells its runs apart from others of the framework."""
        return Kind(self.experts, self.low_precision, self.blocking_launches, self.sharded, self.adapters)

    @property
    def ratio(self) -> float:
        """Return measured over predicted time, as a geometric mean."""
        return exp(self.mean_log)

    @property
    def summary(self) -> str:
        """Return rows and errors in words."""
        share = f"{abs(self.ratio - 1.0):.0%} {'longer' if self.mean_log > 0.0 else 'shorter'} than"
        took = "as long as" if share.startswith("0%") else share
        own = "of any framework" if self.framework is None else f"of {self.framework}"
        kinds = [IN_WORDS[name] for name, is_so in zip(Kind._fields, self.kind, strict=True) if is_so]
        kinds += ["with tensor parallelism over 8 GPUs or more"] if self.wide else []
        where = "on GPUs of this generation" if self.gpus else "on other GPUs too"
        few, most = (f"{count:,}" for count in (self.fewest_gpus, self.most_gpus))
        sizes = counted(self.most_gpus, "GPU") if few == most else f"{few} to {most} GPUs"
        return (
            f"Published runs {' '.join([own, *kinds])}, {where} ({counted(self.rows, 'row')}, {sizes}), took "
            f"{took} predicted on average, with a standard deviation of "
            f"{self.deviation:.0%}"
        )


class Families(BaseModel):
    """All families."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    families: tuple[Family, ...]


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Read the families, once per process."""
    return Families.model_validate(read_mapping(DATA)).families


def kind_of(run: TrainingRun) -> Kind:
    """Return what tells a run apart from others of its framework."""
    return Kind(
        experts=run.model.experts is not None,
        low_precision=run.gemm_recipe is not None,
        blocking_launches=run.blocking_launches,
        sharded=run.zero_stage >= SHARDS_GRADIENTS and run.layout.gradient_ranks > 1,
        adapters=run.lora is not None,
    )


def closest_family(run: TrainingRun, gpu: str) -> Family | None:
    """Return the family with the most specific evidence for a run; None where there is none.

    Its framework on GPUs of the same generation, with as wide tensor parallelism where such runs are told apart; then
    its framework on any GPU, then all frameworks.
    """
    return _closest(kind_of(run), run.layout.tensor_parallel_size >= WIDE, run.framework, gpu)


@lru_cache(maxsize=1024)
def _closest(kind: Kind, is_wide: bool, of: Framework | None, gpu: str) -> Family | None:
    alike = [each for each in families() if each.kind == kind and (is_wide or not each.wide)]
    alike.sort(key=lambda each: not each.wide)
    for framework, same_gpu in ((of, True), (of, False), (None, True), (None, False)):
        for each in alike:
            if each.framework == framework and (gpu in each.gpus if same_gpu else not each.gpus):
                return each
    return None


def is_plain(run: TrainingRun) -> bool:
    """Return whether a run names no framework and computes in 16 bits, without sharding or experts."""
    kind = kind_of(run)
    return run.framework is None and not (kind.sharded or kind.low_precision or kind.experts)


def family_of(run: TrainingRun, gpu: str) -> Family | None:
    """Return the family whose errors make a run's interval; None where operators and machines make it.

    A plain run is like those of all frameworks on its generation of GPUs, if there are enough of them.
    """
    family = closest_family(run, gpu)
    if family is not None and is_plain(run) and (not family.gpus or family.rows < ENOUGH_ROWS):
        return None
    return family


def with_sure_update(step: Cost, closing: Cost) -> Cost:
    """Return a step with its interval as if its closing update took the predicted time.

    On most GPUs no table holds an update: its time is a donor's, by the bytes, and so is far surer than the interval of
    operators that are derived without rows.

    Args:
        step: with the interval that operators and machines make.
        closing: the longest update behind the last reduction, part of the step.
    """
    low = step.low_us + (closing.us - closing.low_us)
    high = step.high_us - (closing.high_us - closing.us)
    return Cost(step.us, min(low, step.us), max(high, step.us), step.source)


def published_family(run: TrainingRun, system: PublishedSystem, of_interval: Family | None) -> Family | None:
    """Return the family of published runs that a prediction is held against; None where there is none.

    It is the one that makes the interval; where operators make it, one stands beside a system that is known from a
    data sheet alone. A calibrated system has runs of its own.

    Args:
        run: that was predicted.
        system: that it was predicted on.
        of_interval: family that makes its interval; None where operators and machines do.
    """
    if system.hardware.calibration is not None:
        return None
    if of_interval is not None or system.has_own_operators:
        return of_interval
    return closest_family(run, system.gpu)


def interval_of(family: Family, step: Cost) -> Cost:
    """Return a step with the interval of its family.

    Where operators are less sure than those of the published rows were, what they add widens it. The prediction itself
    stays inside: where evidence lies to one side, the other reaches as far as the operators' own error, and of a
    framework with enough configurations as far as a run's noise.
    """
    half_own = log(step.high_us / step.low_us) / 2.0
    wider = sqrt(max(0.0, half_own**2 - family.operator_log_error**2))
    middle, half = (family.low_log + family.high_log) / 2.0, (family.high_log - family.low_log) / 2.0
    half = hypot(half, wider)
    is_known = family.framework is not None and family.configurations >= ENOUGH_CONFIGURATIONS
    reach = RUN_NOISE if is_known else max(half_own, RUN_NOISE)
    low, high = middle - half, middle + half
    low, high = (-reach if low > -RUN_NOISE else low), (reach if high < RUN_NOISE else high)
    return Cost(step.us, step.us * exp(low), step.us * exp(high), step.source)


def share_beyond(family: Family, system: PublishedSystem, host_share: float) -> float:
    """Return the share of a step of which a family says nothing.

    It is the whole on a GPU that nobody measured, and what is spent in waiting for the host beyond any of its rows.
    """
    if not family.gpus and not system.has_own_operators:
        return 1.0
    return max(0.0, host_share - family.most_host_share)


def bounded_step(
    run: TrainingRun, system: PublishedSystem, step: Cost, closing: Cost, host_share: float
) -> tuple[Cost, Family | None]:
    """Return a step with its interval, and the family that makes it; None where operators and machines do.

    A plain run none of whose operators is analytic keeps their interval where that is narrower. Runs on other GPUs make
    no prediction surer, on a GPU that nobody measured, than its operators do, nor runs of long kernels the time that
    one waits for the host beyond them: for that share each end is the farther one.

    Args:
        run: that was predicted.
        system: that it was predicted on.
        step: with the interval that operators and machines make.
        closing: the longest update behind the last reduction, part of the step.
        host_share: share of the step in which it waits for the host.
    """
    family = family_of(run, system.gpu)
    if family is None:
        return step, None
    bounded = interval_of(family, with_sure_update(step, closing))
    is_narrower = step.high_us / step.low_us <= bounded.high_us / bounded.low_us
    if is_plain(run) and step.source < Source.ANALYTIC and is_narrower:
        return step, None
    beyond = share_beyond(family, system, host_share)
    low = bounded.low_us - beyond * max(0.0, bounded.low_us - step.low_us)
    high = bounded.high_us + beyond * max(0.0, step.high_us - bounded.high_us)
    return Cost(step.us, low, high, step.source), family
