"""Nearer to the limit than peaks are known, a run may not fit: it is said, and nothing refuses it."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.predict.prediction import predict
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import (
    MEMORY_ERROR,
    MOST_RETRIES,
    MemoryVerdict,
    fits_in_memory,
    memory_verdict,
    retries_log_error,
    retries_on,
)
from tests.unit.commands.test_require_fit import write


@pytest.mark.parametrize(
    ("share", "expected", "fits"),
    [
        (0.5, MemoryVerdict.FITS, True),
        (1.0 - MEMORY_ERROR, MemoryVerdict.FITS, True),
        (0.93, MemoryVerdict.MAY_NOT_FIT, None),
        (1.0, MemoryVerdict.MAY_NOT_FIT, None),
        (1.07, MemoryVerdict.MAY_NOT_FIT, None),
        (1.0 + 1.01 * MEMORY_ERROR, MemoryVerdict.DOES_NOT_FIT, False),
    ],
)
def test_the_limit_is_as_wide_as_the_error_of_peaks(share: float, expected: MemoryVerdict, fits: bool | None) -> None:
    verdict = memory_verdict(share * 80.0 * GIB, 80.0)
    assert verdict is expected
    assert fits_in_memory(verdict) is fits


def test_unknown_memory_says_nothing() -> None:
    assert memory_verdict(1e15, None) is None
    assert fits_in_memory(None) is None


@pytest.mark.parametrize("of_limit", [0.95, 1.05])
def test_near_the_limit_is_said_first_and_required_fit_lets_it_run(
    of_limit: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = predict(write(tmp_path / "run.yaml", 80.0)).memory_gib
    path = write(tmp_path / "near.yaml", needed / of_limit)
    assert main([path, "--require-fit"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Memory")
    assert "MAY NOT FIT" in text.partition("Step time")[0]
    assert "measured peaks are met within 8%. A full GPU is slower, by up to 48%" in " ".join(text.split())
    assert main([path, "--require-fit", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["fits"], memory["fit"]) == (None, "may not fit")
    assert (predict(path).fits, predict(path).fit) == (None, MemoryVerdict.MAY_NOT_FIT)
    near = predict(path)
    assert 0.0 < retries_on(near.prediction.tasks, near.loaded.system) <= log(1.0 + MOST_RETRIES)


def test_allocations_are_retried_only_where_the_peak_may_reach_the_limit() -> None:
    assert retries_log_error(1e15, None) == 0.0
    assert retries_log_error(80.0 * GIB * (0.99 - MEMORY_ERROR), 80.0) == 0.0
    assert retries_log_error(79.0 * GIB, 80.0) < retries_log_error(80.5 * GIB, 80.0) == log(1.0 + MOST_RETRIES)
