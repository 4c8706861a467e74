"""Predictions of HugeCTR's configurations by the command line and the Python interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.predict.prediction import predict
from predictor.core.schema.input_kind import HUGECTR
from predictor.formats import detect
from predictor.recommender.hugectr.plan_file import write_plan
from predictor.recommender.plans import search_plans
from predictor.recommender.prediction import predict_recommender
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from tests.unit.recommender_examples import SAMPLES, dcn, dlrm, loaded

Content = dict[str, Any]


def written(folder: Path, content: Content) -> str:
    """Write a configuration and return its path."""
    path = folder / "model.json"
    path.write_text(json.dumps(content))
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of an error in the input."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the program prints."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_report_says_time_parts_memory_and_assumptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = answered(capsys, written(tmp_path, dlrm()), "--system", "Selene", "--gpus", "8")
    for said in (
        "Step time",
        "90 % interval",
        "4 tables, 4 slots of width 32",
        "4,096 samples = 512 × 8 GPUs",
        "4 table_wise",
        "samples/s",
        "embedding lookup",
        "embedding update",
        "Assumed: Keys are drawn uniform",
        "Assumed: The solver lists 2 GPUs; the run has 8",
        "Assumed: Selene was measured in fp16",
    ):
        assert said in text, said
    assert all(len(line) <= 100 for line in text.splitlines())


def test_parts_add_up_to_the_step() -> None:
    for content in (dlrm(), dcn()):
        for gpus in (1, 8, 16):
            step = predict_recommender(content, system="Perlmutter", gpus=gpus)
            assert step.parts.step_us == pytest.approx(step.step.us)
            assert step.step.low_us < step.step.us < step.step.high_us


def test_json_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(answered(capsys, written(tmp_path, dcn()), "--system", "H100", "--json"))
    assert document["format"] == "estimate-train-time/recommender-prediction/1"
    hidden = ("hidden_exchange_us", "hidden_input_us", "hidden_reduction_us")
    shown = sum(us for name, us in document["parts"].items() if name not in hidden)
    assert shown == pytest.approx(document["step"]["time_us"])
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["run"]["precision"] == "fp32"
    assert document["plan"]["tables"] == [{"table": "embedding", "sharding": "row_wise", "ranks": [0, 1]}]


def test_options_go_before_the_clause_and_that_before_the_solver() -> None:
    content = dlrm(prediction={"system": "H100", "num_gpus": 4, "batch_size": 8192, "key_exponent": 1.0})
    clause = predict_recommender(content)
    assert (clause.loaded.system.name, clause.run.num_gpus, clause.run.batch_size) == ("H100", 4, 8192)
    assert clause.run.keys.exponent == 1.0
    options = predict_recommender(content, system="Selene", gpus=8, batch_size=1024, key_exponent=0.0, precision="fp16")
    run = options.run
    assert (options.loaded.system.name, run.num_gpus, run.batch_size) == ("Selene", 8, 1024)
    assert (run.keys.exponent, run.precision) == (0.0, "fp16")


def test_mixed_precision_of_the_solver_is_fp16() -> None:
    content = dlrm()
    assert predict_recommender(content, system="Selene").run.precision == "fp32"
    content["solver"]["mixed_precision"] = 1024
    assert predict_recommender(content, system="Selene").run.precision == "fp16"


def test_nodes_of_the_solver_hold_its_gpus() -> None:
    content = dlrm()
    content["solver"]["gpu"] = [[0, 1], [0, 1]]
    assert predict_recommender(content, system="Selene").run.gpus_per_node == 2
    assert predict_recommender(content, system="Selene", gpus=16).run.gpus_per_node == 8


def test_plan_file_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = loaded(dlrm()).run.plan.tables
    everywhere = tuple(ShardedTable(item.table, Sharding.DATA_PARALLEL, (0, 1)) for item in tables)
    write_plan(ShardingPlan(2, everywhere), tmp_path / "plan.json")
    plan = str(tmp_path / "plan.json")
    text = answered(capsys, written(tmp_path, dlrm()), "--system", "Selene", "--plan", plan)
    assert "4 data_parallel" in text
    assert "embedding exchange" not in text
    content = dlrm(prediction={"plan": "plan.json", "system": "Selene"})  # relative to its file
    assert "4 data_parallel" in answered(capsys, written(tmp_path, content))
    assert "is for 2 ranks" in refusal(
        capsys, written(tmp_path, dlrm()), "--system", "H100", "--gpus", "4", "--plan", plan
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "system is missing; give --system"),
        (("--system", "Serene"), "Serene is not a published system. Did you mean Selene?"),
        (
            ("--system", "Selene", "--gpus", "3"),
            "batch_size is 4096; it must be a multiple of the 3 GPUs. Try 4095 or 4098",
        ),
        (("--system", "Selene", "--batch-size", "1"), "batch_size is 1; it must be a multiple of the 2 GPUs. Try 2"),
        (("--system", "Selene", "--gpus", "0"), "gpus is 0; it must be at least 1"),
        (("--system", "Selene", "--batch-size", "0"), "batch_size is 0; it must be at least 1"),
        (("--system", "Selene", "--key-exponent", "-1"), "key_exponent is -1.0; expected 0"),
        (("--system", "Selene", "--key-exponent", "nan"), "key_exponent is nan; expected 0"),
        (("--system", "Selene", "--plan", "nowhere.json"), "plan nowhere.json does not exist"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refusal(capsys, written(tmp_path, dlrm()), *options)


def test_options_of_recommenders_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "predict", "--example", "llemma_7b_4_2_2_P", "--batch-size", "8")
    assert "--batch-size is for HugeCTR configurations" in line


def test_inference_configuration_is_refused() -> None:
    content = dlrm()
    del content["solver"], content["optimizer"]
    content["inference"] = {"dense_model_file": "dense", "sparse_model_file": "sparse"}
    with pytest.raises(ConfigError, match="is for inference"):
        predict_recommender(content, system="Selene", gpus=1, batch_size=8)


def test_file_without_a_solver_needs_gpus_and_batch() -> None:
    content = dlrm()
    del content["solver"]
    with pytest.raises(MissingKeyError, match="number of GPUs is missing"):
        predict_recommender(content, system="Selene")
    with pytest.raises(MissingKeyError, match="batch size is missing"):
        predict_recommender(content, system="Selene", gpus=8)
    assert predict_recommender(content, system="Selene", gpus=8, batch_size=1024).run.batch_per_gpu == 128


def test_step_that_does_not_fit_says_so_before_the_time() -> None:
    content = dlrm()
    rows = [400_000_000, 3, 7_000, 150]
    content["layers"][0]["slot_size_array"] = rows
    content["layers"][1]["sparse_embedding_hparam"] |= {"slot_size_array": rows, "embedding_vec_size": 128}
    content["layers"][3]["fc_param"]["num_output"] = 128
    step = predict_recommender(content, system="Selene")
    assert step.fits is False
    assert step.memory_gib > 400_000_000 * 128 * 4 / 2**30
    first, *_ = step.text().splitlines()
    assert first.startswith("Memory")
    assert "DOES NOT FIT" in step.text().partition("Step time")[0]


def test_prediction_on_another_system_keeps_the_question() -> None:
    first = predict_recommender(dcn(), system="Selene", gpus=8, key_exponent=1.2)
    second = first.on("H100")
    assert (second.loaded.system.name, second.run.num_gpus, second.run.keys) == ("H100", 8, first.run.keys)
    assert second.step.us < first.step.us
    assert repr(second).startswith("<configuration on H100: ")


def test_price_counts_gpu_hours() -> None:
    step = predict_recommender(dcn(prediction={"price_per_gpu_hour": 3.6}), system="Selene", gpus=8)
    price = 3.6 * 8 * (1e6 / step.samples_per_second) / 3600
    assert f"{price:.4g} per million samples" in step.text()


def test_json_of_hugectr_is_told_and_no_from_takes_it(tmp_path: Path) -> None:
    path = written(tmp_path, dlrm())
    assert detect(Path(path)) == HUGECTR
    with pytest.raises(ConfigError, match="of a recommender"):
        predict(path)
    with pytest.raises(ConfigError, match="predict it as it is"):
        predict({"from": path, "system": "Selene"})


@pytest.mark.parametrize("gpus", [1, 8, 16])
@pytest.mark.parametrize("system", ["Perlmutter", "Selene", "H100"])
def test_every_sample_of_hugectr_is_predicted(system: str, gpus: int) -> None:
    if not SAMPLES:
        pytest.skip("no samples of HugeCTR beside the checkout")
    for path in SAMPLES:
        step = predict_recommender(path, system=system, gpus=gpus)
        assert 50 < step.step.us < 1e6, path.name
        assert step.parts.step_us == pytest.approx(step.step.us), path.name
        assert step.text()


def test_a_network_that_was_slow_when_measured_is_noted() -> None:
    noted = [
        any("Between nodes Perlmutter reached" in note for note in step.to_dict()["notes"])
        and "Between nodes Perlmutter reached" in " ".join(step.text().split())
        for step in (
            predict_recommender(dcn(), system="Perlmutter", gpus=16),
            predict_recommender(dcn(), system="Perlmutter", gpus=4),
            predict_recommender(dcn(), system="Selene", gpus=16),
        )
    ]
    assert noted == [True, False, False]


def hashed() -> Content:
    """Return a model whose rows are counted by GPU, on a solver of two GPUs."""
    content = dcn()
    content["solver"] = {"gpu": [0, 1], "batchsize": 4096}
    embedding = next(layer for layer in content["layers"] if "sparse_embedding_hparam" in layer)
    embedding["type"] = "DistributedSlotSparseEmbeddingHash"
    embedding["sparse_embedding_hparam"].pop("slot_size_array", None)
    embedding["sparse_embedding_hparam"]["max_vocabulary_size_per_gpu"] = 100_001
    content["layers"][0]["sparse"][0]["type"] = "DistributedSlot"
    content["layers"][0].pop("slot_size_array", None)
    return content


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 64])
def test_the_number_of_gpus_does_not_change_the_model(gpus: int) -> None:
    predicted = predict_recommender(hashed(), system="Selene", gpus=gpus)
    rows = sum(sharded.table.rows for sharded in predicted.plan.tables)
    assert 200_002 <= rows < 200_002 + gpus
    said = [text for text in predicted.assumptions if "as many rows as on the solver's 2 GPUs" in text]
    assert len(said) == (gpus != 2)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 64])
def test_nor_where_slots_lie_on_a_gpu_each(gpus: int) -> None:
    content = hashed()
    slots = content["layers"][0]["sparse"][0]["slot_num"]
    content["layers"][0]["sparse"][0]["type"] = "LocalizedSlot"
    next(layer for layer in content["layers"] if "sparse_embedding_hparam" in layer)["type"] = (
        "LocalizedSlotSparseEmbeddingHash"
    )
    rows = sum(s.table.rows for s in predict_recommender(content, system="Selene", gpus=gpus).plan.tables)
    expected = 100_001 * min(2, slots)
    assert expected <= rows < expected + gpus


def test_without_a_solver_the_room_of_each_gpu_is_the_files() -> None:
    content = hashed()
    del content["solver"]
    predicted = predict_recommender(content, system="Selene", gpus=8, batch_size=4096)
    assert sum(sharded.table.rows for sharded in predicted.plan.tables) == 8 * 100_001
    assert any("is as in the file on every GPU; no solver says of how many" in said for said in predicted.assumptions)


def test_fewer_rows_than_slots_are_predicted_with_skew_and_a_cache() -> None:
    content = hashed()
    next(layer for layer in content["layers"] if "sparse_embedding_hparam" in layer)["sparse_embedding_hparam"][
        "max_vocabulary_size_per_gpu"
    ] = 1
    predicted = predict_recommender(content, system="Selene", gpus=2, key_exponent=1.2, cached_share=0.5)
    assert 0.0 < predicted.step.us < float("inf")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 8.0}, "gpus is 8.0; expected a whole number"),
        ({"gpus": "8"}, "gpus is '8'; expected a whole number"),
        ({"gpus": True}, "gpus is True; expected a whole number"),
        ({"gpus": 0}, "gpus is 0; it must be at least 1"),
        ({"gpus": 10**30}, "is taken for a slip"),
        ({"batch_size": 1024.5}, "batch_size is 1024.5; expected a whole number"),
        ({"key_exponent": "1"}, "key_exponent is '1'; expected 0, uniform keys"),
        ({"key_exponent": float("nan")}, "key_exponent is nan; expected 0, uniform keys"),
        ({"cached_share": "x"}, "cached_share is 'x'; expected a share"),
        ({"cached_share": float("inf")}, "cached_share is inf; expected a share"),
        ({"system": 3}, "system is 3; expected a published system"),
        ({"system": b"Selene"}, "system is b'Selene'; expected a published system"),
        ({"plan": 3}, "plan is 3; expected the file of a sharding plan"),
        ({"precision": 16}, "precision is 16; expected one of"),
    ],
)
def test_arguments_of_wrong_types_are_refused_in_a_line(given: dict[str, Any], said: str) -> None:
    for question in (predict_recommender, search_plans):
        with pytest.raises(ValueError, match=" is ") as error:
            question(dlrm(), **{"system": "Selene", **given})
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="system is 3; expected a published system"):
        predict_recommender(dlrm(), system="Selene").on(3)  # type: ignore[arg-type]


def test_configurations_of_wrong_types_are_refused() -> None:
    for question in (predict_recommender, search_plans):
        with pytest.raises(ConfigError, match="config is 3; expected the path"):
            question(3, system="Selene")  # type: ignore[arg-type]


def test_search_of_layouts_says_what_searches_plans(tmp_path: Path) -> None:
    for model in (dlrm(), written(tmp_path, dlrm())):
        with pytest.raises(ConfigError, match=r"--model is a HugeCTR configuration.*; use predictor\.search_plans"):
            predictor.search(model, 8, system="Selene")
    assert predictor.search_plans is search_plans
