"""Distribution of a training's wall time, against what is known of it in closed form."""

from __future__ import annotations

from math import exp, log
from statistics import fmean, pstdev

import pytest

from predictor.core.costs.cost import Cost, Source
from predictor.core.schema.sections import BudgetSection
from predictor.training_plan.outlook import Outlook, contributions, outlook
from predictor.training_plan.question import Purchase
from predictor.training_plan.work import Work, ramp_up_steps
from tests.unit.training_plan.tiny import tiny

HARDWARE = tiny().chosen.answer.system.hardware
ON_DEMAND = Purchase(2.0)
# Nothing happens: no failure, no planned stop, and a checkpoint takes no time worth naming.
QUIET = BudgetSection(mtbf_per_gpu_hours=1e12, planned_stops_per_month=0, checkpoint_seconds=1e-6)


def work(low: float, high: float, hours: float = 1000.0) -> Work:
    step = Cost(1e6, low * 1e6, high * 1e6, Source.ANALYTIC)
    return Work(1e12, 1000, step, hours, 0.0, 0.0, 1e10, 1e12)


def seen(budget: BudgetSection, low: float = 0.8, high: float = 1.5, purchase: Purchase = ON_DEMAND) -> Outlook:
    return outlook(work(low, high), 512, HARDWARE, budget, purchase, 2000, seed=0)


def test_without_interruptions_the_wall_time_is_the_step_s() -> None:
    walls = seen(QUIET).walls
    for probability, factor in ((0.05, 0.8), (0.5, 1.0), (0.95, 1.5)):
        assert walls.quantile(probability) == pytest.approx(1000.0 * factor, rel=2e-3)
    # Log-normal on each side: the quartiles lie at 0.6745 of 1.6449 deviations.
    assert walls.quantile(0.75) == pytest.approx(1000.0 * exp(log(1.5) * 0.6745 / 1.6449), rel=2e-3)
    assert walls.chance_within(1500.0) == pytest.approx(0.95, abs=2e-3)


def test_failures_lengthen_it_by_what_each_costs() -> None:
    often = QUIET.model_copy(update={"mtbf_per_gpu_hours": 5120.0, "detection_minutes": 0.0, "restart_minutes": 30.0})
    often = often.model_copy(update={"checkpoint_interval_minutes": 6.0, "spare_nodes": 10_000})
    walls = seen(often, 0.999999, 1.000001).walls
    # A failure every 10 hours costs half an hour, half a checkpoint's interval and what had not been written: 3 to 6 %.
    hours = fmean(draw.hours for draw in walls.draws)
    assert 1050.0 < hours < 1080.0
    # Months scatter around the rate that is given, which is their mean.
    assert fmean(draw.interruptions for draw in walls.draws) == pytest.approx(hours / 10.0, rel=0.03)


def test_spot_instances_fail_as_often_as_they_are_taken_away() -> None:
    known = QUIET.model_copy(update={"mtbf_per_gpu_hours": 1e5})
    spot = seen(known, purchase=Purchase(1.0, interruptions_per_node_day=0.24))
    plain = seen(known)
    # 64 nodes, 0.01 of them an hour, beside 512 GPUs of 1e5 hours each.
    rate = 1.0 / spot.simulation.reliability.mtbf_hours(512)
    assert rate == pytest.approx(64 * 0.01 + 512 / 1e5)
    assert spot.simulation.reliability.failures == plain.simulation.reliability.failures
    # Their rate is known: it scatters by chance, and by the failures' months hardly.
    counts = [draw.interruptions / draw.hours for draw in spot.walls.draws]
    assert pstdev(counts) < 0.12 * fmean(counts)
    assert spot.walls.quantile(0.5) > plain.walls.quantile(0.5)


def test_the_same_seed_gives_the_same_draws() -> None:
    once, again = (seen(BudgetSection()).walls for _ in range(2))
    assert once == again


def test_the_spares_that_are_paid_for_are_those_that_are_waited_with() -> None:
    found = seen(BudgetSection())
    told = BudgetSection(spare_nodes=found.simulation.reliability.spare_nodes)
    assert seen(told).walls == found.walls
    assert seen(BudgetSection(spare_nodes=0)).walls.quantile(0.5) > found.walls.quantile(0.5)


def test_the_cause_that_alone_is_uncertain_moves_everything() -> None:
    shares = contributions(seen(QUIET), seed=0)
    assert next(iter(shares)) == "the step's time"
    assert shares["the step's time"] == pytest.approx(1.0, abs=1e-3)
    unsure = BudgetSection(planned_stops_per_month=0, spare_nodes=10_000)
    known_step = contributions(seen(unsure, 0.999, 1.001), seed=0)
    assert known_step["the step's time"] < 0.1
    assert max(known_step, key=known_step.__getitem__) in ("how often this cluster fails", "how long a stop takes")


def test_a_training_that_never_ends_has_no_chance() -> None:
    hopeless = seen(BudgetSection(mtbf_per_gpu_hours=1.0))
    assert hopeless.chance_within(None) == 0.0
    assert contributions(hopeless, seed=0) == {}


def test_a_ramp_up_takes_the_steps_of_its_batches() -> None:
    # Batches of 64, 128, … 1,024 samples for as many samples each, as Megatron-LM ramps up by increments of 64.
    samples, batches = 1_000_000.0, range(64, 1025, 1)
    steps = sum(samples / len(batches) / batch for batch in batches)
    assert ramp_up_steps(64, 1024, samples) == pytest.approx(steps - samples / 1024, rel=1e-2)
