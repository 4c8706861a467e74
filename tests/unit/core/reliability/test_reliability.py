"""What a budget leaves out comes from what clusters counted, without those that are left out."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, log
from random import Random
from statistics import fmean
from typing import Any

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.published import open_system
from predictor.core.reliability.events import Chance, DrawnEvents
from predictor.core.reliability.failure_rates import (
    Cluster,
    Kind,
    clusters,
    failure_rates,
    planned_per_month,
    stop_minutes,
)
from predictor.core.reliability.job import Job
from predictor.core.reliability.new_cluster import KNOWN
from predictor.core.reliability.reliability import COUNTED_HOURS, Reliability, reliability_of
from predictor.core.reliability.simulate import expected, simulate
from predictor.core.schema.sections import BudgetSection
from tests.unit.core.reliability.test_simulation import SAVES, job, known

PER_1000_NODE_DAYS = 8 * 24 * 1000


def of(budget: dict[str, Any], num_nodes: int = 128, without: tuple[str, ...] = ()) -> Reliability:
    system = open_system(REGRESSORS_FOLDER / "H100", "bf16").hardware
    return reliability_of(BudgetSection(**budget), system, num_nodes, without)


def test_llama_3_s_kinds_add_up_to_its_interruptions() -> None:
    llama = next(cluster for cluster in clusters() if cluster.name == "Llama 3 405B")
    assert sum(llama.kinds.values()) == llama.interruptions == 419
    assert llama.per_gpu_hour * PER_1000_NODE_DAYS == pytest.approx(3.79, abs=0.01)


def test_every_counted_cluster_lies_where_the_others_leave_it_but_opt() -> None:
    missed = [
        cluster.name
        for cluster in clusters()
        if cluster.interruptions is not None
        for rates in [failure_rates(cluster.generation, frozenset([cluster.name]))]
        if abs(log(cluster.per_gpu_hour / rates.per_gpu_hour)) > log(rates.spread.factor(0.95))
    ]
    assert missed == ["OPT-175B"]


def test_who_is_left_out_takes_no_part() -> None:
    every, others = failure_rates("hopper"), failure_rates("hopper", frozenset(["OPT-175B"]))
    assert others.per_gpu_hour < every.per_gpu_hour
    assert "OPT-175B" in every.source
    assert "OPT-175B" not in others.source
    assert sum(failure_rates("hopper", frozenset(["Llama 3 405B"])).shares.values()) == pytest.approx(1.0)


def test_planned_stops_have_a_mean_among_those_that_were_counted() -> None:
    counted = [(each.planned_stops or 0) / (each.days or 1) * 730 / 24 for each in clusters() if each.planned_stops]
    found = planned_per_month()
    mean = found.median * fmean(found.spread.factor((i + 0.5) / 1000) for i in range(1000))
    assert found.median < mean < 0.6 * max(counted)
    low, high = (found.median * found.spread.factor(probability) for probability in (0.05, 0.95))
    assert low < min(counted) < max(counted) < high


def test_people_take_longer_than_machines() -> None:
    automatic, manual = of({}), of({"recovery": "manual"})
    assert manual.stop_hours > 3 * automatic.stop_hours
    assert of({"detection_minutes": 3.0, "restart_minutes": 4.0}).stop_hours == pytest.approx(7 / 60)
    assert of({"detection_minutes": 3.0, "restart_minutes": 4.0}).stop_spread == KNOWN
    assert stop_minutes("automatic").median == pytest.approx(20, abs=1)


def test_hangs_last_as_long_as_their_time_out() -> None:
    longer = of({"hang_timeout_minutes": 30.0}).stop_hours - of({}).stop_hours
    assert longer == pytest.approx(0.133 * 20 / 60, rel=0.01)
    assert of({"hang_timeout_minutes": 30.0, "detection_minutes": 3.0}).stop_hours == pytest.approx(13 / 60)


def test_spares_suffice_unless_their_number_is_given() -> None:
    assert of({}, num_nodes=1000).spare_nodes > of({}, num_nodes=100).spare_nodes > 0
    rare = of({"mtbf_per_gpu_hours": 20_000.0}, num_nodes=128)
    few = replace(of({"mtbf_per_gpu_hours": 20_000.0, "spare_nodes": 0}, num_nodes=128))
    training = Job(1024, 8, 1000.0, 1e9, 1e9, 1.0)
    assert expected(training, rare, SAVES).waiting < 0.02 * expected(training, few, SAVES).waiting
    assert of({"mtbf_per_gpu_hours": 20.0}, num_nodes=32).spare_nodes == 4  # an eighth of the job's
    assert of({}, num_nodes=1).spare_nodes == 1


def test_spares_suffice_99_percent_of_the_time_over_clusters_and_months() -> None:
    num_nodes, random = 1000, Random(1)
    found = of({}, num_nodes=num_nodes)
    median = found.failures.per_gpu_hour * 8 * num_nodes * found.removed * found.repair_hours
    beyond = 0
    for _ in range(5000):
        load = median * found.failures.spread.factor(random.random())
        shape = 1.0 / expm1(found.monthly_scatter**2)
        out = DrawnEvents(random.getrandbits(30), 0).count(Chance.WAITS, load, shape)
        beyond += out > found.spare_nodes
    assert beyond / 5000 == pytest.approx(0.01, abs=0.005)


def test_a_young_run_has_more_software_failures() -> None:
    rates = of({})
    assert rates.software_share == failure_rates("hopper").shares[Kind.SOFTWARE] > 0
    assert rates.software_aging(COUNTED_HOURS) == pytest.approx(1.0)
    assert rates.software_aging(24.0) > rates.software_aging(240.0) > 1.0 > rates.software_aging(10 * COUNTED_HOURS)
    assert rates.software_aging(0.0) == rates.software_aging(24.0)
    assert of({"mtbf_per_gpu_hours": 1e5}).software_aging(24.0) == 1.0


def test_rollbacks_lose_an_interval_and_a_restart() -> None:
    plain, often = known(1e9, planned_hours=0.5), known(1e9, planned_hours=0.5, rollbacks_per_hour=0.01)
    without, found = expected(job(1000.0), plain, SAVES), expected(job(1000.0), often, SAVES)
    rollbacks = 0.01 * without.hours
    assert found.recomputed - without.recomputed == pytest.approx(rollbacks * SAVES.interval_hours, rel=1e-6)
    assert found.maintenance == pytest.approx(rollbacks * 0.5)


def test_a_known_rate_still_differs_from_month_to_month() -> None:
    def width(hours: float, scatter: float) -> float:
        found = simulate(job(hours), known(10.0, stop=1.0, monthly_scatter=scatter), SAVES)
        return (found.quantile(0.95) - found.quantile(0.05)) / hours

    assert width(720.0, 0.5) > 1.5 * width(720.0, 0.0)
    assert width(7200.0, 0.5) < 0.7 * width(720.0, 0.5)


def test_a_count_without_its_exposure_is_refused() -> None:
    with pytest.raises(ValueError, match="interruptions is counted over gpu_hours"):
        Cluster(name="x", generation="ampere", interruptions=3, source="a test")
