"""Inference with what training saved gives the predictions of training's own evaluation."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hugectr import Session, solver_parser_helper
from hugectr.data.readers import make_reader
from hugectr.inference import CreateEmbeddingCache, CreateParameterServer, InferenceSession
from predictor.recommender.hugectr.reading import read_hugectr
from tests.hugectr.model_made import DISTRIBUTED, LOCALIZED, ROWS, SLOTS, dcn_layers, dlrm_layers, make

SAMPLES = 48


def evaluation(config: Path, folder: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """Train, save and return the predictions of the evaluation data, which has keys that training never saw."""
    solver = solver_parser_helper(batchsize=16, batchsize_eval=SAMPLES, max_eval_batches=1)
    with Session(solver, str(config)) as session:
        session.start_data_reading()
        for _ in range(9):
            session.train()
        session.copy_weights_for_evaluation()
        session.evaluation(str(folder / "predictions.txt"), str(folder / "labels.txt"))
        session.download_params_to_files(f"{folder}/", 9)
    return np.loadtxt(folder / "predictions.txt")


def for_inference(config: Path, folder: Path) -> str:
    """Write the configuration for inference with what training saved."""
    content = json.loads(config.read_text())
    *layers, loss = content["layers"]
    sigmoid = {"name": "sigmoid", "type": "Sigmoid", "bottom": loss["bottom"][0], "top": "sigmoid"}
    files = {"dense_model_file": f"{folder}/_dense_9.model", "sparse_model_file": f"{folder}/0_sparse_9.model"}
    path = folder / "inference.json"
    path.write_text(json.dumps({"inference": files, "layers": [*layers, sigmoid]}))
    return str(path)


def request(config: Path) -> tuple[list[float], list[int], list[int]]:
    """Return the evaluation data as a request, sample by sample."""
    data = read_hugectr(config).data
    reader = make_reader(
        data, source=data.eval_source, batch_size=SAMPLES, rank=0, num_ranks=1, i64_input_key=False, repeat=False,
        num_samples=None,
    )  # fmt: skip
    with closing(reader):
        batch = reader.next()
    assert batch is not None
    keys, lengths = batch.sparse["data1"]
    by_slot = keys.split(lengths.tolist())  # slot by slot, sample by sample
    order = [slot * SAMPLES + sample for sample in range(SAMPLES) for slot in range(SLOTS)]
    columns = [int(key) for number in order for key in by_slot[number]]
    row_ptrs = [0, *np.cumsum([len(by_slot[number]) for number in order]).tolist()]
    return batch.dense.flatten().tolist(), columns, row_ptrs


@pytest.mark.parametrize("kind", [DISTRIBUTED, LOCALIZED])
@pytest.mark.parametrize("layers", [dcn_layers, dlrm_layers])
def test_predictions_are_those_of_the_evaluation(tmp_path: Path, kind: str, layers: Any) -> None:
    made = make(tmp_path, layers(), kind=kind)
    expected = evaluation(made.config, tmp_path)
    config = for_inference(made.config, tmp_path)
    server = CreateParameterServer([config], ["small"], False)
    asked = request(made.config)
    for share in (0.0, 0.3, 1.0):
        cache = CreateEmbeddingCache(server, 0, share > 0.0, share, config, "small", False)
        session = InferenceSession(config, 0, cache)
        for _ in range(2):
            np.testing.assert_allclose(session.predict(*asked), expected, rtol=1e-5)
    assert cache.statistics.unknown > 0


@pytest.mark.parametrize("data_format", ["Norm", "Raw"])
def test_keys_of_slots_with_known_sizes_are_those_of_the_format(tmp_path: Path, data_format: str) -> None:
    """Norm data count keys over all slots, Raw data from 0 in every slot."""
    made = make(tmp_path, kind=LOCALIZED)
    content = json.loads(made.config.read_text())
    content["layers"][0]["slot_size_array"] = [ROWS] * SLOTS
    made.config.write_text(json.dumps(content))
    expected = evaluation(made.config, tmp_path)
    content["layers"][0]["format"] = data_format
    dense, columns, row_ptrs = request(made.config)
    made.config.write_text(json.dumps(content))
    config = for_inference(made.config, tmp_path)
    slots = np.repeat(np.tile(np.arange(SLOTS), SAMPLES), np.diff(row_ptrs))
    if data_format == "Norm":
        columns = (np.array(columns) + slots * ROWS).tolist()
    server = CreateParameterServer([config], ["small"], False)
    cache = CreateEmbeddingCache(server, 0, True, 0.5, config, "small", False)
    session = InferenceSession(config, 0, cache)
    np.testing.assert_allclose(session.predict(dense, columns, row_ptrs), expected, rtol=1e-5)
    assert cache.statistics.unknown == 0
    outside = [key + SLOTS * ROWS if number == 0 else key for number, key in enumerate(columns)]
    predictions = session.predict(dense, outside, row_ptrs)
    assert cache.statistics.unknown == 1, "a key beyond its slot is no key of another"
    assert predictions[1:] == pytest.approx(list(expected[1:]), rel=1e-5)
