"""Sessions on two ranks: the losses, metrics and files of one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hugectr import Session, solver_parser_helper
from hugectr.exceptions import DataError, EmbeddingOverflowError
from hugectr.ranks import ChildRanks
from tests.hugectr.model_made import ADAM, DISTRIBUTED, LOCALIZED, SGD, Made, dcn_layers, dlrm_layers, make
from tests.ranks import free_port

BATCH, STEPS = 16, 12
MOMENTUM = {"type": "MomentumSGD", "momentum_sgd_hparam": {"learning_rate": 0.05, "momentum_factor": 0.9}}
HALF = {"use_mixed_precision": True, "scaler": 256}
FILES = {
    "model_file": "_dense_3.model",
    "dense_opt_states_file": "_opt_dense_3.model",
    "embedding_files": "0_sparse_3.model",
    "sparse_opt_states_file": "0_opt_sparse_3.model",
}


def settings(made: Made, num_ranks: int, **changes: Any) -> Any:
    gpus = [list(range(num_ranks))]
    arguments = {"batchsize": BATCH, "batchsize_eval": BATCH, "max_eval_batches": 3, "vvgpu": gpus, **changes}
    return solver_parser_helper(eval_metrics=["AUC", "AverageLoss"], **arguments)


@pytest.fixture(scope="module")
def pair() -> Iterator[ChildRanks]:
    """Two ranks, whose engines the tests make one after another."""
    ranks = ChildRanks(2)
    yield ranks
    ranks.close()


def make_engines(pair: ChildRanks, made: Made, **changes: Any) -> None:
    pair.make_engines(
        settings(made, 2, **changes),
        config_file=str(made.config),
        use_model_oversubscriber=False,
        temp_embedding_dir="",
    )


def trained(call: Any, steps: int = STEPS) -> list[float]:
    """Return the losses of some steps."""
    call("start_data_reading")
    losses = []
    for _ in range(steps):
        assert call("train")
        losses.append(call("get_current_loss"))
    return losses


@pytest.mark.parametrize("kind", [DISTRIBUTED, LOCALIZED])
@pytest.mark.parametrize("optimizer", [ADAM, SGD, MOMENTUM], ids=lambda optimizer: optimizer["type"])
@pytest.mark.parametrize("layers", [dcn_layers, dlrm_layers])
def test_two_ranks_train_to_the_losses_of_one(
    pair: ChildRanks, tmp_path: Path, layers: Any, optimizer: Any, kind: str
) -> None:
    made = make(tmp_path, layers(), optimizer=optimizer, kind=kind)
    with Session(settings(made, 1), str(made.config)) as session:
        expected = trained(session._ranks.call)
        session.copy_weights_for_evaluation()
        metrics = dict(session.evaluation())
    make_engines(pair, made)
    assert trained(pair.call) == pytest.approx(expected, rel=1e-5)
    pair.call("copy_weights_for_evaluation")
    assert dict(pair.call("evaluation", "", "")) == pytest.approx(metrics, rel=1e-5)


def test_two_ranks_train_in_mixed_precision(pair: ChildRanks, tmp_path: Path) -> None:
    made = make(tmp_path)
    with Session(settings(made, 1, **HALF), str(made.config)) as session:
        expected = trained(session._ranks.call)
    make_engines(pair, made, **HALF)
    assert trained(pair.call) == pytest.approx(expected, rel=0.01)
    assert pair.call("get_skipped_steps") == 0


@pytest.mark.parametrize("kind", [DISTRIBUTED, LOCALIZED])
def test_files_of_two_ranks_are_those_of_one(pair: ChildRanks, tmp_path: Path, kind: str) -> None:
    made = make(tmp_path, dlrm_layers(), kind=kind)
    make_engines(pair, made)
    trained(pair.call, 3)
    pair.call("download_params_to_files", f"{tmp_path}/two/", 3)
    with Session(settings(made, 1), str(made.config)) as session:
        trained(session._ranks.call, 3)
        session.download_params_to_files(f"{tmp_path}/one/", 3)
    dense = [np.fromfile(tmp_path / folder / "_dense_3.model", "<f4") for folder in ("one", "two")]
    np.testing.assert_allclose(dense[0], dense[1], rtol=1e-4, atol=1e-6)
    sizes = [
        {path.name: path.stat().st_size for path in (tmp_path / folder).glob("*.model")} for folder in ("one", "two")
    ]
    assert sizes[0] == sizes[1]
    loaded = {argument: f"{tmp_path}/two/{name}" for argument, name in FILES.items()}
    with Session(settings(made, 1, **loaded), str(made.config)) as session:
        expected = trained(session._ranks.call, 4)
    make_engines(pair, made, **loaded)
    assert trained(pair.call, 4) == pytest.approx(expected, rel=1e-5)


def test_errors_of_ranks_have_their_classes_and_leave_the_session_open(pair: ChildRanks, tmp_path: Path) -> None:
    made = make(tmp_path, vocabulary=10)
    with pytest.raises(DataError, match="does not exist; expected the dense weights"):
        make_engines(pair, made, model_file=str(tmp_path / "none.model"))
    make_engines(pair, made)
    trained(pair.call, 2)
    with pytest.raises(EmbeddingOverflowError, match="embedding1"):
        pair.call("check_overflow")
    assert pair.call("train")


LAUNCHED = """
import sys
from hugectr import Session, solver_parser_helper

session = Session(solver_parser_helper(batchsize=16, batchsize_eval=16, vvgpu=[[0, 1]]), sys.argv[1])
session.start_data_reading()
for _ in range(3):
    session.train()
print(session.get_current_loss())
"""


def test_processes_of_a_launcher_are_the_ranks(tmp_path: Path) -> None:
    made = make(tmp_path)
    paths = os.pathsep.join(path for path in sys.path if path)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHED, str(made.config)],
            stdout=subprocess.PIPE,
            text=True,
            env={**common, **meeting, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    losses = [float(program.communicate(timeout=200)[0]) for program in programs]
    with Session(settings(made, 1), str(made.config)) as session:
        expected = trained(session._ranks.call, 3)[-1]
    assert losses == pytest.approx([expected] * 2, rel=1e-5)
    assert [program.returncode for program in programs] == [0, 0]


def test_a_session_starts_and_ends_its_ranks(tmp_path: Path) -> None:
    made = make(tmp_path)
    session = Session(settings(made, 2, repeat_dataset=False), str(made.config))
    session.get_data_reader_train().set_source(str(made.train))
    assert [session.train() for _ in range(10)] == [True] * 9 + [False]
    session.get_data_reader_eval().set_source()
    assert [session.eval() for _ in range(4)] == [True] * 3 + [False]
    assert [name for name, _ in session.get_eval_metrics()] == ["AUC", "AverageLoss"]
    children = session._ranks._children
    session.close()
    assert [child.process.returncode for child in children] == [0, 0]
