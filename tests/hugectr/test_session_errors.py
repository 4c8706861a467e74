"""Calls of a session that cannot be followed say why in one line, and leave the session as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hugectr import solver_parser_helper
from hugectr.data.keyset import write_keyset
from hugectr.exceptions import DataError, HugeCtrError
from hugectr.train import train
from tests.hugectr.model_made import LOCALIZED, ROWS, SLOTS, WIDTH, make
from tests.hugectr.test_session import losses, session_of


def test_a_batch_larger_than_the_data_is_trained_and_evaluated(tmp_path: Path) -> None:
    made = make(tmp_path, files=1, per_file=20)
    solver = {"batchsize": 64, "batchsize_eval": 64, "display": 1, "num_epochs": 2, "snapshot": 9, "eval_interval": 1}
    outcome = train(str(make(tmp_path, files=1, per_file=20, solver=solver).config), lambda _: None)
    assert outcome.iterations == 2
    assert 0 <= dict(outcome.metrics)["AUC"] <= 1
    curves = []
    for batch in (20, 64):
        with session_of(made, repeat_dataset=False, batchsize=batch) as session:
            for _ in range(3):
                session.get_data_reader_train().set_source()
                losses(session, 1)
                assert not session.train()
            curves.append(session.get_current_loss())
    assert curves[0] == curves[1]


def test_an_evaluation_of_data_that_has_ended_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made, repeat_dataset=False, max_eval_batches=3) as session:  # the whole evaluation data
        reader = session.get_data_reader_eval()
        reader.set_source()
        first = session.evaluation()
        for call in (session.evaluation, session.get_eval_metrics):
            with pytest.raises(HugeCtrError, match=r"has ended.*call get_data_reader_eval\(\)\.set_source\(\) first"):
                call()
        reader.set_source()
        assert session.evaluation() == first
        assert not session.eval()  # as in HugeCTR's sample program, which then goes on so:
        reader.set_source()
        assert np.isnan(session.get_eval_metrics()[0][1])


def test_a_source_that_cannot_be_set_leaves_the_one_before(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made, repeat_dataset=False) as session:
        reader = session.get_data_reader_train()
        reader.set_source(str(made.train))
        losses(session, 4)
        with pytest.raises(DataError, match=r"none\.txt"):
            reader.set_source("none.txt")
        losses(session, 5)
        assert not session.train()
        reader.set_source()
        losses(session, 9)


def test_a_closed_session_says_so(tmp_path: Path) -> None:
    session = session_of(make(tmp_path))
    session.start_data_reading()
    session.close()
    session.close()
    calls = (session.train, session.eval, session.evaluation, session.start_data_reading, session.get_current_loss)
    for call in calls:
        with pytest.raises(HugeCtrError, match="the session is closed; make a new one"):
            call()


def test_arguments_of_calls_are_checked(tmp_path: Path) -> None:
    with session_of(make(tmp_path)) as session:
        for rate in ("a", None, -1, True, float("inf")):
            with pytest.raises(HugeCtrError, match=r"lr is .*; expected a finite number from 0 on"):
                session.set_learning_rate(rate)
        for iteration in ("a", -1, 1.5, None):
            with pytest.raises(HugeCtrError, match=r"iter is .*; expected a whole number from 0 on"):
                session.download_params_to_files(f"{tmp_path}/", iteration)
        with pytest.raises(HugeCtrError, match=r"prefix: .*config\.json/x_dense_1\.model cannot be written: "):
            session.download_params_to_files(f"{tmp_path}/config.json/x", 1)
        with pytest.raises(HugeCtrError, match=r"prefix is 3; expected a path"):
            session.download_params_to_files(3, 1)
        with pytest.raises(HugeCtrError, match=r"export_labels_out_file: .* cannot be written: Is a directory"):
            session.evaluation("", str(tmp_path))


def test_oversubscription_is_checked_before_the_engine_is_loaded(tmp_path: Path) -> None:
    made = make(tmp_path, kind=LOCALIZED)
    content = json.loads(made.config.read_text())
    content["layers"][1]["sparse_embedding_hparam"]["slot_size_array"] = [ROWS] * SLOTS
    made.config.write_text(json.dumps(content))
    program = (
        "import sys, hugectr\n"
        "try: hugectr.Session(hugectr.solver_parser_helper(), sys.argv[1], True, sys.argv[2])\n"
        "except hugectr.exceptions.HugeCtrError as error: print(error, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(made.config), str(tmp_path / "rows")]
    paths = os.pathsep.join(path for path in sys.path if path)
    out = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": paths})
    assert out.stdout.startswith("layer embedding1 has slot_size_array")
    assert out.stdout.endswith("False\n")


def test_sessions_share_a_folder_for_rows(tmp_path: Path) -> None:
    made = make(tmp_path, vocabulary=SLOTS * ROWS)
    keysets = []
    for part in range(2):
        keysets.append(tmp_path / f"{part}.keyset")
        write_keyset(keysets[-1], np.arange(part * ROWS, SLOTS * ROWS, 2), is_64_bit=False)
    together, alone = tmp_path / "rows", [tmp_path / "rows0", tmp_path / "rows1"]
    folders = {"together": [together, together], "alone": alone}
    outcomes = {}
    for name, of_sessions in folders.items():
        sessions = [
            session_of(made, True, str(folder), seed=seed, repeat_dataset=False)
            for seed, folder in enumerate(of_sessions)
        ]
        curves = []
        for part in (0, 1, 0, 1):
            for session in sessions:
                session.get_model_oversubscriber().update(str(keysets[part]))
                session.get_data_reader_train().set_source()
                curves.append(losses(session, 9))
        late = session_of(made, True, str(of_sessions[0]), repeat_dataset=False)
        sessions[0].download_params_to_files(f"{tmp_path}/{name}", 1)
        curves.append(np.sort(np.fromfile(tmp_path / f"{name}0_sparse_1.model", "<f4")).tolist())
        outcomes[name] = curves
        for session in (*sessions, late):
            session.close()
    assert outcomes["together"] == outcomes["alone"]
    assert not list(together.iterdir())


def test_files_of_other_rows_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    with session_of(made) as session:
        session.start_data_reading()
        losses(session, 2)
        session.download_params_to_files(f"{tmp_path}/", 2)
    model, states = tmp_path / "0_sparse_2.model", tmp_path / "0_opt_sparse_2.model"
    files = {"embedding_files": str(model), "sparse_opt_states_file": str(states)}
    session_of(made, **files).close()
    row_bytes = 4 + 4 * WIDTH
    os.truncate(model, model.stat().st_size // row_bytes // 2 * row_bytes)  # torn between two rows
    with pytest.raises(
        DataError, match=r"0_sparse_2\.model has \d+ rows of embedding1 and .* one is torn or of another"
    ):
        session_of(made, **files)


WRONG = [
    ("batchsize", "a"), ("batchsize", 0), ("batchsize", 1 << 31), ("batchsize_eval", -1), ("seed", 1.5),
    ("max_eval_batches", None), ("vvgpu", "0"), ("vvgpu", [0, [1]]), ("vvgpu", [[]]), ("vvgpu", [-1]), ("vvgpu", 3),
    ("scaler", "a"), ("scaler", -128.0), ("use_mixed_precision", 1), ("repeat_dataset", "yes"), ("model_file", 5),
    ("embedding_files", [3]), ("sparse_opt_states_file", 3), ("eval_metrics", 3), ("eval_metrics", ["RMSE"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(HugeCtrError, match=rf"{name} (is|has) .*; (expected|without|a node|it must)") as raised:
        solver_parser_helper(**{name: value})
    assert "\n" not in str(raised.value)


def test_a_flat_list_of_gpus_is_one_node() -> None:
    assert solver_parser_helper(vvgpu=[0, 2, 4, 7]).vvgpu == ((0, 2, 4, 7),)
    assert solver_parser_helper(vvgpu=[[0, 1], [1, 2]]).vvgpu == ((0, 1), (1, 2))
