"""Time, energy and cost of a whole training, from the time of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from statistics import NormalDist, fmean

from predictor.core.base.quantities import HOURS_PER_DAY
from predictor.core.costs.cost import Cost
from predictor.core.hardware.hardware import Gpu
from predictor.core.hardware.power import NodePower, node_power_per_gpu_w
from predictor.core.plan.loading import Loaded
from predictor.core.reliability.job import SECONDS_PER_HOUR, Job
from predictor.core.report.goodput import DRAWS, Goodput, goodput
from predictor.core.schema.sections import BudgetSection
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import Prediction
from predictor.core.workload.transformer_memory import checkpoint_bytes

STRATA = 101  # equally likely times of a training; odd, so that the median is one of them


@dataclass(frozen=True, slots=True)
class Bill:
    """A number of steps with their 90 % interval, evaluation not counted; failures and checkpoints in goodput alone.

    Attributes:
        steps: number of steps; 1 without a number of training tokens.
        hours, low_hours, high_hours: wall time.
        gpu_hours: wall time of all GPUs.
        energy_kwh: of the GPUs with their share of the nodes; None where their power is not known.
        low_energy_kwh, high_energy_kwh: of the interval of the time, at the least and the most power of measured nodes.
        power_per_gpu_w: behind that energy.
        power_source: source of the power; None where it is not known.
        price: in the currency of the price per GPU-hour; None without one.
        energy_price, carbon_kg: of the energy, at the mean over the hours of a day where they differ; None where they
            or the power are not known.
        goodput: of a whole training; None of a single step.
    """

    steps: int
    hours: float
    low_hours: float
    high_hours: float
    gpu_hours: float
    energy_kwh: float | None
    low_energy_kwh: float | None
    high_energy_kwh: float | None
    power_per_gpu_w: float | None
    power_source: str | None
    price: float | None
    energy_price: float | None = None
    carbon_kg: float | None = None
    goodput: Goodput | None = None

    @property
    def days(self) -> float:
        """Return the wall time in days."""
        return self.hours / HOURS_PER_DAY


def equally_likely(hours: float, low: float, high: float, strata: int = STRATA) -> list[float]:
    """Return equally likely values of a time by its 90 % interval: lognormal on each side of its median.

    >>> drawn = equally_likely(1.0, 0.8, 1.5, strata=1001)
    >>> [round(drawn[place], 2) for place in (50, 500, 950)]
    [0.8, 1.0, 1.5]
    """
    ends = [log(hours / low), log(high / hours)]
    normal = [NormalDist().inv_cdf((i + 0.5) / strata) for i in range(strata)]
    return [hours * exp(each * ends[each > 0] / TWO_SIDED_90) for each in normal]


def job_of(prediction: Prediction, loaded: Loaded, whole: Bill) -> Job:
    """Return a training of predicted steps, with draws of its hours, for what interrupts it."""
    layout = loaded.run.layout
    on_gpu = max(memory.weights + memory.optimizer for memory in step_memory(prediction.tasks))
    hours = equally_likely(whole.hours, whole.low_hours, whole.high_hours)
    step_s = prediction.step.us / 1e6
    return Job(layout.num_gpus, layout.gpus_per_node, hours, on_gpu, checkpoint_bytes(loaded.run), step_s)


def prediction_bill(prediction: Prediction, loaded: Loaded, draws: int = DRAWS) -> Bill:
    """Return the bill of a training of predicted steps.

    Args:
        prediction: of a step.
        loaded: the run, its system and its budget.
        draws: behind the interval of its goodput; 0 for none.
    """
    run, hardware, budget = loaded.run, loaded.system.hardware, loaded.budget
    whole = bill(prediction.step, run.layout.num_gpus, run.tokens_per_step, hardware.gpu, budget)
    if budget.train_tokens is None:
        return whole
    return replace(whole, goodput=goodput(job_of(prediction, loaded, whole), hardware, budget, draws))


def _power_per_gpu(gpu: Gpu, budget: BudgetSection) -> NodePower | None:
    """Return the power of a GPU with its share of the node, in W: its limit and what a node takes beside it."""
    if budget.power_per_gpu_w is not None:
        said = budget.power_per_gpu_w
        return NodePower(value=said, low=said, high=said, source="the configuration")
    limit, name = (gpu.power_limit_w, "power limit") if gpu.power_limit_w is not None else (gpu.board_power_w, "board")
    if limit is None:
        return None
    share = node_power_per_gpu_w(gpu)
    source = f"{name} {limit.value:,.0f} ({limit.source}) + node {share.value:,.0f} ({share.source})"
    low, value, high = (limit.value + watts for watts in (share.low, share.value, share.high))
    return NodePower(value=value, low=low, high=high, source=source)


def mean_from(by_hour: Sequence[float], start: float | None, hours: float) -> float:
    """Return the mean over hours from one of the day on; that of the day where nobody says which.

    >>> day = [1.0] * 12 + [3.0] * 12
    >>> mean_from(day, None, 5.0), mean_from(day, 10.0, 4.0), mean_from(day, 23.5, 1.0), mean_from(day, 6.0, 36.0)
    (2.0, 2.0, 2.0, 2.0)
    >>> mean_from(day, 13.0, 2.0), round(mean_from(day, 12.0, 36.0), 3)
    (3.0, 2.333)
    """
    if start is None or not hours:
        return fmean(by_hour)

    def until(hour: float) -> float:
        days, of_day = divmod(hour, len(by_hour))
        return days * sum(by_hour) + sum(by_hour[: int(of_day)]) + by_hour[int(of_day)] * (of_day % 1.0)

    return (until(start + hours) - until(start)) / hours


def _of_energy(
    kwh: float | None, per_kwh: float | tuple[float, ...] | None, start: float | None, hours: float
) -> float | None:
    """Return what energy costs that is drawn evenly over so many hours."""
    if kwh is None or per_kwh is None:
        return None
    return kwh * (mean_from(per_kwh, start, hours) if isinstance(per_kwh, tuple) else per_kwh)


def bill(step: Cost, num_gpus: int, tokens_per_step: int, gpu: Gpu, budget: BudgetSection) -> Bill:
    """Return the bill of a training."""
    steps = ceil(budget.train_tokens / tokens_per_step) if budget.train_tokens is not None else 1
    hours, low, high = (steps * us / 1e6 / SECONDS_PER_HOUR for us in (step.us, step.low_us, step.high_us))
    power = _power_per_gpu(gpu, budget)
    gpu_hours = hours * num_gpus
    kwh = None if power is None else [num_gpus / 1000.0 * each for each in (low * power.low, high * power.high)]
    energy = None if power is None else gpu_hours * power.value / 1000.0
    return Bill(
        steps=steps,
        hours=hours,
        low_hours=low,
        high_hours=high,
        gpu_hours=gpu_hours,
        energy_kwh=energy,
        low_energy_kwh=None if kwh is None else kwh[0],
        high_energy_kwh=None if kwh is None else kwh[1],
        power_per_gpu_w=None if power is None else power.value,
        power_source=None if power is None else power.source,
        price=None if budget.price_per_gpu_hour is None else gpu_hours * budget.price_per_gpu_hour,
        energy_price=_of_energy(energy, budget.energy_price_per_kwh, budget.start_hour, hours),
        carbon_kg=_of_energy(energy, budget.carbon_kg_per_kwh, budget.start_hour, hours),
    )
