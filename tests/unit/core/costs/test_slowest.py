"""Every step waits for the slowest of its GPUs: expected maxima, what slows down, and what a report says."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from predictor.core.costs.calibration import NOTHING_KNOWN
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.operator import Direction
from predictor.core.costs.slowest import RANK_SPREAD, expected_maximum, slowdown, slowest_of
from predictor.core.costs.variants import with_calibration
from predictor.core.hardware.hardware import Factor
from predictor.core.plan.loading import prepare
from predictor.core.predict.prediction import predict

FORWARD = Direction.FORWARD
PRODUCT, NORM = catalogue()["ffn_up"], catalogue()["layer_norm"]
SHAPES = {PRODUCT: (4096, 4096, 16384), NORM: (4096, 4096)}


def content(data_parallel_size: int, **cluster: float) -> dict[str, Any]:
    return {
        "system": "Perlmutter",
        "model": {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048},
        "parallelism": {"data_parallel_size": data_parallel_size},
        "training": {"framework": "pytorch", "precision": "fp16", "micro_batch_size": 1, "num_micro_batches": 4},
        "cluster": cluster,
    }


@pytest.mark.parametrize("count", [2, 8, 128, 1024])
def test_expected_maximum_is_that_of_drawn_numbers(count: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((4000, count)).max(axis=1)
    assert expected_maximum(count) == pytest.approx(fmean(drawn), abs=0.03)


def test_computing_waits_for_the_slowest_and_nothing_else_does() -> None:
    alone, many = (prepare(content(ranks), Path.cwd()).system for ranks in (1, 64))
    factor = 1.0 + RANK_SPREAD * expected_maximum(64)
    assert slowdown(alone) == 1.0
    assert slowdown(many) == factor
    shape = SHAPES[PRODUCT]
    assert many.cost(PRODUCT, FORWARD, shape).us == pytest.approx(factor * alone.cost(PRODUCT, FORWARD, shape).us)
    assert many.cost(NORM, FORWARD, SHAPES[NORM]) == alone.cost(NORM, FORWARD, SHAPES[NORM])
    assert many.collective("all_reduce", 1e8, Topology(2, 4)) == alone.collective("all_reduce", 1e8, Topology(2, 4))


def test_a_cluster_has_a_spread_of_its_own() -> None:
    system = prepare(content(64, rank_spread=0.05), Path.cwd()).system
    assert slowdown(system) == 1.0 + 0.05 * expected_maximum(64)
    assert slowest_of(system, 64) is slowest_of(system, 64)


def test_a_calibrated_system_waits_too() -> None:
    system = prepare(content(64), Path.cwd()).system
    before = system.cost(PRODUCT, FORWARD, SHAPES[PRODUCT]).us
    factors = {"compute": Factor(factor=1.2, log_error=0.01)}
    after = with_calibration(system, NOTHING_KNOWN.model_copy(update={"factors": factors}))
    assert after.cost(PRODUCT, FORWARD, SHAPES[PRODUCT]).us == pytest.approx(1.2 * before)


def test_the_report_says_what_waiting_takes() -> None:
    alone, many = predict(content(1)).to_dict()["slowest_rank"], predict(content(64)).to_dict()["slowest_rank"]
    assert alone == {"ranks": 1, "slowdown": 1.0, "time_us": 0.0}
    none = predict(content(64, rank_spread=1e-6))
    added = predict(content(64)).modelled_us - none.modelled_us
    assert many["time_us"] == pytest.approx(added, rel=0.1)
    assert "Slowest of 64 GPUs" in predict(content(64)).text()
