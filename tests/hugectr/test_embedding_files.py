"""Files of embedding layers: their layout, training that goes on from them, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from hugectr.embedding.files import EmbeddingFiles
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import DataError
from predictor.recommender.workload.optimizer import OptimizerKind, UpdateType
from predictor.recommender.workload.plan import Sharding
from tests.hugectr.embedding_made import (
    STEPS,
    Case,
    hashed,
    localized,
    on_ranks,
    optimizer,
    recommender,
    single_rank,
    train_step,
)

ADAM = optimizer(OptimizerKind.ADAM, UpdateType.LAZY_GLOBAL)
MODELS = {
    "adam": recommender(ADAM, hashed(), localized((40, 41, 45))),
    "localized": recommender(optimizer(OptimizerKind.NESTEROV, UpdateType.GLOBAL), localized()),
    "sgd": recommender(optimizer(OptimizerKind.SGD, UpdateType.LOCAL), hashed()),
}


def _save(embeddings: ShardedEmbeddings, folder: Path) -> None:
    files = EmbeddingFiles(embeddings, is_64_bit=True)
    layers = range(len(embeddings.model.embeddings))
    files.save_models([folder / f"{layer}_sparse.model" for layer in layers])
    files.save_states([folder / f"{layer}_opt_sparse.model" for layer in layers])


def _load(embeddings: ShardedEmbeddings, folder: Path) -> None:
    files = EmbeddingFiles(embeddings, is_64_bit=True)
    layers = range(len(embeddings.model.embeddings))
    files.load_models([folder / f"{layer}_sparse.model" for layer in layers])
    files.load_states([folder / f"{layer}_opt_sparse.model" for layer in layers])


def _run(case: Case, folder: Path, rank: int = 0, ranks: int = 1) -> list[float]:
    """Save after half of the steps, train on with tables that load the files, and return all losses."""
    embeddings = case.embeddings(ranks)
    losses = [train_step(embeddings, step, rank, ranks) for step in range(1, STEPS // 2 + 1)]
    _save(embeddings, folder)
    again = case.embeddings(ranks)
    train_step(again, STEPS, rank, ranks)  # what loading replaces
    _load(again, folder)
    return losses + [train_step(again, step, rank, ranks) for step in range(STEPS // 2 + 1, STEPS + 1)]


def _run_all(rank: int, ranks: int, folder: Path) -> None:
    losses = {}
    for sharding in Sharding:
        for name, model in MODELS.items():
            place = folder / f"{sharding}-{name}"
            losses[place.name] = _run(Case(model, sharding), place, rank, ranks)
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    on_ranks(_run_all, folder)
    return folder


@pytest.mark.parametrize("sharding", list(Sharding))
@pytest.mark.parametrize("name", list(MODELS))
def test_loaded_tables_train_on_as_if_nothing_had_happened(name: str, sharding: Sharding, on_two: Path) -> None:
    losses = json.loads((on_two / "losses.json").read_text())[f"{sharding}-{name}"]
    with single_rank():
        assert losses == pytest.approx(Case(MODELS[name], None).losses(), rel=2e-6)


@pytest.mark.parametrize("name", list(MODELS))
def test_files_of_two_ranks_serve_one(name: str, on_two: Path, tmp_path: Path) -> None:
    case = Case(MODELS[name], None)
    with single_rank():
        untouched = case.losses()
        for sharding in Sharding:
            embeddings = case.embeddings(1)
            _load(embeddings, on_two / f"{sharding}-{name}")
            after = [train_step(embeddings, step) for step in range(STEPS // 2 + 1, STEPS + 1)]
            assert after == pytest.approx(untouched[STEPS // 2 :], rel=2e-6)


def test_a_distributed_layer_is_key_and_vector(tmp_path: Path) -> None:
    with single_rank():
        embeddings = Case(MODELS["sgd"], None).embeddings(1)
        train_step(embeddings, 1)
        EmbeddingFiles(embeddings, is_64_bit=False).save_models([tmp_path / "0"])
        rows = embeddings.stores[0].tables[0]
        weights = embeddings.stores[0].table.weights[rows.used].numpy()
    content = np.fromfile(tmp_path / "0", [("key", "<u4"), ("vector", "<f4", (8,))])
    assert content["key"].tolist() == rows.keys().tolist()
    np.testing.assert_array_equal(content["vector"], weights)


def test_a_localized_layer_names_the_slot_of_each_key(tmp_path: Path) -> None:
    with single_rank():
        embeddings = Case(MODELS["localized"], None).embeddings(1)
        for step in (1, 2):
            train_step(embeddings, step)
        EmbeddingFiles(embeddings, is_64_bit=True).save_models([tmp_path / "0"])
    content = np.fromfile(tmp_path / "0", [("key", "<i8"), ("slot", "<u8"), ("vector", "<f4", (8,))])
    assert set(content["slot"]) == {0, 1, 2}
    assert (content["key"] % 3 == content["slot"]).all()  # so the batches draw them


@pytest.mark.parametrize("sharding", list(Sharding))
def test_every_plan_names_the_slots(sharding: Sharding, on_two: Path) -> None:
    content = np.fromfile(
        on_two / f"{sharding}-localized" / "0_sparse.model", [("key", "<u8"), ("slot", "<u8"), ("vector", "<f4", (8,))]
    )
    small = content[content["key"] < 1000]  # of the first steps; larger ones wrap around 64 bits
    assert len(small) > 50
    assert (small["key"] % 3 == small["slot"]).all()


def test_sgd_leaves_an_empty_file_of_states(on_two: Path) -> None:
    assert (on_two / "row_wise-sgd" / "0_opt_sparse.model").stat().st_size == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234567", "has 7 bytes, no multiple of the 40 of a row of hashed"),
        (None, "does not exist; expected a file of layer hashed"),
    ],
)
def test_damaged_files_are_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "0_sparse.model"
    if content is not None:
        path.write_bytes(content)
    with single_rank():
        files = EmbeddingFiles(Case(MODELS["sgd"], None).embeddings(1), is_64_bit=True)
        with pytest.raises(DataError, match=message):
            files.load_models([path])


def test_a_file_that_does_not_fit_says_so(tmp_path: Path) -> None:
    records = np.zeros(11, [("key", "<i8"), ("vector", "<f4", (8,))])
    records["key"] = np.arange(11)
    records.tofile(tmp_path / "0")
    with single_rank():
        small = recommender(MODELS["sgd"].optimizer or ADAM, hashed(rows=10))
        with pytest.raises(DataError, match="11 keys do not fit 10 rows"):
            EmbeddingFiles(Case(small, None).embeddings(1), is_64_bit=True).load_models([tmp_path / "0"])


def test_keys_of_64_bits_do_not_go_into_files_of_32(tmp_path: Path) -> None:
    with single_rank():
        embeddings = Case(MODELS["sgd"], None).embeddings(1)
        train_step(embeddings, STEPS)
        with pytest.raises(DataError, match="keys of more than 32 bits"):
            EmbeddingFiles(embeddings, is_64_bit=False).save_models([tmp_path / "0"])
