"""HugeCTR's sample configurations train, with tables, layers and data made small."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hugectr import Session, get_learning_rate_scheduler, solver_parser_helper
from hugectr.data.generator import Amount, generate
from hugectr.train import solver_of
from predictor.recommender.hugectr.reading import read_hugectr
from tests.conftest import SHARED

SAMPLES = sorted((SHARED / "spec" / "companion" / "hugectr" / "samples").glob("*.json"))
BATCH, ROWS, KEYS = 64, 50, 3000


def small(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with few rows and narrow layers, whose data lie in the working directory."""
    data = content["layers"][0]
    data |= {"source": "data/train.source", "eval_source": "data/eval.source"}
    data |= {name: 4 * BATCH for name in ("num_samples", "eval_num_samples") if name in data}
    for layer in content["layers"]:
        sizes = layer.get("sparse_embedding_hparam", layer)
        if "slot_size_array" in sizes:
            sizes["slot_size_array"] = [min(rows, ROWS) for rows in sizes["slot_size_array"]]
        if "max_vocabulary_size_per_gpu" in sizes:
            sizes["max_vocabulary_size_per_gpu"] = KEYS
        if layer.get("fc_param", {}).get("num_output", 0) >= 400:
            layer["fc_param"]["num_output"] //= 8
    return {name: clause for name, clause in content.items() if name != "solver"}


@pytest.mark.skipif(not SAMPLES, reason="no sample configurations beside the checkout")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_trains(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clause = read_hugectr(path).solver
    assert clause is not None
    of_sample = solver_of(clause)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    read = read_hugectr(config)
    generate(read, Path("data"), None if read.data.slot_size_array else KEYS // 2, amount=Amount(2, 2 * BATCH, 1))
    solver = solver_parser_helper(
        batchsize=BATCH, batchsize_eval=BATCH, max_eval_batches=2, i64_input_key=read.data.format == "Parquet",
        use_mixed_precision=of_sample.use_mixed_precision, scaler=of_sample.scaler, eval_metrics=of_sample.eval_metrics,
    )  # fmt: skip
    scheduler = get_learning_rate_scheduler(str(config))
    with Session(solver, str(config)) as session:
        session.start_data_reading()
        for _ in range(3):
            session.set_learning_rate(scheduler.get_next())
            assert session.train()
        session.check_overflow()
        session.copy_weights_for_evaluation()
        assert math.isfinite(session.get_current_loss())
        assert session.get_skipped_steps() == 0
        assert 0.0 <= dict(session.evaluation())["AUC"] <= 1.0
        session.download_params_to_files("./", 3)
    assert (tmp_path / "_dense_3.model").stat().st_size == 4 * read.model.dense_parameters
