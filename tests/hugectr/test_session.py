"""A session of one rank: the documented calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hugectr import DataReader32, DataReader64, Session, solver_parser_helper
from hugectr.__main__ import main as command
from hugectr.exceptions import DataError, EmbeddingOverflowError, HugeCtrError
from hugectr.plans import plan_of
from hugectr.train import train
from predictor.recommender.hugectr.plan_file import write_plan
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.workload.plan import Sharding, ShardingPlan, default_plan
from tests.hugectr.model_made import ADAM, LOCALIZED, ROWS, SGD, SLOTS, Made, dlrm_layers, make, write_list

BATCH = 16


def session_of(made: Made, *args: Any, **settings: Any) -> Session:
    return Session(
        solver_parser_helper(**{"batchsize": BATCH, "batchsize_eval": BATCH, **settings}), str(made.config), *args
    )


def losses(session: Session, steps: int) -> list[float]:
    values = []
    for _ in range(steps):
        assert session.train()
        values.append(session.get_current_loss())
    return values


def engine_of(session: Session) -> Any:
    return session._ranks._engine


def test_training_learns(tmp_path: Path) -> None:
    with session_of(make(tmp_path)) as session:
        session.start_data_reading()
        values = losses(session, 60)
    assert np.mean(values[-9:]) < 0.85 * np.mean(values[:9])


def test_norm_data_of_sizes_that_an_embedding_layer_states(tmp_path: Path) -> None:
    curves = []
    for stating in ("data layer", "embedding layer"):
        made = make(tmp_path, kind=LOCALIZED)
        content = json.loads(made.config.read_text())
        data, embedding = content["layers"][:2]
        clause = data if stating == "data layer" else embedding["sparse_embedding_hparam"]
        clause["slot_size_array"] = [ROWS] * SLOTS
        made.config.write_text(json.dumps(content))
        with session_of(made, max_eval_batches=2) as session:
            session.start_data_reading()
            curves.append(losses(session, 60))
            session.evaluation()
    assert curves[0] == curves[1]
    assert np.mean(curves[1][-9:]) < 0.9 * np.mean(curves[1][:9])


def test_an_epoch_ends_and_begins_anew(tmp_path: Path) -> None:
    made = make(tmp_path, files=2, per_file=20)  # 40 samples: two batches, and 8 samples in a third
    with session_of(made, repeat_dataset=False) as session:
        train_reader, eval_reader = session.get_data_reader_train(), session.get_data_reader_eval()
        for source in (str(made.train), ""):
            train_reader.set_source(source)
            assert [session.train() for _ in range(4)] == [True, True, True, False]
        eval_reader.set_source()
        assert [session.eval() for _ in range(3)] == [True, True, False]
        eval_reader.set_source(str(made.train))
        assert [session.eval() for _ in range(4)] == [True, True, True, False]


def test_readers_are_started_as_the_mode_says(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made) as session:
        with pytest.raises(HugeCtrError, match=r"train data is not being read yet; call start_data_reading\(\) first"):
            session.train()
        with pytest.raises(HugeCtrError, match="set repeat_dataset=False"):
            session.get_data_reader_train().set_source()
    with session_of(made, repeat_dataset=False) as session:
        with pytest.raises(HugeCtrError, match=r"call get_data_reader_eval\(\)\.set_source\(\) first"):
            session.eval()
        with pytest.raises(HugeCtrError, match="start_data_reading is for repeat_dataset=True"):
            session.start_data_reading()
        with pytest.raises(DataError, match=r"none\.txt"):
            session.get_data_reader_train().set_source("none.txt")


def test_readers_have_the_class_of_their_keys(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made) as narrow, session_of(made, i64_input_key=True) as wide:
        assert isinstance(narrow.get_data_reader_train(), DataReader32)
        assert isinstance(wide.get_data_reader_eval(), DataReader64)


def test_a_rate_of_zero_changes_nothing(tmp_path: Path) -> None:
    made = make(tmp_path, optimizer=SGD)
    with session_of(made) as session:
        session.start_data_reading()
        weights = engine_of(session)._network.weights.flat
        session.set_learning_rate(0.0)
        before = weights.clone()
        losses(session, 2)
        assert torch.equal(weights, before)
        session.set_learning_rate(0.5)
        losses(session, 1)
        assert not torch.equal(weights, before)
        with pytest.raises(HugeCtrError, match="lr is nan; expected a finite number from 0 on"):
            session.set_learning_rate(float("nan"))


def test_a_rate_that_is_set_is_that_of_all_layers(tmp_path: Path) -> None:
    made = make(tmp_path, optimizer=ADAM)
    content = json.loads(made.config.read_text())
    content["layers"][1]["optimizer"] = SGD
    made.config.write_text(json.dumps(content))
    moved = []
    for rate in (None, 0.5, 0.25, 0.0):
        with session_of(made) as session:
            session.start_data_reading()
            losses(session, 9)  # the whole data; all rows have keys now
            (store,) = engine_of(session)._embeddings.stores
            weights = store.table.weights[store.tables[0].used]
            before = weights.clone()
            if rate is not None:
                session.set_learning_rate(rate)
            losses(session, 1)
            moved.append((weights - before).numpy())
    own, same, half, none = moved
    assert np.array_equal(own, same)  # the layer's own rate is 0.5
    np.testing.assert_allclose(half, own / 2, rtol=1e-4, atol=1e-7)
    assert np.any(own)
    assert not np.any(none)


def test_evaluation_uses_the_copied_dense_weights(tmp_path: Path) -> None:
    with session_of(make(tmp_path, dlrm_layers()), eval_metrics=["AverageLoss"], max_eval_batches=3) as session:
        session.start_data_reading()
        engine = engine_of(session)
        losses(session, 5)
        copied = engine._eval_network.weights.flat
        assert not torch.equal(copied, engine._network.weights.flat)
        before = session.evaluation()
        assert session.evaluation() == before  # three batches are the whole evaluation data
        session.copy_weights_for_evaluation()
        assert torch.equal(copied, engine._network.weights.flat)
        assert session.evaluation() != before


def test_metrics_are_those_of_the_exported_predictions(tmp_path: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    with session_of(make(tmp_path), eval_metrics=["AUC", "AverageLoss"], max_eval_batches=3) as session:
        session.start_data_reading()
        losses(session, 5)
        session.copy_weights_for_evaluation()
        files = tmp_path / "out" / "predictions.txt", tmp_path / "out" / "labels.txt"
        values = dict(session.evaluation(str(files[0]), str(files[1])))
        predictions, labels = np.loadtxt(files[0]), np.loadtxt(files[1])
        assert predictions.shape == (48,)
        assert values["AUC"] == pytest.approx(metrics.roc_auc_score(labels, predictions), abs=1e-6)
        assert values["AverageLoss"] == pytest.approx(metrics.log_loss(labels, predictions), rel=1e-5)
        for _ in range(3):
            session.eval()
        assert dict(session.get_eval_metrics()) == values
        for argument, file in zip(("export_predictions_out_file", "export_labels_out_file"), files, strict=True):
            alone = file.with_name("alone.txt")
            session.evaluation(**{argument: str(alone)})
            assert alone.read_text() == file.read_text()
            alone.unlink()
        assert sorted(path.name for path in files[0].parent.iterdir()) == ["labels.txt", "predictions.txt"]


def test_a_table_that_is_too_small_is_named(tmp_path: Path) -> None:
    with session_of(make(tmp_path, vocabulary=10)) as session:
        session.start_data_reading()
        losses(session, 2)
        with pytest.raises(EmbeddingOverflowError, match="embedding1"):
            session.check_overflow()


@pytest.mark.parametrize("optimizer", [ADAM, {**ADAM, "update_type": "LazyGlobal"}], ids=["Local", "LazyGlobal"])
def test_resuming_equals_going_on(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    made = make(tmp_path, dlrm_layers(), optimizer=optimizer)
    second = write_list(tmp_path, "second", 1, 64, seed=50)
    with session_of(made, repeat_dataset=False) as session:
        session.get_data_reader_train().set_source(str(made.train))
        losses(session, 9)
        session.download_params_to_files(f"{tmp_path}/files/", 9)
        session.get_data_reader_train().set_source(str(second))
        expected = losses(session, 4)
    names = sorted(path.name for path in (tmp_path / "files").glob("*.model"))
    assert names == ["0_opt_sparse_9.model", "0_sparse_9.model", "_dense_9.model", "_opt_dense_9.model"]
    files = {
        "model_file": "_dense_9.model",
        "dense_opt_states_file": "_opt_dense_9.model",
        "embedding_files": "0_sparse_9.model",
        "sparse_opt_states_file": "0_opt_sparse_9.model",
    }
    loaded = {argument: f"{tmp_path}/files/{name}" for argument, name in files.items()}
    with session_of(made, repeat_dataset=False, **loaded) as session:
        session.get_data_reader_train().set_source(str(second))
        assert losses(session, 4) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(HugeCtrError, match="embedding_files has 2 files; the configuration has 1 embedding layers"):
        session_of(made, **loaded | {"embedding_files": ["a", "b"]})


def test_a_step_that_overflows_is_skipped_and_counted(tmp_path: Path) -> None:
    with session_of(make(tmp_path), use_mixed_precision=True, scaler=1024) as session:
        session.start_data_reading()
        losses(session, 3)
        assert session.get_skipped_steps() == 0
        engine = engine_of(session)
        weights = engine._network.weights.flat
        kept = weights.clone()
        weights[-2] = float("inf")
        broken = weights.clone()
        assert session.train()
        assert session.get_skipped_steps() == 1
        assert torch.equal(weights, broken)
        weights.copy_(kept)
        assert all(map(np.isfinite, losses(session, 3)))
        assert session.get_skipped_steps() == 1


def test_mixed_precision_learns_like_float32(tmp_path: Path) -> None:
    made = make(tmp_path)
    curves = []
    for half in ({}, {"use_mixed_precision": True, "scaler": 128}):
        with session_of(made, **half) as session:
            session.start_data_reading()
            curves.append(losses(session, 20))
    np.testing.assert_allclose(curves[0], curves[1], rtol=0.02)
    assert curves[0] != curves[1]


def test_oversubscription_needs_its_arguments(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made) as session, pytest.raises(HugeCtrError, match="without use_model_oversubscriber=True"):
        session.get_model_oversubscriber()
    with pytest.raises(HugeCtrError, match="temp_embedding_dir is ''"):
        session_of(made, True)
    with pytest.raises(HugeCtrError, match=r"temp_embedding_dir .*train\.txt is not writable: .*; name another folder"):
        session_of(made, True, str(made.train))


def test_a_plan_of_other_tables_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"format": "estimate-train-time/sharding-plan/1", "num_ranks": 1, "tables": []}')
    with pytest.raises(HugeCtrError, match="leaves out table embedding1"):
        session_of(make(tmp_path), sharding_plan=str(plan))


def test_rows_over_some_ranks_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    model, plan = read_hugectr(made.config).model, tmp_path / "plan.json"
    for ranks in ((0, 1), (0, 1, 2, 3)):
        tables = [
            replace(sharded, sharding=Sharding.TABLE_ROW_WISE, ranks=ranks)
            for sharded in default_plan(model.embeddings, 4).tables
        ]
        write_plan(ShardingPlan(4, tuple(tables)), plan)
        if len(ranks) == 4:
            assert plan_of(model, 4, str(plan)) == default_plan(model.embeddings, 4)
            continue
        with pytest.raises(HugeCtrError, match=r"table_row_wise on ranks \[0, 1\] of 4 .* use row_wise") as raised:
            plan_of(model, 4, str(plan))
        assert "embedding1" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_plan_file_is_followed(tmp_path: Path) -> None:
    made = make(tmp_path)
    model = read_hugectr(made.config).model
    (sharded,) = default_plan(model.embeddings, 1).tables
    plan = tmp_path / "plan.json"
    write_plan(ShardingPlan(1, (replace(sharded, sharding=Sharding.DATA_PARALLEL),)), plan)
    with session_of(made, sharding_plan=str(plan)) as session:
        assert engine_of(session)._embeddings.plan.tables[0].sharding is Sharding.DATA_PARALLEL
        session.start_data_reading()
        planned = losses(session, 3)
    with session_of(made) as session:
        session.start_data_reading()
        assert losses(session, 3) == pytest.approx(planned, rel=1e-6)


def test_metrics_of_no_batch_are_no_numbers(tmp_path: Path) -> None:
    with session_of(make(tmp_path), eval_metrics=["AUC", "AverageLoss"]) as session:
        assert all(np.isnan(value) for _, value in session.get_eval_metrics())


def test_a_damaged_configuration_is_one_line(tmp_path: Path) -> None:
    made = make(tmp_path)
    content = json.loads(made.config.read_text())
    content["layers"][1]["bottom"] = "data2"
    made.config.write_text(json.dumps(content))
    with pytest.raises(HugeCtrError, match="bottom is data2; the data layer has data1") as raised:
        session_of(made)
    assert "\n" not in str(raised.value)


SOLVER: dict[str, Any] = {"batchsize": BATCH, "display": 5, "eval_interval": 10, "max_eval_batches": 2, "snapshot": 20}


def test_train_follows_the_solver_clause(tmp_path: Path) -> None:
    solver = {**SOLVER, "max_iter": 20, "snapshot_prefix": f"{tmp_path}/snap"}
    lines: list[str] = []
    outcome = train(str(make(tmp_path, solver=solver).config), lines.append)
    assert outcome.iterations == 20
    assert [line.split(":")[0] for line in lines] == [f"iteration {n}" for n in (5, 10, 10, 15, 20, 20)]
    assert (tmp_path / "snap_dense_20.model").exists()


def test_train_in_epochs_stops_at_a_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where snapshots go
    solver = {**SOLVER, "num_epochs": 3}
    assert train(str(make(tmp_path, solver=solver).config), lambda _: None).iterations == 27
    solver["eval_metrics"] = ["AUC:0.1"]
    outcome = train(str(make(tmp_path, solver=solver).config), lambda _: None)
    assert outcome.has_reached_threshold
    assert outcome.iterations == 10
    with pytest.raises(HugeCtrError, match="neither max_iter nor num_epochs"):
        train(str(make(tmp_path, solver=SOLVER).config), lambda _: None)
    with pytest.raises(HugeCtrError, match="has no solver clause"):
        train(str(make(tmp_path).config), lambda _: None)
    with pytest.raises(HugeCtrError, match="eval_batches is deprecated; use max_eval_batches"):
        train(str(make(tmp_path, solver={**solver, "eval_batches": 2}).config), lambda _: None)


def test_train_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make(tmp_path, solver={**SOLVER, "max_iter": 10})
    assert command(["train", str(made.config), "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["iteration 5", "iteration 10", "iteration 10", "10 iterations"]
    assert command(["train", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err == f"hugectr: {tmp_path}/none.json does not exist\n"
