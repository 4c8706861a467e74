"""On a GPU: every kernel of the catalogue runs, launch gaps are told apart, and what ran is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from microbench import cli
from microbench.call import Maker
from microbench.kernels import grouped_query_attention
from microbench.sweep import SWEEPS
from microbench.table import Status, read_tables
from predictor.core.costs.catalogue import catalogue
from tests.unit.microbench.test_attention import BATCH, LENGTH, WIDTH, plain_attention

TIMING = {"precision": 0.5, "fewest_samples": 3, "most_samples": 3, "budget_ms": 20, "warmup_ms": 1, "batch": 1}


@pytest.mark.gpu
def test_every_kernel_runs_with_and_without_gaps(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    content = yaml.safe_load((SWEEPS / "smoke.yaml").read_text())
    changes = {"shapes_per_operator": 3, "shapes_per_linear": 3, "timing": TIMING}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content | changes))
    words = ("--device", "cuda", "--sweep", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "r"))
    assert cli.main(["operator", "all", *words]) == 0
    tables = read_tables(tmp_path / "r", "operator")
    assert {table.provenance.identity.name for table in tables} == {
        name for name, one in catalogue().items() if "bf16" in one.precisions
    }
    for table in tables:
        assert table.provenance.identity.driver
        for row in table.rows:
            assert row.status is Status.OK, f"{table.path.name} {row.shape}: {row.kernel}"
            assert row.kernel_samples_us, f"{table.path.name} {row.shape}: the host was never ahead of the device"
    flash = next(table for table in tables if table.provenance.identity.name == "flash_attention")
    assert all("flash" in row.kernel for row in flash.rows)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kv_heads", "window", "kernel"),
    [(4, 0, ""), (2, 0, ""), (1, 0, ""), (2, 32, ""), (4, 32, ""), (4, 0, "cudnn"), (2, 0, "cudnn")],
)
def test_shared_heads_and_windows_compute_what_plain_attention_does(kv_heads: int, window: int, kernel: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    torch.manual_seed(0)
    shape = (BATCH, LENGTH, 4, kv_heads, WIDTH, 1, window)
    call = grouped_query_attention.build(shape, Maker("cuda", "bf16", kernel))
    plain = plain_attention(torch, tuple(x.float() for x in call.inputs), True, window)
    ours = call.forward().float()
    torch.testing.assert_close(ours if ours.shape == plain.shape else ours.transpose(1, 2), plain, rtol=2e-2, atol=2e-2)
