"""On a GPU: a small step of each family agrees with its reference, is timed, and its kernels are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from microbench import cli
from microbench.rows import Status
from microbench.steps.kernels import OTHER
from microbench.steps.record import read_records
from tests.unit.recorded_steps import FAMILIES, NO_TORCH, content, written

# Heads of 64, and enough of everything that kernels are those of larger models.
SIZES = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "ffn_hidden_size": 2048,
    "sequence_length": 512,
    "vocab_size": 32000,
}


@pytest.mark.gpu
def test_steps_are_checked_timed_and_profiled(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    for name, model in FAMILIES.items():
        written(tmp_path / "configs", name, content(model | SIZES))
    folders = ("--configs", str(tmp_path / "configs"), "--out", str(tmp_path / "out"))
    assert cli.main(["steps", "--device", "cuda", *folders]) == 0
    records = read_records(tmp_path / "out")
    assert {record.name for record in records} == set(FAMILIES)
    for record in records:
        assert record.status is Status.OK, record.reason
        assert [one.precision for one in record.check] == ["fp32", "bf16"]
        measured = record.measured
        assert measured is not None
        assert measured.memory is not None
        # Weights, fp32 weights, gradients and two moments: 18 bytes a parameter.
        assert 18 * measured.parameters < measured.memory.allocated <= measured.memory.reserved
        assert measured.kernels is not None
        assert measured.kernels.time_us < 1.5 * measured.median_us("wall_us")
        shares = {one.name: one.time_us / measured.kernels.time_us for one in measured.kernels.by_category}
        assert {"attention", "matrix products", "optimizer"} <= set(shares)
        assert shares.get(OTHER, 0.0) < 0.2
    assert cli.main(["compare-steps", str(tmp_path / "out"), "--regressors", "H200"]) == 0
