"""The expected step is that of the prediction: time, parts, batch, FLOPs and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor import predict
from predictor.watch.expectation import expected

CONFIG = Path(__file__).resolve().parents[3] / "docs" / "gallery" / "llama-8b.yml"


def test_it_is_the_prediction_in_seconds() -> None:
    step = predict(CONFIG)
    found = expected(step)
    assert (found.seconds, found.low_s, found.high_s) == pytest.approx(
        (step.step.us / 1e6, step.step.low_us / 1e6, step.step.high_us / 1e6)
    )
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert {"forward", "recompute", "backward", "optimizer"} <= found.parts.keys()
    assert min(found.parts.values()) > 0.0
    assert (found.tokens, found.samples, found.sequence_length, found.num_gpus) == (524_288, 64, 8192, 64)


def test_rates_that_follow_are_those_of_the_prediction() -> None:
    step = predict(CONFIG)
    found = expected(step)
    assert found.tokens is not None
    assert found.flops is not None
    assert found.peak_flops_per_second is not None
    assert found.memory_bytes is not None
    assert found.tokens / found.seconds == pytest.approx(step.tokens_per_second)
    assert found.flops / found.seconds / found.peak_flops_per_second == pytest.approx(step.mfu)
    assert found.memory_bytes / 2**30 == pytest.approx(step.memory_gib)
