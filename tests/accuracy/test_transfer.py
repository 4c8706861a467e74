"""Error of a transfer, and of fits to a few rows: GH200 from A100 and the reverse."""

from __future__ import annotations

import json
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import pytest

from fitting import few_rows
from fitting.transfer_error import PRECISION, constants, distances, transfer_error
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.transfer_errors import TRANSFER_ERRORS, transfer_errors

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "regressors" / name for name in ("Perlmutter", "Vista")]
# Percent of the measured time, mean over columns. GEMMs carry over between the two generations, attention kernels do
# not: another flash-attention and other batched products ran there. Streams are near, but for the backward passes
# of the embedding and the layer norm, which are several times off.
MOST_LINEAR_MAPE, MOST_COMPUTE_MAPE, MOST_STREAM_MAPE = 7.0, 26.0, 28.0
MOST_STREAM_MEDIAN_COLUMN = 15.0
MOST_OWN_MAPE = {25: 6.5, 50: 5.0}


@cache
def errors(measurements: Path) -> dict[str, Any]:
    return transfer_error(FOLDERS, measurements)


def test_stored_constants_are_those_of_the_stored_columns() -> None:
    stored = json.loads(TRANSFER_ERRORS.read_text(encoding="utf-8"))
    assert stored["constants"] == constants(stored["operator_columns"], stored["collective_columns"])
    assert stored["distance"] == distances([PublishedSystem(folder, PRECISION) for folder in FOLDERS])


def test_what_is_stored_is_what_is_measured(measurements: Path) -> None:
    stored, found = json.loads(TRANSFER_ERRORS.read_text(encoding="utf-8")), errors(measurements)
    for kind in ("operator_columns", "collective_columns"):
        assert len(found[kind]) == len(stored[kind])
        for now, before in zip(found[kind], stored[kind], strict=True):
            assert now["shapes"] == before["shapes"]
            assert now["mape"] == pytest.approx(before["mape"], rel=0.05, abs=0.3), now
            assert now["log_error"] == pytest.approx(before["log_error"], rel=0.05, abs=0.02), now


def test_transferred_operators_are_as_near_as_the_cards_say(measurements: Path) -> None:
    found = errors(measurements)
    for entry in found["operator_columns"]:
        if entry["regressor"] == "linear":
            assert entry["mape"] <= MOST_LINEAR_MAPE, entry
    assert found["mean"]["compute"]["mape"] <= MOST_COMPUTE_MAPE
    assert found["mean"]["stream"]["mape"] <= MOST_STREAM_MAPE
    streams = sorted(entry["mape"] for entry in found["operator_columns"] if entry["kind"] == "stream")
    assert streams[len(streams) // 2] <= MOST_STREAM_MEDIAN_COLUMN


def test_the_interval_of_a_transferred_answer_covers_nine_of_ten_shapes(measurements: Path) -> None:
    for entry in errors(measurements)["operator_columns"]:
        most = max(transfer_errors().kinds[entry["kind"]], transfer_errors().regressors[entry["regressor"]])
        assert entry["log_error"] <= most + 0.02, entry


def test_reported_bandwidths_lie_in_the_interval_of_a_collective_by_its_links() -> None:
    # Largest message, bus bandwidth in GB/s: predicted on H100 in a node, and what NCCL's maintainers state for a ring
    # and for reductions in the switch (nccl-tests issue 212).
    for reported in (370.0, 480.0):
        assert abs(log(reported / 322.0)) <= transfer_errors().collectives["alike"]


@pytest.mark.parametrize("draws", [1, pytest.param(few_rows.SEEDS, marks=pytest.mark.thorough)])
def test_a_fit_to_a_few_rows_beats_a_transfer(measurements: Path, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "SEEDS", draws)
    entries = few_rows.few_rows(FOLDERS, measurements)["entries"]
    mape = {(e["to"], e["rows"], e["way"]): e["mape"] for e in entries}
    for target in ("Perlmutter", "Vista"):
        for count, most in MOST_OWN_MAPE.items():
            own = mape[target, count, "own fit"]
            assert own <= most
            others = [
                mape[target, count, way] for way in ("own physics alone", "transfer, scaled to the rows", "transfer")
            ]
            assert own < others[0] < others[1] < others[2]
