"""Tables larger than their room train to the losses of tables with room for all rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hugectr.data.keyset import write_keyset
from hugectr.embedding.files import EmbeddingFiles
from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.records import Records, record_type
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import DataError, EmbeddingOverflowError, HugeCtrError
from hugectr.model_oversubscriber import ModelOversubscriber
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.optimizer import OptimizerKind, UpdateType
from predictor.recommender.workload.plan import Sharding
from tests.hugectr.embedding_made import (
    STEPS,
    Case,
    batch,
    evaluate,
    hashed,
    localized,
    on_ranks,
    optimizer,
    recommender,
    single_rank,
    train_step,
)

ROOM = 90  # rows; the steps of a part look up fewer, all steps more
PARTS = ((1, 2), (3, 4), (1, 2), (5, 6))


def _layers(rows: int) -> tuple[EmbeddingLayer, ...]:
    return hashed(rows=rows), localized(rows=rows)


def _case(kind: OptimizerKind, update: UpdateType, rows: int, sharding: Sharding | None = None) -> Case:
    return Case(recommender(optimizer(kind, update), *_layers(rows)), sharding)


def _write_keysets(layer: EmbeddingLayer, folder: Path) -> list[Path]:
    files = []
    for number, part in enumerate(PARTS):
        keys = torch.cat([batch(layer, step).keys for step in part])
        files.append(folder / f"{layer.name}.{number}.keyset")
        write_keyset(files[-1], keys.numpy(), is_64_bit=True)
    return files


def _train(embeddings: ShardedEmbeddings, folder: Path | None, rank: int = 0, ranks: int = 1) -> list[float]:
    """Train all parts, with keysets in ``folder`` or without, and evaluate after each step on others."""
    oversubscriber, number, losses = None, 0, []
    if folder is not None:
        oversubscriber = ModelOversubscriber(embeddings, str(folder / "rows"), is_64_bit=True)
    keysets = [_write_keysets(layer, folder) for layer in embeddings.model.embeddings] if folder is not None else []
    for part, steps in enumerate(PARTS):
        if oversubscriber is not None:
            oversubscriber.update([str(files[part]) for files in keysets])
        for step in steps:
            number += 1
            losses.append(train_step(embeddings, step, rank, ranks, number))
            losses += [evaluate(embeddings, other, rank, ranks) for other in (2, 4)]
        embeddings.check_overflow()
    return losses


RULES = [
    (OptimizerKind.ADAM, UpdateType.LOCAL),
    (OptimizerKind.ADAM, UpdateType.LAZY_GLOBAL),
    (OptimizerKind.NESTEROV, UpdateType.LAZY_GLOBAL),
    (OptimizerKind.ADAM, UpdateType.GLOBAL),
    (OptimizerKind.MOMENTUM_SGD, UpdateType.GLOBAL),
    (OptimizerKind.NESTEROV, UpdateType.GLOBAL),
    (OptimizerKind.ADAGRAD, UpdateType.GLOBAL),
    (OptimizerKind.SGD, UpdateType.LOCAL),
]


@pytest.mark.parametrize(("kind", "update"), RULES)
def test_training_is_that_of_tables_with_room(kind: OptimizerKind, update: UpdateType, tmp_path: Path) -> None:
    with single_rank():
        roomy, small = (_case(kind, update, rows).embeddings(1) for rows in (10 * ROOM, ROOM))
        assert _train(small, tmp_path) == pytest.approx(_train(roomy, None), rel=1e-6)
        _assert_same(_save(small, tmp_path / "small"), _save(roomy, tmp_path / "roomy"))
        for number, step in ((9, 1), (10, 5)):  # after saving, which updates the rows in files
            losses = [train_step(embeddings, step, number=number) for embeddings in (small, roomy)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        with pytest.raises(EmbeddingOverflowError):
            _train(_case(kind, update, ROOM).embeddings(1), None)


ON_RANKS = [
    *((OptimizerKind.ADAM, UpdateType.LAZY_GLOBAL, sharding) for sharding in Sharding),
    *((OptimizerKind.ADAM, UpdateType.GLOBAL, sharding) for sharding in Sharding),
    (OptimizerKind.MOMENTUM_SGD, UpdateType.GLOBAL, None),  # another sharding for each table
    (OptimizerKind.NESTEROV, UpdateType.GLOBAL, None),
]


def _train_on_ranks(rank: int, ranks: int, folder: Path) -> None:
    losses = []
    for number, (kind, update, sharding) in enumerate(ON_RANKS):
        own = folder / f"{number}.{rank}"
        own.mkdir()
        embeddings = _case(kind, update, ROOM, sharding).embeddings(ranks)
        losses.append(_train(embeddings, own, rank, ranks))
        _save(embeddings, folder / f"files.{number}")
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


def test_two_ranks_load_their_own_rows(tmp_path: Path) -> None:
    on_ranks(_train_on_ranks, tmp_path)
    with single_rank():
        for kind, update in sorted({(kind, update) for kind, update, _ in ON_RANKS}):
            embeddings = _case(kind, update, 10 * ROOM).embeddings(1)
            alone = _train(embeddings, None)
            saved = _save(embeddings, tmp_path / "alone")
            for number, losses in enumerate(json.loads((tmp_path / "losses.json").read_text())):
                if ON_RANKS[number][:2] == (kind, update):
                    assert losses == pytest.approx(alone, rel=2e-6), ON_RANKS[number]
                    _assert_same(_read(embeddings, tmp_path / f"files.{number}"), saved)


def _files(embeddings: ShardedEmbeddings, folder: Path) -> tuple[EmbeddingFiles, list[Path], list[Path]]:
    layers = [layer.name for layer in embeddings.model.embeddings]
    files = EmbeddingFiles(embeddings, is_64_bit=True)
    return files, [folder / f"{name}.model" for name in layers], [folder / f"{name}.states" for name in layers]


def _read(embeddings: ShardedEmbeddings, folder: Path) -> list[Records]:
    """Return the records of all files, by key."""
    contents = []
    for layer in embeddings.model.embeddings:
        head = [("key", "<i8")] + [("slot", "<u8")] * (layer.kind is EmbeddingKind.LOCALIZED)
        vector, *states = record_type(embeddings.model.optimizer, layer.width).descr[2:]
        for name, body in (("model", [vector]), ("states", states)):
            content = np.fromfile(folder / f"{layer.name}.{name}", np.dtype([*head, *body]))
            contents.append(content[content["key"].argsort()])
    return contents


def _save(embeddings: ShardedEmbeddings, folder: Path) -> list[Records]:
    files, models, states = _files(embeddings, folder)
    files.save_models(models)
    files.save_states(states)
    return _read(embeddings, folder)


def _assert_same(few: list[Records], all_rows: list[Records]) -> None:
    for content, expected in zip(few, all_rows, strict=True):
        assert content.dtype.names is not None
        for name in content.dtype.names:
            np.testing.assert_allclose(content[name], expected[name], rtol=1e-5, atol=1e-7)


def test_files_hold_rows_that_are_not_loaded_and_load_them(tmp_path: Path) -> None:
    rule = (OptimizerKind.ADAM, UpdateType.LAZY_GLOBAL)
    with single_rank():
        small, roomy = _case(*rule, ROOM).embeddings(1), _case(*rule, 10 * ROOM).embeddings(1)
        _train(small, tmp_path)
        _train(roomy, None)
        saved = []
        for embeddings, name in ((small, "small"), (roomy, "roomy")):
            files, models, states = _files(embeddings, tmp_path / name)
            files.save_models(models)
            files.save_states(states)
            content = np.fromfile(models[0], [("key", "<i8"), ("vector", "<f4", (8,))])
            saved.append(content[content["key"].argsort()])
        np.testing.assert_array_equal(saved[0]["key"], saved[1]["key"])
        np.testing.assert_allclose(saved[0]["vector"], saved[1]["vector"], rtol=1e-5, atol=1e-7)
        again = _case(*rule, ROOM).embeddings(1)
        ModelOversubscriber(again, str(tmp_path / "again"), is_64_bit=True)
        files, models, states = _files(again, tmp_path / "roomy")
        files.load_models(models)
        files.load_states(states)
        rows = again.stores[0].tables[0]
        assert isinstance(rows, HashedRows)
        rows.unload()
        assert train_step(again, 1, number=9) == pytest.approx(train_step(roomy, 1, number=9), rel=1e-6)


def test_evaluation_looks_up_rows_that_are_not_loaded(tmp_path: Path) -> None:
    with single_rank():
        pooled = []
        for rows, folder in ((ROOM, tmp_path), (10 * ROOM, None)):
            embeddings = _case(OptimizerKind.SGD, UpdateType.LOCAL, rows).embeddings(1)
            _train(embeddings, folder)
            embeddings.eval()
            with torch.no_grad():
                layers = embeddings.model.embeddings
                pooled.append([embeddings({x.input: batch(x, step) for x in layers}).wait() for step in (1, 3, 5)])
    for small, roomy in zip(*pooled, strict=True):
        for name in roomy:
            torch.testing.assert_close(small[name], roomy[name])


def test_a_keyset_that_outgrows_the_room_is_named(tmp_path: Path) -> None:
    with single_rank():
        embeddings = _case(OptimizerKind.SGD, UpdateType.LOCAL, ROOM).embeddings(1)
        _train(embeddings, tmp_path)
        everything = tmp_path / "everything.keyset"
        keys = [batch(layer, step).keys for layer in _layers(ROOM) for step in range(1, STEPS + 1)]
        write_keyset(everything, torch.cat(keys).numpy(), is_64_bit=True)
        oversubscriber = ModelOversubscriber(embeddings, str(tmp_path / "other"), is_64_bit=True)
        oversubscriber.update(str(everything))  # nothing is stored there yet
        for part in PARTS:
            for step in part:
                with torch.no_grad():
                    embeddings({layer.input: batch(layer, step) for layer in _layers(ROOM)}).wait()
            oversubscriber.update(str(tmp_path / "hashed.0.keyset"))
        with pytest.raises(EmbeddingOverflowError, match=r"everything\.keyset: a table has \d+ keys more than room"):
            oversubscriber.update(str(everything))


@pytest.mark.parametrize(
    ("layer", "update", "folder", "message"),
    [
        (localized((40, 41, 45)), UpdateType.GLOBAL, "rows", "layer local has slot_size_array"),
        (hashed(), UpdateType.GLOBAL, "", "temp_embedding_dir is empty"),
    ],
)
def test_what_cannot_be_loaded_in_part_is_refused(
    layer: EmbeddingLayer, update: UpdateType, folder: str, message: str, tmp_path: Path
) -> None:
    with single_rank():
        embeddings = Case(recommender(optimizer(OptimizerKind.ADAM, update), layer), None).embeddings(1)
        with pytest.raises(HugeCtrError, match=message):
            ModelOversubscriber(embeddings, str(tmp_path / folder) if folder else "", is_64_bit=True)


def test_keysets_are_one_for_all_layers_or_one_each(tmp_path: Path) -> None:
    with single_rank():
        embeddings = _case(OptimizerKind.SGD, UpdateType.LOCAL, ROOM).embeddings(1)
        oversubscriber = ModelOversubscriber(embeddings, str(tmp_path), is_64_bit=True)
        with pytest.raises(HugeCtrError, match="3 keysets for 2 embedding layers"):
            oversubscriber.update(["a", "b", "c"])
        with pytest.raises(DataError, match="does not exist; expected a keyset"):
            oversubscriber.update(str(tmp_path / "none.keyset"))
