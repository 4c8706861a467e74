"""Tables in aiconfigurator's layout become calls of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitting.own_tables import find_tables
from fitting.public_tables import header, is_public, read_rows
from microbench.errors import TableError

ORIGIN = "# NVIDIA Example 80GB; github:somebody/tables@0123:a/gemm.parquet (Apache-2.0); forward only\n"
TABLES = {
    "gemm": (
        "kernel_source,gemm_dtype,m,n,k,latency_us\n"
        "torch.nn.functional.linear,bfloat16,4096,1024,512,20.5\n"
        "Cutlass,fp8,4096,1024,512,11.5\n"
        "Cutlass,int8_wo,4096,1024,512,12.5\n"
    ),
    "attention": (
        "kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,window_size,"
        "latency_us\n"
        "fa3,2,1024,16,16,128,bfloat16,bfloat16,0,100.0\n"
        "fa3,2,1024,16,4,128,bfloat16,bfloat16,0,90.0\n"
        "fa3,2,1024,16,16,128,bfloat16,bfloat16,128,30.0\n"
    ),
    "nccl": (
        "op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency_us\n"
        "all_gather,NCCL,half,8,1024,10.0\n"
        "all_reduce,NCCL,half,4,1024,11.0\n"
        "alltoall,NCCL,half,2,1024,12.0\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the parent of one GPU's folder of tables."""
    gpu = tmp_path / "Example"
    gpu.mkdir()
    for name, text in TABLES.items():
        (gpu / f"{name}.csv").write_text(ORIGIN + text, encoding="utf-8")
    return tmp_path


def test_rows_are_calls_of_the_catalogue(folder: Path) -> None:
    calls = {
        name: [(row.operator.name, row.shape, row.us) for row in read_rows(folder / f"Example/{name}.csv", "bf16")]
        for name in TABLES
    }
    assert calls["gemm"] == [("ffn_up", (4096, 512, 1024), 20.5)]  # (m, k, n) of the catalogue
    assert calls["attention"] == [
        ("flash_attention", (2, 1024, 16, 128, 1), 100.0),
        ("grouped_query_attention", (2, 1024, 16, 4, 128, 1, 0), 90.0),
        ("grouped_query_attention", (2, 1024, 16, 16, 128, 1, 128), 30.0),
    ]
    assert calls["nccl"] == [
        ("all_gather", (256, 1, 8), 10.0),  # a rank's shard, in bytes
        ("all_reduce", (2048, 1, 4), 11.0),
        ("all_to_all", (2048, 1, 2), 12.0),
    ]


def test_tables_are_found_per_precision_below_the_parent(folder: Path) -> None:
    lines: list[str] = []
    tables = find_tables(folder, "NVIDIAExample80GB", ["bf16"], lines.append)
    assert [(t.precision, "linear" in t.regressors()) for t in tables] == [("bf16", True)]
    assert len(lines) == 1
    assert "fp8" in lines[0]
    assert [row.kernel for row in tables[0].rows("linear")] == ["torch.nn.functional.linear"]
    assert [row.kernel for row in tables[0].rows("all_reduce")] == [""]


def test_the_first_line_names_the_gpu(folder: Path, tmp_path: Path) -> None:
    gpu, origin = header(folder / "Example/gemm.csv")
    assert gpu == "NVIDIAExample80GB"
    assert origin.startswith("github:")
    path = tmp_path / "gemm.csv"
    path.write_text(TABLES["gemm"], encoding="utf-8")
    assert not is_public(tmp_path / "nowhere")
    with pytest.raises(TableError, match="first line"):
        header(path)


def test_other_gpus_and_other_columns_are_refused(folder: Path) -> None:
    with pytest.raises(TableError, match="there are NVIDIAExample80GB"):
        find_tables(folder, "NVIDIAOther", ["bf16"])
    path = folder / "Example/gemm.csv"
    path.write_text(ORIGIN + "kernel_source,gemm_dtype,m,n,latency_us\ntorch,bfloat16,1,1,1\n", encoding="utf-8")
    with pytest.raises(TableError, match="not a table of gemm"):
        read_rows(path, "bf16")
