"""Tables of both directions become calls, without casts, and go before tables of the forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fitting.levels import attention_levels
from fitting.own_tables import find_tables
from fitting.pipeline import fit_all
from fitting.public_tables import read_rows
from fitting.systems import read_system
from predictor.core.costs.operator import Direction
from tests.unit.fitting.written_tables import written as write_table

SYSTEMS = Path(__file__).parents[3] / "training/systems"
ORIGIN = "# AMD MI300X; github:somebody/tables (MIT); forward_us, backward_us: means of 100 runs\n"
GEMM = "kernel_source,run,dtype,m,n,k,forward_us,backward_us\n"
ATTENTION = (
    "kernel_source,run,dtype,batch_size,isl,num_heads,num_key_value_heads,head_dim,head_dim_v,causal,forward_us,"
    "backward_us\n"
)


def written(folder: Path, name: str, text: str, origin: str = ORIGIN) -> Path:
    return write_table(folder, name, text, origin)


def test_a_linear_layer_has_both_directions_and_no_casts(tmp_path: Path) -> None:
    rows = "Primus-Turbo,new,bfloat16,4096,1024,512,20.0,50.0\nPrimus-Turbo,new,fp8,4096,1024,512,20.0,50.0\n"
    path = written(tmp_path, "gemm_training", GEMM + rows)
    assert [(r.operator.name, r.direction, r.shape, r.us) for r in read_rows(path, "bf16")] == [
        ("ffn_up", Direction.FORWARD, (4096, 512, 1024), 20.0),
        ("ffn_up", Direction.BACKWARD, (4096, 512, 1024), 50.0),
    ]
    forward, backward = read_rows(path, "fp8")
    # Three bytes an element at 5,300 GB/s: both operands forward, the gradient backward.
    assert forward.us == pytest.approx(20.0 - 3 * (4096 * 512 + 512 * 1024) / 5.3e6)
    assert backward.us == pytest.approx(50.0 - 3 * 4096 * 1024 / 5.3e6)


def test_replaced_kernels_and_slow_paths_are_counted_and_not_fitted(tmp_path: Path) -> None:
    rows = (
        "Primus-Turbo,baseline_attention 221d75f1,bfloat16,1,4096,32,32,128,128,True,9.0,20.0\n"
        "aiter,x,bfloat16,1,4096,32,8,128,128,True,9.0,99.0\n"
        "HipKittens,x,bfloat16,1,4096,32,8,128,128,True,8.0,19.0\n"
        "Primus-Turbo,x,bfloat16,1,4096,32,32,192,128,True,9.0,\n"
        "Primus-Turbo,x,bfloat16,1,4096,32,32,192,128,False,9.0,20.0\n"
    )
    found = read_rows(written(tmp_path, "attention_training", ATTENTION + rows), "bf16")
    assert [(r.operator.name, r.direction.value, r.unusable is None) for r in found] == [
        ("grouped_query_attention", "forward", False),
        ("flash_attention", "forward", False),
        ("grouped_query_attention", "backward", False),
        ("flash_attention", "backward", False),
        ("grouped_query_attention", "forward", True),
        ("grouped_query_attention", "backward", False),
        ("mla_attention", "forward", True),
    ]


def test_tables_of_both_directions_go_before_tuned_ones(tmp_path: Path) -> None:
    written(tmp_path, "gemm_training", GEMM + "Primus-Turbo,new,fp8_block,4096,1024,512,20.0,50.0\n")
    tuned = "kernel_source,gemm_dtype,m,n,k,latency_us\n"
    tuned += "aiter ck,fp8_block,512,512,512,1\naiter asm,bfloat16,512,512,512,1\n"
    written(tmp_path, "gemm", tuned + "aiter torch,bfloat16,512,512,512,2\n", ORIGIN)
    bf16, blocks = find_tables(tmp_path, "AMDInstinctMI300X", ["bf16", "fp8_block"])
    assert blocks.directions("linear") == (Direction.FORWARD, Direction.BACKWARD)
    assert {row.us for row in blocks.rows("linear")} == {
        20.0 - 3 * (4096 * 512 + 512 * 1024) / 5.3e6,
        50.0 - 3 * 4096 * 1024 / 5.3e6,
    }
    assert [row.us for row in bf16.rows("linear") if row.unusable is None] == [2.0]  # PyTorch's own choice


def test_attention_of_few_rows_takes_the_physics_of_the_others_at_its_own_level(tmp_path: Path) -> None:
    """Six multi-head shapes, 1.5 times as slow as 40 with shared heads, are answered 1.5 times as slow."""
    rng = np.random.default_rng(0)
    lines = []
    for kv_heads, count, slower in ((8, 40, 1.0), (32, 6, 1.5)):
        for _ in range(count):
            batch, length = int(rng.integers(1, 9)), 128 * int(rng.integers(8, 65))
            us = slower * 2.0 * batch * 32 * length**2 * 128 / 450e6
            lines.append(f"Primus-Turbo,x,bfloat16,{batch},{length},32,{kv_heads},128,128,True,{us},{3 * us}\n")
    written(tmp_path, "attention_training", ATTENTION + "".join(lines))
    system = read_system(SYSTEMS / "MI300X.yaml").hardware
    (table,) = find_tables(tmp_path, system.gpu.name, ["bf16"])
    fits = [fit for fit in fit_all(system, table) if fit.regressor != "grouped_query_attention" or fit.model]
    derived = {(d.regressor, d.direction): d for d in attention_levels(fits, system)}
    assert derived.keys() == {("flash_attention", direction) for direction in Direction}
    for found in derived.values():
        assert found.model.rows == 6
        assert found.model.baseline == pytest.approx(np.log(1.5), abs=0.1)
        assert "median of 6 shapes" in found.why
