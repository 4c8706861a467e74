"""Tables of other kernels: DeepEP's exchange, gated delta rules, Mamba-2's scan, encoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitting.own_tables import find_tables
from fitting.public_tables import read_rows
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.expert_exchange import visited
from tests.unit.fitting.written_tables import written as write_table

ORIGIN = "# NVIDIA H100 80GB HBM3; github:somebody/tables (Apache-2.0); forward only\n"
DEEPEP = (
    "framework_version,node_num,num_tokens,hidden_size,topk,num_experts,dispatch_sms,combine_sms,dispatch_transmit_us,"
    "dispatch_notify_us,combine_transmit_us,combine_notify_us\n"
)


def written(folder: Path, name: str, text: str, origin: str = ORIGIN) -> Path:
    return write_table(folder, name, text, origin)


def test_an_exchange_sends_a_copy_to_each_rank_or_node_with_an_expert_of_the_token(tmp_path: Path) -> None:
    rows = "sglang,1,4096,7168,8,256,20,20,490,2,970,3\nsglang,4,4096,7168,8,256,20,20,1800,60,3500,100\n"
    rows += "sglang,1,4096,7168,8,256,24,24,400,2,900,3\n"  # with more multiprocessors than training gives it
    dispatch, combine, between, _ = read_rows(written(tmp_path, "deepep", DEEPEP + rows), "bf16")
    experts = MixtureOfExperts(256, 8, 2048)
    assert dispatch.shape == (int(4096 * visited(experts, 8) * 7168 * (1 + 4 / 128)), 1, 8)
    assert combine.shape[0] == pytest.approx(dispatch.shape[0] * 2 / (1 + 4 / 128), rel=1e-6)
    assert (dispatch.us, combine.us) == (492.0, 973.0)
    assert between.shape == (int(4096 * visited(experts, 4) * 7168 * (1 + 4 / 128)), 4, 8)
    assert read_rows(tmp_path / "deepep.csv", "fp8") == ()


def test_trays_of_four_and_tables_that_name_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "GB200"
    folder.mkdir()
    origin = "# NVIDIA GB200; github:somebody/tables\n"
    written(folder, "gemm", "kernel_source,gemm_dtype,m,n,k,latency_us\ntorch,bfloat16,512,512,512,1\n", origin)
    rows = "sglang,1,4096,7168,8,256,20,20,490,2,970,3\n"
    written(folder, "deepep", DEEPEP + rows, "# GB200; github:somebody/tables\n")
    (tables,) = find_tables(tmp_path, "NVIDIAGB200", ["bf16"])
    assert {row.shape[1:] for row in tables.rows("deepep")} == {(1, 4)}


def test_scans_are_those_of_the_libraries_that_training_runs(tmp_path: Path) -> None:
    head = "framework_version,kernel_source,batch_size,seq_len,d_conv,num_k_heads,head_k_dim,num_v_heads,head_v_dim,"
    head += "latency_us\n"
    rows = "".join(
        f"{framework},{kernel},1,8192,4,16,128,32,128,{us}\n"
        for framework, kernel, us in (
            ("trtllm 1.3", "chunk_gated_delta_rule", 666),
            ("sglang 0.5", "chunk_gated_delta_rule", 1002),
            ("trtllm 1.3", "causal_conv1d_fn", 32),
        )
    )
    found = read_rows(written(tmp_path, "gdn", head + rows), "bf16")
    assert [(r.operator.name, r.shape, r.us) for r in found] == [
        ("gated_delta_rule", (1, 8192, 32, 128, 128, 64), 666.0)
    ]
    head = "framework_version,kernel_source,batch_size,seq_len,d_state,d_conv,nheads,head_dim,n_groups,chunk_size,"
    head += "latency_us\n"
    rows = "trtllm,mamba_chunk_scan_combined,1,8192,128,4,64,64,8,256,700\n"
    rows += "trtllm,causal_conv1d_fn,1,8192,128,4,64,64,8,256,9\n"
    found = read_rows(written(tmp_path, "mamba2", head + rows), "bf16")
    assert [(r.operator.name, r.shape, r.us) for r in found] == [("ssd_scan", (1, 8192, 64, 64, 128, 8, 256), 700.0)]


def test_encoders_see_all_keys(tmp_path: Path) -> None:
    head = "framework_version,kernel_source,batch_size,isl,num_heads,head_dim,attn_dtype,latency_us\n"
    rows = "vllm 0.24,fa3,2,1024,16,72,bfloat16,50\n" * 13 + "trtllm 1.3,x,2,1024,16,72,bfloat16,40\n"
    found = read_rows(written(tmp_path, "encoder_attention", head + rows), "bf16")
    assert [(r.shape, r.us) for r in found] == [((2, 1024, 16, 72, 0), 50.0)] * 2  # a twelfth of them
