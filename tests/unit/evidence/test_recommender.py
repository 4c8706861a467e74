"""Recommenders are verified as other runs are: read, run by their own program, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.evidence.verification.configurations import configured, read_configurations
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.hugectr.to_run import Options, to_run
from predictor.recommender.step import predict_recommender
from predictor.recommender.verified import RecommenderWorkload
from predictor.recommender.workload.plan import Sharding
from predictor.replay.files.measured_run import read_launches
from tests.unit.examples import full_form, write
from tests.unit.fake_runner import fake_python

Capture = pytest.CaptureFixture[str]
FOLDER = Path(__file__).resolve().parents[3] / "profiling" / "verify_recommender"
CONFIGS = sorted(FOLDER.glob("*.json"))


def content_of(name: str, **clause: Any) -> dict[str, Any]:
    content = read_mapping(FOLDER / f"{name}.json")
    return {**content, "prediction": {**content.get("prediction", {}), **clause}}


def test_the_configurations_cover_models_ranks_and_shardings() -> None:
    runs = [each.workload for each in read_configurations([str(FOLDER)], "Perlmutter")]
    assert len(runs) == 8
    assert {run.num_gpus for run in runs} == {1, 2}
    shardings = {
        sharded.sharding
        for run in runs
        if isinstance(run, RecommenderWorkload) and run.num_gpus > 1
        for sharded in run.run.plan.tables
    }
    assert shardings == {Sharding.TABLE_WISE, Sharding.ROW_WISE, Sharding.COLUMN_WISE, Sharding.DATA_PARALLEL}
    layers = {layer.TYPE for run in runs if isinstance(run, RecommenderWorkload) for layer in run.run.model.layers}
    assert {"MultiCross", "Interaction", "FmOrder2"} <= layers


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recommender_is_predicted_as_by_predict(path: Path) -> None:
    (configuration,) = read_configurations([str(path)], "Perlmutter")
    loaded = to_run(read_hugectr(path), Options(system="Perlmutter"), path.parent)
    assert configuration.workload.predict().step == predict_recommender(loaded.run, loaded.system).step


def test_a_recommender_is_the_same_on_any_system_and_from_any_folder(tmp_path: Path) -> None:
    content = content_of("dlrm-column-wise")
    here = configured("c", content, tmp_path, "Perlmutter")
    assert configured("c", content, tmp_path, "H100").config_hash == here.config_hash
    own = content_of("dlrm-column-wise", system="Perlmutter", price_per_gpu_hour=2.0)
    assert configured("c", own, tmp_path).config_hash == here.config_hash
    (tmp_path / "plan.json").write_text(json.dumps(content["prediction"]["plan"]))
    named = configured("c", content_of("dlrm-column-wise", plan="plan.json"), tmp_path, "Perlmutter")
    assert named.content == here.content
    again = configured("c", named.content, Path("/"), "Perlmutter")
    assert again.config_hash == here.config_hash
    assert again.workload.predict().step == here.workload.predict().step
    other = configured("c", content_of("dlrm-column-wise", key_exponent=1.0), tmp_path, "Perlmutter")
    assert other.config_hash != here.config_hash
    with pytest.raises(ConfigError, match="c: system is missing; --system NAME"):
        configured("c", content, tmp_path)


def test_a_plan_of_other_tables_is_refused_where_it_stands(tmp_path: Path) -> None:
    content = content_of("dlrm-column-wise")
    plan = content["prediction"]["plan"]
    content["prediction"]["plan"] = {**plan, "tables": plan["tables"][1:]}
    with pytest.raises(ConfigError, match=r"prediction.plan leaves out table sparse_embedding1.slot0"):
        configured("c", content, tmp_path, "Perlmutter")


def test_kinds_of_runs_are_verified_together(tmp_path: Path, capsys: Capture) -> None:
    llm = write(full_form(), tmp_path / "gpt.yaml")
    words = ["verify", str(FOLDER / "dcn-row-wise.json"), str(llm), "--system", "Perlmutter", "--steps", "4"]
    assert main([*words, "--out", str(tmp_path / "out"), "--python", fake_python(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "dcn-row-wise: launch 1 of 2, 2 ranks, cpu" in told.err
    assert "gpt: launch 2 of 2, 1 rank, cpu" in told.err
    assert "2 runs: median absolute error of the step" in told.out
    folder = next((tmp_path / "out").glob("dcn-row-wise-*"))
    content = json.loads((folder / "config.json").read_text())
    assert "system" not in content["prediction"]
    command = read_launches(folder)[0].provenance.commit
    assert "--nproc-per-node 2" in command
    assert "-m hugectr.measure" in command
    report = tmp_path / "page.html"
    assert main(["verify", "--run", str(folder), "--system", "Perlmutter", "--report", str(report)]) == 0
    told = capsys.readouterr()
    assert f"{folder.name} on Perlmutter: predicted" in told.out
    assert "2 GPUs of Perlmutter" in report.read_text()
