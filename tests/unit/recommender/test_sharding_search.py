"""``search`` of sharding plans, from the command line and from Python."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.recommender.hugectr.plan_file import plan_entries, plan_text, read_plan
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.plans import search_plans
from predictor.recommender.prediction import predict_recommender
from predictor.recommender.sharding.branch import branch_and_bound
from predictor.recommender.sharding.costs import Curve, sharding_problem
from predictor.recommender.sharding.greedy import starts
from predictor.recommender.sharding.solve import local_optima, solve
from predictor.recommender.step import predict_recommender as predict_step
from predictor.recommender.workload.plan import Sharding

ROOT = Path(__file__).resolve().parents[3]
DCNV2 = ROOT / "tests" / "accuracy" / "recommenders" / "dlrm_dcnv2.json"


def small(rows: tuple[int, ...] = (2_000_000, 1_000_000, 500, 20)) -> dict[str, Any]:
    """Return a model with a large hot table, a large cold one and two small ones."""
    content: dict[str, Any] = json.loads(DCNV2.read_text())
    data, embedding, *dense = content["layers"]
    data |= {"slot_size_array": list(rows)}
    data["sparse"][0] |= {"slot_num": 4, "max_feature_num_per_sample": 43, "max_nnz": 40}
    embedding["sparse_embedding_hparam"] |= {"slot_size_array": list(rows)}
    vectors = next(layer for layer in dense if layer["name"] == "vectors")
    vectors["leading_dim"] = 4 * 128
    content["prediction"] = {"hotness": {"data1": [40, 1, 1, 1]}, "system": "H100"}
    return content


def test_the_fastest_plan_is_that_of_its_prediction_and_beats_the_plain_ones() -> None:
    result = search_plans(small(), gpus=4, batch_size=8192)
    times = [step.us for step in result.steps]
    assert times == sorted(times)
    assert {"HugeCTR's placement", "all row_wise", "all column_wise"} <= {w.name for w in result.details.winners}
    again = predict_recommender(small(), gpus=4, batch_size=8192)
    default = next(w for w in result.details.winners if w.name == "HugeCTR's placement")
    assert default.prediction.step.us == pytest.approx(again.step.us)
    assert times[0] < again.step.us
    hot = result.plans[0].tables[0]
    assert len(hot.ranks) > 1, "40 lookups a sample are more than one rank's share"


def test_published_planner_and_search_agree_on_what_matters() -> None:
    # MLPerf's submission splits the table of 100 keys a sample over all GPUs, that of 27 in two, and replicates the
    # tables of fewer than 7,813 rows (dp_sharding_threshold 0.008).
    result = search_plans(DCNV2, gpus=8, system="H100")
    by_rows = {sharded.table.rows: sharded for sharded in result.plans[0].tables if sharded.table.rows != 40_000_000}
    hottest = max(result.plans[0].tables, key=lambda sharded: sharded.table.lookups_per_sample)
    assert len(hottest.ranks) == 8
    assert hottest.sharding is not Sharding.DATA_PARALLEL
    assert all(by_rows[rows].sharding is Sharding.DATA_PARALLEL for rows in (3, 4, 10, 14, 36, 63, 108))
    assert all(by_rows[rows].sharding is not Sharding.DATA_PARALLEL for rows in (3_067_956, 590_152, 405_282))


def test_plans_fit_in_less_memory_and_too_little_is_an_error() -> None:
    large = small(rows=(20_000_000, 10_000_000, 500, 20))
    wide = search_plans(large, gpus=4, batch_size=8192)
    sizes = sorted(winner.memory_bytes / 2**30 for winner in wide.details.winners)
    limit_gib = (sizes[0] + sizes[-1]) / 2
    tight = search_plans(large, gpus=4, batch_size=8192, memory_gib=limit_gib)
    assert all(winner.memory_bytes <= limit_gib * 2**30 for winner in tight.details.winners)
    assert tight.details.too_large
    assert tight.steps[0].us >= wide.steps[0].us
    with pytest.raises(ValueError, match=r"no sharding plan of 4 GPUs is known to fit in 5\.0 GiB; use more GPUs"):
        search_plans(large, gpus=4, batch_size=8192, memory_gib=5)


def test_times_that_the_search_adds_up_order_plans_as_predictions_do() -> None:
    result = search_plans(small(), gpus=4, batch_size=8192)
    run, system = result.details.run, result.details.system
    problem = sharding_problem(run, system)
    pairs = []
    for places in starts(problem):
        plan = problem.plan(places)
        plan.check()
        pairs.append((problem.time_us(places), predict_step(replace(run, plan=plan), system).step.us))
    assert len(pairs) > 4
    for (counted, predicted), (other_counted, other_predicted) in combinations(pairs, 2):
        if abs(counted - other_counted) > 0.1 * predicted:
            assert (counted < other_counted) == (predicted < other_predicted)


def test_no_floor_is_above_the_step() -> None:
    result = search_plans(small(), gpus=4, batch_size=8192)
    problem = sharding_problem(result.details.run, result.details.system)
    for busy in (0.0, 100.0):
        for exchanged in (0.0, 1e4, 1e6, 1e7):
            for reduced in (0.0, 1e5, 1e7):
                step = problem.step_us(busy, exchanged, reduced)
                for floor in problem.floors:
                    linear = floor.base_us + floor.per_busy_us * busy + floor.us_per_exchanged_byte * exchanged
                    assert linear + floor.us_per_reduced_byte * reduced <= step * (1.0 + 1e-9)


def test_a_curve_is_linear_between_its_points_and_in_proportion_beyond() -> None:
    curve = Curve((1.0, 2.0, 4.0), (10.0, 12.0, 12.0))
    assert [curve(size) for size in (0.0, 0.5, 1.0, 1.5, 3.0, 8.0)] == [0.0, 10.0, 10.0, 11.0, 12.0, 24.0]
    assert curve.least_us_per_byte == 3.0


def test_the_command_writes_a_plan_that_predict_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, plan, table = tmp_path / "small.json", tmp_path / "plan.json", tmp_path / "plans.csv"
    config.write_text(json.dumps(small()))
    options = ["--gpus", "4", "--global-batch-size", "8192", "--write", str(plan), "--csv", str(table)]
    assert main(["search", "--model", str(config), *options]) == 0
    page = capsys.readouterr().out
    assert "HugeCTR's placement" in page
    assert "The fastest plan, the largest tables first:" in page
    model = read_hugectr(config).model
    assert read_plan(plan, model.embeddings, 4).num_ranks == 4
    assert table.read_text().startswith("name,time_us,low_us,high_us,source,memory_gib,samples_per_s,table_wise,")
    assert main(["search", "--model", str(config), "--gpus", "4", "--global-batch-size", "8192", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "estimate-train-time/sharding-search/1"
    fastest = document["plans"][0]
    step = predict_recommender(config, gpus=4, batch_size=8192, plan=plan)
    assert fastest["time_us"] == pytest.approx(step.step.us)


def test_options_of_layouts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "small.json"
    config.write_text(json.dumps(small()))
    assert main(["search", "--model", str(config), "--gpus", "4", "--zero-stage", "1"]) != 0
    assert "--zero-stage is for layouts" in capsys.readouterr().err


def test_a_plan_with_two_names_keeps_both_and_the_saving_is_against_it() -> None:
    # A distributed table lies by rows in HugeCTR, which is one of the plans that shard all tables alike.
    content = small()
    embedding = content["layers"][1]
    embedding["type"] = "DistributedSlotSparseEmbeddingHash"
    content["layers"][0]["sparse"][0]["type"] = "DistributedSlot"
    result = search_plans(content, gpus=8, batch_size=8192, system="Perlmutter")
    named = [winner.names for winner in result.details.winners if winner.names]
    assert ("HugeCTR's placement", "all row_wise") in named
    placed = next(winner for winner in result.details.winners if "HugeCTR's placement" in winner.names)
    assert result.steps[0].us < placed.prediction.step.us
    saved = 1.0 - result.steps[0].us / placed.prediction.step.us
    assert f"Against HugeCTR's placement: {saved:.1%} of the step saved" in result.text(200)


def test_the_plan_given_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, file = tmp_path / "small.json", tmp_path / "plan.json"
    config.write_text(json.dumps(small()))
    plan = search_plans(small(), gpus=4, batch_size=8192).details.winners[-1].plan
    moved = replace(plan, tables=tuple(replace(s, sharding=Sharding.TABLE_WISE, ranks=(3,)) for s in plan.tables))
    file.write_text(plan_text(moved))
    command = ["search", "--model", str(config), "--gpus", "4", "--global-batch-size", "8192", "--json"]
    assert main([*command, "--plan", str(file), "--key-exponent", "1.1", "--cached-share", "0.5"]) == 0
    document = json.loads(capsys.readouterr().out)
    row = next(row for row in document["plans"] if row["name"] == "the plan given")
    step = predict_recommender(config, gpus=4, batch_size=8192, plan=file, key_exponent=1.1, cached_share=0.5)
    assert row["time_us"] == pytest.approx(step.step.us)
    content = small() | {"prediction": small()["prediction"] | {"plan": plan_entries(moved)}}
    again = search_plans(content, gpus=4, batch_size=8192)
    assert "the plan given" in [winner.name for winner in again.details.winners]


def test_plans_that_differ_by_the_numbers_of_ranks_are_shown_once() -> None:
    winners = search_plans(small(), gpus=8, batch_size=8192, top=50).details.winners
    alike = [
        (
            f"{winner.prediction.step.us:.6g}",
            tuple(sorted((s.table.name, s.sharding, len(s.ranks)) for s in winner.plan.tables)),
        )
        for winner in winners
    ]
    assert len(set(alike)) == len(alike)


def test_options_of_plans_are_refused_for_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--model", "llama3-8b", "--gpus", "8", "--key-exponent", "1"]) != 0
    assert "--key-exponent is for HugeCTR configurations; llama3-8b is none" in capsys.readouterr().err


def test_work_is_limited_on_many_gpus_and_the_bound_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    run = search_plans(small(), gpus=4, batch_size=8192).details.run
    system = search_plans(small(), gpus=4, batch_size=8192).details.system
    problem = sharding_problem(run, system)
    best = solve(problem)
    monkeypatch.setattr(import_module("predictor.recommender.sharding.solve"), "MOST_WORK", 50)
    told: list[str] = []
    limited = branch_and_bound(problem, local_optima(problem, told.append)[0], most_nodes=5)
    assert best is not None
    assert limited is not None
    assert limited.bound_us <= best.time_us * (1.0 + 1e-9) <= limited.time_us * (1.0 + 2e-9)
    assert told[0].startswith("local search from start 1 of ")


def test_progress_is_on_stderr_of_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search_plans(small(), gpus=2, batch_size=8192)
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    search_plans(small(), gpus=2, batch_size=8192)
    assert "branch and bound from the fastest" in capsys.readouterr().err
