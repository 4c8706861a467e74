"""Predictions of ``hugectr.inference`` equal plain numpy's, with any cache; wrong calls are named."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hugectr.exceptions import DataError, HugeCtrError
from hugectr.inference import CreateEmbeddingCache, CreateParameterServer, InferenceSession
from tests.hugectr.small_inference import DENSE, Model, request, write_model


def session(
    model: Model, share: float = 0.2, *, use_cache: bool = True, i64: bool = False, eviction: str = "lru"
) -> InferenceSession:
    config = str(model.config)
    server = CreateParameterServer([config], ["small"], i64)
    cache = CreateEmbeddingCache(server, 0, use_cache, share, config, "small", i64, eviction)
    return InferenceSession(config, 0, cache)


@pytest.mark.parametrize("localized", [False, True])
@pytest.mark.parametrize("combiner", [0, 1])
@pytest.mark.parametrize("i64", [False, True])
def test_predictions_are_numpys(tmp_path: Path, localized: bool, combiner: int, i64: bool) -> None:
    model = write_model(tmp_path, localized=localized, combiner=combiner, i64=i64)
    with_cache, without = session(model, i64=i64), session(model, use_cache=False, i64=i64)
    for number in range(20):
        asked = request(samples=1 + number * 3, keys=120, seed=number)  # keys 100 to 119 are in no row
        expected = model.predictions(*asked)
        np.testing.assert_allclose(with_cache.predict(*asked, i64), expected, rtol=1e-5)
        assert without.predict(*asked, i64) == with_cache.predict(*asked, i64)
    used, unused = with_cache.embedding_cache.statistics, without.embedding_cache.statistics
    assert 0.2 < used.hit_rate < 1.0
    assert used.evictions > 0
    assert used.unknown == 2 * unused.unknown > 0
    assert used.rows <= used.capacity <= 0.2 * len(model.rows)
    assert (unused.hits, unused.capacity, unused.hit_rate) == (0, 0, 0.0)


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_a_cache_of_all_rows_hits_from_the_second_request_on(tmp_path: Path, eviction: str) -> None:
    model = write_model(tmp_path, keys=30)
    caching = session(model, 1.0, eviction=eviction)
    asked = request(samples=40, keys=30)
    first = caching.predict(*asked)
    missed = caching.embedding_cache.statistics
    assert caching.predict(*asked) == first
    statistics = caching.embedding_cache.statistics
    assert statistics.hits - missed.hits == len(asked[1])
    assert (statistics.requests, statistics.evictions) == (2, 0)


def test_hit_rate_threshold_keeps_rows_as_they_are(tmp_path: Path) -> None:
    model = write_model(tmp_path, keys=30, hit_rate_threshold=0.5)
    caching = session(model, 1.0)
    hot = ([0.0] * DENSE, [1, 2, 3], [0, 1, 2, 3])
    caching.predict(*hot)
    caching.predict([0.0] * DENSE, [1, 2, 9], [0, 1, 2, 3])
    assert caching.embedding_cache.statistics.rows == 3, "two of three hit, so the third is not inserted"
    caching.predict([0.0] * DENSE, [1, 8, 9], [0, 1, 2, 3])
    assert caching.embedding_cache.statistics.rows == 5


def test_one_server_holds_several_models(tmp_path: Path) -> None:
    models = [write_model(tmp_path, name=name, seed=seed) for seed, name in enumerate(("first", "second"))]
    configs = [str(model.config) for model in models]
    server = CreateParameterServer(configs, ["first", "second"], False)
    assert server.model_names == ("first", "second")
    asked = request(samples=8, keys=100)
    for name, model, config in zip(server.model_names, models, configs, strict=True):
        cache = CreateEmbeddingCache(server, 0, True, 0.5, config, name, False)
        np.testing.assert_allclose(
            InferenceSession(config, 0, cache).predict(*asked), model.predictions(*asked), rtol=1e-5
        )


def test_threads_share_a_cache(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    shared = session(model, 0.1)
    asked = [request(samples=16, keys=100, seed=seed) for seed in range(30)]
    answers: dict[int, list[float]] = {}

    def serve(first: int) -> None:
        for number in range(first, len(asked), 3):
            answers[number] = shared.predict(*asked[number])

    threads = [threading.Thread(target=serve, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, given in enumerate(asked):
        np.testing.assert_allclose(answers[number], model.predictions(*given), rtol=1e-5)
    assert shared.embedding_cache.statistics.lookups == sum(len(keys) for _, keys, _ in asked)


def test_mixed_precision_is_close(tmp_path: Path) -> None:
    model = write_model(tmp_path, mixed_precision=True)
    asked = request(samples=8, keys=100)
    answers, expected = session(model).predict(*asked), model.predictions(*asked)
    np.testing.assert_allclose(answers, expected, atol=5e-3)
    assert answers != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_feature": [0.0]}, "dense_feature has 1 values; expected 2 for each of 1 samples"),
        ({"row_ptrs": [0, 1, 2]}, "row_ptrs has 3 entries; expected 3 for each sample"),
        ({"row_ptrs": [0]}, "row_ptrs has 1 entries"),
        ({"row_ptrs": [0, 2, 1, 3]}, "without a step back"),
        ({"row_ptrs": [0, 1, 2, 4]}, "goes from 0 to 4; expected from 0 to 3"),
        ({"embeddingcolumns": [1, 2, 2**32]}, "32-bit keys go from 0 to 4294967295"),
        ({"embeddingcolumns": [1, 2, -1]}, "32-bit keys go from 0"),
        ({"embeddingcolumns": [1, 2, 0.5]}, "embeddingcolumns is no list of numbers"),
        ({"embeddingcolumns": [[1, 2, 3]]}, "embeddingcolumns has 2 dimensions"),
        ({"dense_feature": "ab"}, "dense_feature is no list of numbers"),
        ({"i64_input_key": True}, "i64_input_key is True; the embedding cache's is False"),
    ],
)
def test_wrong_requests_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"dense_feature": [0.0] * DENSE, "embeddingcolumns": [1, 2, 3], "row_ptrs": [0, 1, 2, 3]}
    with pytest.raises(HugeCtrError, match=message) as error:
        session(write_model(tmp_path)).predict(**{**asked, **change})
    assert "\n" not in str(error.value)


def test_a_request_of_more_than_max_batchsize_is_refused(tmp_path: Path) -> None:
    small = session(write_model(tmp_path, max_batchsize=4))
    assert len(small.predict(*request(samples=4, keys=100))) == 4
    with pytest.raises(HugeCtrError, match="the request has 5 samples; max_batchsize is 4"):
        small.predict(*request(samples=5, keys=100))


def test_arguments_that_disagree_are_named(tmp_path: Path) -> None:
    model, other = write_model(tmp_path), write_model(tmp_path, name="other")
    config = str(model.config)
    with pytest.raises(HugeCtrError, match="model_config_path has 1 entries and model_name 2"):
        CreateParameterServer([config], ["a", "b"], False)
    with pytest.raises(HugeCtrError, match="names a model twice"):
        CreateParameterServer([config, config], ["a", "a"], False)
    with pytest.raises(HugeCtrError, match="are lists"):
        CreateParameterServer(config, "a", False)
    wide = write_model(tmp_path, name="wide", input_key_type="I64")
    with pytest.raises(HugeCtrError, match="i64_input_key is False; input_key_type of model a is I64"):
        CreateParameterServer([str(wide.config)], ["a"], False)
    server = CreateParameterServer([config, str(other.config)], ["a", "b"], False)
    good: dict[str, Any] = {
        "parameter_server": server, "cuda_dev_id": 0, "use_gpu_embedding_cache": True, "cache_size_percentage": 0.2,
        "model_config_path": config, "model_name": "a", "i64_input_key": False,
    }  # fmt: skip
    for change, message in (
        ({"model_name": "c"}, "model_name is 'c'; the parameter server has a, b"),
        ({"model_name": "b"}, "the parameter server read .*other.json for model b"),
        ({"i64_input_key": True}, "i64_input_key is True; the parameter server's is False"),
        ({"cache_size_percentage": 20}, "cache_size_percentage is 20; expected a share of the rows from 0 to 1"),
        ({"eviction": "fifo"}, "eviction is 'fifo'; expected lru or lfu"),
        ({"cuda_dev_id": -1}, "cuda_dev_id is -1"),
    ):
        with pytest.raises(HugeCtrError, match=message):
            CreateEmbeddingCache(**{**good, **change})
    cache = CreateEmbeddingCache(**good)
    with pytest.raises(HugeCtrError, match="device_id is 1; the embedding cache is on 0"):
        InferenceSession(config, 1, cache)
    with pytest.raises(HugeCtrError, match=r"config_file is .*other.json; the embedding cache is of"):
        InferenceSession(str(other.config), 0, cache)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    config = str(model.config)
    content = json.loads(model.config.read_text())
    (tmp_path / "model0_sparse.model").write_bytes(b"\0" * 20)
    with pytest.raises(HugeCtrError, match="bytes; expected a multiple of 24, a row of 64-bit key and 4 values"):
        CreateParameterServer([config], ["small"], True)
    (tmp_path / "model0_sparse.model").unlink()
    with pytest.raises(DataError, match=r"model0_sparse.model: No such file"):
        CreateParameterServer([config], ["small"], False)
    without_clause = {"layers": content["layers"], "optimizer": {"type": "SGD"}}
    with_loss = {**content, "layers": [*content["layers"][:-1], {
        "name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc2", "label"], "top": "loss"}]}  # fmt: skip
    two_files = {**content, "inference": {**content["inference"], "sparse_model_file": ["a", "b"]}}
    for wrong, message in (
        (with_loss, "the last layer is BinaryCrossEntropyLoss; expected a Sigmoid in place of the loss"),
        (two_files, "predict takes the keys of one embedding table"),
        ({**content, "layers": content["layers"][:-1]}, "the last layer is InnerProduct; expected a Sigmoid"),
        ({**content, "inference": {"dense_model_file": "a"}}, "inference: sparse_model_file"),
        (without_clause, "no layer is a loss|inference is missing"),
    ):
        model.config.write_text(json.dumps(wrong))
        with pytest.raises(HugeCtrError, match=message):
            CreateParameterServer([config], ["small"], False)
    with pytest.raises(HugeCtrError, match=r"nowhere.json does not exist"):
        CreateParameterServer([str(tmp_path / "nowhere.json")], ["small"], False)


def test_a_torn_dense_file_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    dense = tmp_path / "model_dense.model"
    dense.write_bytes(dense.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"model_dense.model has .* bytes"):
        session(model)
