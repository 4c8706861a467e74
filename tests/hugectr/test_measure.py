"""Steps of a recommender are recorded: times, parts, operators and traffic under the names of the predicted tasks."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hugectr.exceptions import HugeCtrError
from hugectr.measure.__main__ import main
from hugectr.measure.batches import make_batches
from hugectr.measure.run import read_measured_config
from hugectr.process_group import keep_freed_memory
from predictor.core.base.read_yaml import read_mapping
from predictor.evidence.verification.launching import Runner, launch
from predictor.recommender.workload.step import recommender_step
from predictor.replay.files.measured_run import MeasuredRun, read_measured_run

FOLDER = Path(__file__).resolve().parents[2] / "profiling" / "verify_recommender"
CPU = torch.device("cpu")


def small(folder: Path, name: str, batch: int, **clause: Any) -> Path:
    """Write one of the verified configurations with a small batch."""
    content = read_mapping(FOLDER / f"{name}.json")
    content["solver"]["batchsize"] = batch
    for sparse in content["layers"][0]["sparse"]:
        sparse["max_feature_num_per_sample"] *= 2
    content["prediction"] = {**content.get("prediction", {}), **clause}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def measured_names(run: MeasuredRun) -> set[tuple[str, str, str]]:
    return {
        (operator.step_pass, operator.name, operator.part)
        for rank in run.ranks
        for operator in rank.provenance.operators
    }


def test_a_recorded_step_has_the_operators_of_the_predicted_one(tmp_path: Path) -> None:
    path = small(tmp_path, "dcn", 64)
    assert main([str(path), "--out", str(tmp_path / "out"), "--steps", "3", "--warm-up", "1", "--profiled", "1"]) == 0
    run = read_measured_run(tmp_path / "out")
    assert len(run.samples_us) == 3
    told = run.provenance
    for step, whole in enumerate(told.samples_us):
        assert sum(samples[step] for samples in told.parts_us.values()) == pytest.approx(whole)
    recorded = {(name, step_pass) for step_pass, name, _ in measured_names(run)}
    for name in ("mlp_linear", "cross_layer", "relu", "dropout", "tensor_copy"):
        assert {(name, "forward"), (name, "backward")} <= recorded
    assert {("embedding_bag", "forward"), ("embedding_update", "backward"), ("optimizer_step", "end")} <= recorded
    tasks = recommender_step(read_measured_config(path).run)
    predicted = {task.name for task, _ in tasks.calls(tasks.stages[0])}
    assert predicted <= {name for name, _ in recorded}


def test_two_ranks_record_their_traffic_by_what_it_is_for(tmp_path: Path) -> None:
    path = small(tmp_path, "dlrm-data-parallel", 64)
    runner = Runner(sys.executable, "cpu", 3, 1, 300.0)
    launch(runner, "hugectr.measure", path, tmp_path / "out", 2)
    run = read_measured_run(tmp_path / "out")
    assert run.provenance.world_size == 2
    names = measured_names(run)
    expected = {
        ("forward", "all_to_all", "input"),
        ("forward", "all_to_all", "embedding_exchange"),
        ("backward", "all_to_all", "embedding_exchange"),
        ("forward", "reduce_scatter", "embedding_exchange"),
        ("backward", "all_gather", "embedding_exchange"),
        ("end", "all_reduce", "data_parallel"),
        ("forward", "kjt_permute", ""),
    }
    assert expected <= names


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_keys_touch_the_rows_that_a_prediction_expects(exponent: float, tmp_path: Path) -> None:
    config = read_measured_config(small(tmp_path, "dlrm-table-wise", 4096, key_exponent=exponent))
    run = config.run
    batches = [make_batches(run, config.data, 1, rank, CPU)[0] for rank in range(2)]
    (layer,) = run.model.embeddings
    for slot, rows in enumerate(layer.slot_rows):
        keys = np.concatenate(
            [batch.sparse[layer.input].keys.view(layer.num_slots, -1)[slot].numpy() for batch in batches]
        )
        assert keys.min() >= 0
        assert keys.max() < rows
        assert len(np.unique(keys)) == pytest.approx(run.keys.distinct(4096, rows), rel=0.05, abs=3)


def test_hash_tables_have_room_for_the_keys_and_mean_hotness_is_met(tmp_path: Path) -> None:
    config = read_measured_config(small(tmp_path, "wdl", 2048, hotness={"deep_data": [1.5]}))
    batch = make_batches(config.run, config.data, 1, 0, CPU)[0]
    deep = batch.sparse["deep_data"]
    assert set(deep.lengths.tolist()) == {1, 2}
    assert len(deep.keys) == int(deep.lengths.sum())
    assert float(deep.lengths.float().mean()) == pytest.approx(1.5, abs=0.02)
    (table,) = config.run.model.embeddings[1].tables(1)
    assert int(deep.keys.max()) < table.rows


def test_what_cannot_be_run_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HugeCtrError, match="65 samples is no multiple of the 2 GPUs"):
        read_measured_config(small(tmp_path, "dcn-row-wise", 65))
    for words in (
        [str(tmp_path / "absent.json"), "--out", str(tmp_path)],
        [str(small(tmp_path, "dcn-row-wise", 64)), "--out", str(tmp_path)],
        [str(small(tmp_path, "dcn", 64)), "--out", str(tmp_path), "--steps", "0"],
    ):
        assert main(words) == 2
        assert capsys.readouterr().err.strip().count("\n") == 0


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
