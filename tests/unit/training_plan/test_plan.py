"""Plans: which one is chosen, what is left out, and what is said of the chosen one."""

from __future__ import annotations

import re
from itertools import count
from math import ceil, inf
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor import predict
from predictor.core.base.errors import ConfigError
from predictor.core.predict.check import Limits
from predictor.layout_search import answer
from predictor.training_plan import plans
from predictor.training_plan.check import check_plan
from predictor.training_plan.interface import PlanResult, plan
from predictor.training_plan.report.words import percent
from predictor.training_plan.work import ramp_up_steps
from tests.unit.training_plan.tiny import TINY, tiny


def test_a_layout_is_that_of_the_search_and_predicts_to_the_same_step() -> None:
    chosen = tiny().chosen
    step = predict(tiny().configuration)
    assert step.step == chosen.winner.prediction.step
    assert step.budget.steps == chosen.work.steps
    assert step.budget.price is not None


def test_the_cheapest_that_keeps_the_deadline_is_chosen() -> None:
    every = tiny(systems={"H100": {"gpus": [8, 16, 32], "price_per_gpu_hour": 2.0}})
    by_size = {each.case.num_gpus: each for each in every.plans}
    assert by_size[8].hours > by_size[16].hours > by_size[32].hours
    assert every.chosen.case.num_gpus == min(by_size, key=lambda size: by_size[size].cost)
    days = (by_size[16].hours + by_size[8].hours) / 48.0
    sooner = tiny(systems={"H100": {"gpus": [8, 16, 32], "price_per_gpu_hour": 2.0}}, deadline=days, probability=0.5)
    assert sooner.chosen.case.num_gpus == 16
    assert sooner.is_kept
    assert {each.case.num_gpus for each in sooner.front} == {8, 16, 32}


def test_a_plan_that_another_beats_in_price_and_date_is_not_on_the_front() -> None:
    systems = {"H100": {"gpus": 8, "price_per_gpu_hour": 2.0}, "H200": {"gpus": 8, "price_per_gpu_hour": 9.0}}
    result = tiny(systems=systems | {"B200": {"gpus": 8, "price_per_gpu_hour": 2.0}})
    assert [each.case.offer.name for each in result.front] == ["B200"]
    assert result.chosen.case.offer.name == "B200"


def test_the_probability_is_that_of_both_limits() -> None:
    free = tiny().chosen
    hours, price = free.hours_at(0.9), free.price(free.hours_at(0.6))
    both = tiny(deadline=hours / 24.0, max_price=price, probability=0.7)
    assert both.chosen.probability == pytest.approx(0.6, abs=0.01)
    assert not both.is_kept
    assert both.to_dict()["chosen"]["probability_in_time"] == pytest.approx(0.9, abs=0.01)
    assert both.to_dict()["chosen"]["probability_in_budget"] == pytest.approx(0.6, abs=0.01)


def test_what_cannot_be_kept_names_the_nearest_plan_and_by_how_much_it_misses() -> None:
    late = tiny(deadline=0.01)
    assert not late.is_kept
    assert late.chosen.case.num_gpus == 16  # the larger, without its search being asked for
    text = late.text()
    assert text.startswith("No plan keeps 1 January 2027 with 80 %. The nearest keeps it with under 1 %:")
    assert re.search(r"with 80 % it is done by .* later\.", text[:300].replace("\n  ", " "))
    dear = tiny(max_price=1.0)
    assert "costs" in str(dear.to_dict()["missed"])
    assert "more." in str(dear.to_dict()["missed"])


def test_a_size_that_misses_the_deadline_at_its_peak_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def noted(problem: Any, **keys: Any) -> Any:
        searched.append(problem.space.num_gpus)
        return answer.search(problem, **keys)

    monkeypatch.setattr(plans, "search", noted)
    free = tiny()
    small = next(each for each in free.plans if each.case.num_gpus == 8)
    least = small.work.hours * small.winner.prediction.mfu  # at the peak
    searched.clear()
    result = tiny(deadline=least / 24.0 * 0.99)
    assert searched == [16]
    (left,) = result.outcome.considered.left_out
    assert left.reason.endswith("or more at its peak")
    assert "Note: No plan on 8 GPUs of H100: takes" in result.text()


def test_a_price_that_is_out_of_reach_and_rises_is_not_looked_for_on_more_gpus() -> None:
    systems = {"H100": {"gpus": [8, 16, 32, 64, 128, 256], "price_per_gpu_hour": 2.0}}
    free = tiny(systems=systems)
    prices = [plan.likely_price or 0.0 for plan in free.plans]
    assert prices == sorted(prices)
    result = tiny(systems=systems, max_price=free.plans[0].price(free.plans[0].hours_at(0.9)))
    searched = {plan.case.num_gpus for plan in result.plans}
    left = [each for each in result.outcome.considered.left_out if "costs more than on" in each.reason]
    assert 8 in searched
    assert left
    assert {each.case.num_gpus for each in left} | searched == {8, 16, 32, 64, 128, 256}
    assert min(each.case.num_gpus for each in left) > max(searched)


def test_a_batch_beyond_the_critical_one_takes_more_tokens() -> None:
    result = tiny(global_batch_size=[256, 1024], critical_batch_tokens=512 * 1024)
    tokens = {each.answer.space.global_batch_size: each.work.tokens for each in result.plans}
    assert tokens[256] == 1e11
    assert tokens[1024] == pytest.approx(1e11 * (1 + 2) / 2)
    alone = tiny(global_batch_size=1024, critical_batch_tokens=512 * 1024).chosen
    assert alone.work.tokens == tokens[1024]  # whatever else may be chosen


def test_a_plan_says_its_conditions_as_a_prediction_does() -> None:
    result = tiny(framework="megatron")
    (said,) = [note for note in predict(result.configuration).headline if "training.conditions is" in note]
    assert said in result.text(width=1000)
    assert said in result.to_dict()["notes"]


def test_gpus_share_the_power_of_a_hall() -> None:
    free, capped = tiny(), tiny(max_power_w=16 * 600.0)
    (few, many), (same, slower) = ([plan.work.step.us for plan in result.plans] for result in (free, capped))
    assert same == few  # 1,200 W are above the board's own limit
    assert slower > many
    starved = tiny(max_power_w=16 * 60.0)
    assert [plan.case.num_gpus for plan in starved.plans] == [8]
    assert "draws without computing" in starved.outcome.considered.left_out[0].reason
    assert any("power_limit_w=120" in note for note in starved.outcome.notes)


def test_evaluation_ramp_up_and_storage_are_added() -> None:
    plain = tiny().chosen
    evaluated = tiny(evaluation={"every_steps": 1000, "tokens": 256 * 1024 * 100}).chosen
    steps = plain.work.steps // 1000 * 100
    forward = evaluated.work.evaluation_hours / (steps * plain.work.step.us / 3.6e9)
    assert 0.2 < forward < 0.5  # a third of a step's passes
    grown = tiny(ramp_up={"from_batch_size": 32, "tokens": 1e10}).chosen
    assert 0.0 < grown.work.ramp_up_hours < plain.work.step_hours
    further = ramp_up_steps(32, 256, 1e10 / 1024)
    assert grown.work.steps == plain.work.steps + ceil(further)
    ramped = tiny(ramp_up={"from_batch_size": 32, "tokens": 1e11}, evaluation={"every_steps": 1000, "tokens": 1e9})
    evaluations = ramped.chosen.work.steps // 1000
    assert evaluations > plain.work.steps // 1000 + 100
    as_steps = evaluations * 1e9 / (256 * 1024) * ramped.chosen.work.step.us / 3.6e9
    assert 0.2 < ramped.chosen.work.evaluation_hours / as_steps < 0.5
    run = ramped.chosen.winner.prediction.run
    replicas = run.micro_batch_size * run.layout.data_parallel_size
    (unwritten,) = [note for note in ramped.outcome.notes if "A run that is written" in note]
    assert "has no evaluation, and no ramp-up of the batch" in unwritten
    assert unwritten.endswith(f"--rampup-batch-size 32 {replicas} {1e11 / 1024:.0f}.")
    assert not any("A run that is written" in note for note in tiny().outcome.notes)
    stored = tiny(storage={"price_per_gb_month": 73.0, "kept_checkpoints": 10}).chosen
    gigabytes = stored.work.checkpoint_bytes / 1e9
    assert stored.price_per_hour == pytest.approx((plain.price_per_hour or 0.0) + gigabytes)
    spared = tiny(paid_spares=True, budget={"spare_nodes": 3}).chosen
    assert spared.price_per_hour == pytest.approx((spared.case.num_gpus + 3 * 8) * 2.0)


def test_a_ramp_up_that_no_layout_can_begin_with_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ramp_up.from_batch_size is 512, above the batch of 256 samples"):
        tiny(ramp_up={"from_batch_size": 512, "tokens": 1e10})
    with pytest.raises(ConfigError, match=r"no layout divides model, batch and ramp_up.from_batch_size, 31"):
        tiny(framework="megatron", systems={"H100": {"gpus": 64}}, ramp_up={"from_batch_size": 31, "tokens": 1e10})
    with pytest.raises(ConfigError, match=r"ramp_up.tokens is 200,000,000,000, above the 100,000,000,000 tokens"):
        tiny(ramp_up={"from_batch_size": 32, "tokens": 2e11})


def test_a_layout_that_a_ramp_up_can_begin_with_is_chosen() -> None:
    systems = {"H100": {"gpus": 16}}
    free = tiny(systems=systems).chosen.winner.prediction.run
    assert free.layout.data_parallel_size * free.micro_batch_size > 8
    run = tiny(systems=systems, ramp_up={"from_batch_size": 8, "tokens": 1e10}).chosen.winner.prediction.run
    assert 8 % (run.layout.data_parallel_size * run.micro_batch_size) == 0


def test_spot_instances_compete_where_their_price_is_known() -> None:
    systems = {"H100": {"gpus": 8, "price_per_gpu_hour": 2.0, "spot_price_per_gpu_hour": 1.0}}
    result = tiny(systems=systems, spot=True, interruptions_per_node_day=0.5)
    assert {each.purchase.is_spot for each in result.plans} == {True, False}
    assert result.chosen.purchase.is_spot
    assert any("taken away 0.5 times a node and day" in note for note in result.outcome.notes)
    assert len(tiny(systems=systems).plans) == 1
    with pytest.raises(ConfigError, match="taken away, and nobody says how often"):
        tiny(systems=systems, spot=True)


def prices_of(result: PlanResult) -> dict[str, float | None]:
    return {each.case.offer.name: each.purchase.price_per_gpu_hour for each in result.plans}


def test_a_budget_says_the_price_of_systems_without_one(tmp_path: Path) -> None:
    systems = {"H100": {"gpus": 8, "price_per_gpu_hour": 2.0}, "H200": {"gpus": 8}}
    assert prices_of(tiny(systems=systems, budget={"price_per_gpu_hour": 3.0})) == {"H100": 2.0, "H200": 3.0}
    model = tmp_path / "model.yml"
    model.write_text(yaml.safe_dump({**TINY["model"], "budget": {"price_per_gpu_hour": 4.0}}), encoding="utf-8")
    assert prices_of(tiny(model=str(model), systems={"H100": 8, "H200": 8})) == {"H100": 4.0, "H200": 4.0}
    spot = {"H100": {"gpus": 8, "spot_price_per_gpu_hour": 1.0, "interruptions_per_node_day": 0.1}}
    both = tiny(systems=spot, spot=True, budget={"price_per_gpu_hour": 3.0})
    assert {each.purchase.price_per_gpu_hour for each in both.plans} == {1.0, 3.0}


def test_a_price_list_names_a_system_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "prices.yml"
    path.write_text("A100: 1.5\nH100: 2.5\n", encoding="utf-8")
    for name in ("A100", "A100_SXM", "a100-sxm"):
        assert prices_of(tiny(systems={name: 8, "H100": 8}, prices=str(path))) == {"A100_SXM": 1.5, "H100": 2.5}


def test_without_prices_gpu_hours_are_compared_and_said_to_be_so() -> None:
    result = tiny(systems={"H100": 8, "H200": 8})
    text = result.text(width=1000)
    assert "date and GPU-hours" in text
    assert "no plan is both of fewer GPU-hours and earlier" in text
    assert "GPU-hours of different systems are not comparable" in text
    assert "cheaper" not in text
    assert "price most" not in text
    by_hours = min(result.plans, key=lambda each: each.hours * each.case.num_gpus)
    assert result.chosen.case.offer.name == by_hours.case.offer.name
    assert not any("not comparable" in note for note in tiny(systems={"H100": 8}).outcome.notes)


def test_what_has_no_effect_is_said() -> None:
    assert "gpus has no effect" in " ".join(tiny(gpus=32).outcome.notes)
    assert "spot has no effect" in " ".join(tiny(spot=True).outcome.notes)
    assert not any("no effect" in note for note in tiny(gpus=16, systems={"H100": 8, "H200": None}).outcome.notes)


@pytest.mark.parametrize(("mtbf", "deadline"), [(1.0, None), (1.0, 0.9), (0.1, None), (0.1, 0.9), (0.5, None)])
def test_a_training_that_may_never_end_says_how_often(mtbf: float, deadline: float | None) -> None:
    keys: dict[str, Any] = {} if deadline is None else {"deadline": deadline}
    systems = {"H100": {"gpus": 16, "price_per_gpu_hour": 2.0}}
    result = tiny(systems=systems, budget={"mtbf_per_gpu_hours": mtbf}, **keys)
    never = percent(1.0 - result.chosen.outlook.chance_within(None))
    text = result.text(width=1000)
    assert f"With {never} the training makes no progress among interruptions, and never ends" in text
    for false in ("no day of the calendar", "no single cause", "moves date", "inf"):
        assert false not in text
    assert result.chosen.hours_at(0.8) != inf or f"and never ends with {never}" in text


def test_precisions_are_searched_and_what_a_gpu_lacks_is_said() -> None:
    systems = {name: {"gpus": 8} for name in ("H100", "A100")}
    result = tiny(systems=systems, precisions=["bf16", "fp8"])
    found = {(each.case.offer.name, each.case.precision) for each in result.plans}
    assert found == {("H100", "bf16"), ("H100", "fp8"), ("A100_SXM", "bf16")}
    assert "A100_SXM has no fp8 tensor cores" in result.text(width=1000)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    number = count()

    def search(problem: Any, **keys: Any) -> Any:
        if next(number) == 1:
            raise KeyboardInterrupt
        return answer.search(problem, **keys)

    monkeypatch.setattr(plans, "search", search)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_plan_is_the_best_so_far() -> None:
    result = tiny()
    assert not result.is_whole
    assert [each.case.num_gpus for each in result.plans] == [8]
    assert result.text().count("Interrupted: only the searches that had ended count.") == 1


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_plan_claims_nothing_of_the_searches_that_were_left() -> None:
    text = tiny(deadline=0.3).text(width=1000)
    assert text.startswith(
        "Interrupted: only the searches that had ended count. None of the plans so far keeps 1 January"
    )
    assert "No plan keeps" not in text


def test_progress_counts_searches_and_ends_with_all() -> None:
    told: list[tuple[int, int]] = []
    plan(
        {**TINY, "systems": {"A100": 8, "H100": 8}, "precisions": ["fp8"]},
        progress=lambda done, of: told.append((done, of)),
    )
    assert told[0] == (0, 1)  # A100 has no fp8
    assert told[-1][0] == told[-1][1]


def test_the_front_and_the_chosen_plan_are_always_shown() -> None:
    result = plan({**TINY, "systems": {"H100": {"gpus": [8, 16, 32], "price_per_gpu_hour": 2.0}}}, top=1)
    rows = [line for line in result.text().splitlines() if re.match(r"[*+ ]  H100", line)]
    assert len(rows) >= len(result.front)
    assert sum(line.startswith("*") for line in rows) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train_tokens": None}, "train_tokens is missing"),
        ({"systems": {}}, "systems"),
        ({"systems": {"H1O0": 8}}, r"H1O0 is not a published system. Did you mean H100\?"),
        ({"systems": {"H100": {"gpu": 8}}}, r"systems.H100.gpu is not a known key. Did you mean gpus\?"),
        ({"systems": {"H100": "many"}}, "systems.H100.gpus is 'many': expected 64"),
        ({"deadlin": 3}, r"deadlin is not a known key. Did you mean deadline\?"),
        ({"deadline": "soon"}, "deadline is 'soon': expected a day"),
        ({"deadline": "2026-12-31"}, "deadline is 31 December 2026, before the start, 1 January 2027"),
        ({"deadline": -3}, "above 0"),
        ({"probability": 80.0}, "expected a probability"),
        ({"precisions": "fp7"}, "expected bf16, fp16"),
        ({"budget": {"mtbf": 3}}, "budget.mtbf is not a known key"),
        ({"budget": [1]}, "budget is a list"),
        ({"budget": 5}, "budget is 5"),
        ({"budget": {1: 2}}, "budget"),
        (
            {"systems": {"A100": 8, "H200": 8, "H100": {"gpus": 8, "price_per_gpu_hour": 2}}},
            "A100 and H200 have no price.* give --price A100=2.5 --price H200=2.5 of a GPU-hour",
        ),
        (
            {"systems": {"H100": 1}, "set": {"model.num_layers": 400, "model.hidden_size": 8192}},
            r"^No plan on 1 GPU of H100: no layout fits: the leanest of .* needs .* GiB too much\.$",
        ),
        ({"max_price": 5, "systems": {"H100": 8}}, "H100 has no price"),
        ({"systems": {"H100": {"gpus": 8, "price_per_gpu_hour": 2.0}, "B200": 8}}, "B200 has no price"),
        ({"model": "llama3-8"}, "Did you mean llama3-8b"),
        ({"global_batch_size": None, "train_tokens": 1e9}, "--global-batch-size is missing"),
        ({"set": {"flash": True}}, "flash is no key"),
        ({"set": {"zero_stage": 3}}, "the search decides it"),
        ({"framework": "nemoo"}, "--framework is nemoo"),
        ({"global_batch_size": 7, "systems": {"H100": 4096}}, "^No plan on 4,096 GPUs of H100: no layout divides"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, KeyError), match=message) as caught:
        plan({key: value for key, value in {**TINY, **keys}.items() if value is not None})
    assert "\n" not in str(caught.value)


def test_a_plan_is_checked_against_its_own_limits_and_others(tmp_path: Path) -> None:
    path = tmp_path / "plan.yml"
    path.write_text(yaml.safe_dump({**TINY, "deadline": 3650, "gpus": 8}), encoding="utf-8")
    kept = check_plan(path, Limits())
    assert kept.kept
    assert [rule.name for rule in kept.rules] == ["min_probability", "must_fit"]
    chosen = tiny().chosen
    median, worst = chosen.hours / 24.0, chosen.hours_at(0.95) / 24.0
    between = Limits(max_days=(median + worst) / 2.0)
    assert check_plan(path, between).kept
    path.write_text(yaml.safe_dump({**TINY, "systems": {"H100": {"gpus": 8, "price_per_gpu_hour": 2.0}}}), "utf-8")
    assert check_plan(path, between).kept
    assert not check_plan(path, between.model_copy(update={"certain": True})).kept
    assert not check_plan(path, Limits(min_mfu=0.9)).kept
    slower = check_plan(path, Limits(max_step_s=1.0), changes=["peak_tflop_per_s=x0.5"])
    assert slower.rules[1].value > check_plan(path, Limits(max_step_s=1.0)).rules[1].value
    with_two = tiny(systems={"H100": {"gpus": [8, 16], "price_per_gpu_hour": 2.0}})
    assert with_two.chosen.case.num_gpus == 8
    small, large = sorted(with_two.plans, key=lambda each: each.case.num_gpus)
    path.write_text(yaml.safe_dump({**TINY, "deadline": small.hours_at(0.85) / 24.0}), encoding="utf-8")
    assert check_plan(path, Limits()).headline[0].startswith("8 GPUs")
    for limits in (
        Limits(min_probability=0.99),
        Limits(max_days=small.hours / 24.0 * 0.9),
        Limits(max_days=small.hours_at(0.8) / 24.0, certain=True),
    ):
        surer = check_plan(path, limits)  # kept on more GPUs
        assert surer.kept
        assert surer.headline[0].startswith("16 GPUs")
    assert large.hours_at(0.95) < small.hours_at(0.8)
    path.write_text(yaml.safe_dump({**TINY, "deadline": 3650, "gpus": 8}), encoding="utf-8")
    path.write_text(yaml.safe_dump({**TINY, "systems": {"A100": 16, "H100": 8}}), encoding="utf-8")
    assert (
        check_plan(path, Limits(), system="A100_SXM").headline[0].startswith("16 GPUs of A100_SXM")
    )  # however spelled
    path.write_text(yaml.safe_dump({**TINY, "deadline": 3650, "gpus": 8}), encoding="utf-8")
    assert check_plan(path, Limits(), system="B200").headline[0].startswith("8 GPUs of B200")


def test_a_system_of_ones_own_lies_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "ours.yml").write_text("like: H100\ninter_node_gb_per_s: 12.5\n", encoding="utf-8")
    path = tmp_path / "plan.yml"
    (tmp_path / "prices.yml").write_text("ours: 1.5\n", encoding="utf-8")
    content = {**TINY, "systems": {"ours.yml": 16}, "prices": "prices.yml"}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    result = plan(path)
    assert prices_of(result) == {"ours": 1.5}
    assert result.chosen.work.step.us > next(each for each in tiny().plans if each.case.num_gpus == 16).work.step.us
