from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fitting.tables import Tables, read_table, stage_parameters
from microbench.errors import TableError
from predictor.core.costs.operator import Direction, Shape
from tests.unit.fitting_tables import GPU, write_cluster


def write(path: Path, header: str, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("table", "header", "row", "shape"),
    [
        ("linear1", "mp,b,l,dim", "2,4,1024,512", (4096, 512, 768)),
        ("linear2", "mp,b,l,dim", "2,4,1024,512", (4096, 256, 512)),
        ("linear3", "mp,b,l,dim", "2,4,1024,512", (4096, 512, 1024)),
        ("linear4", "mp,b,l,dim", "2,4,1024,512", (4096, 1024, 512)),
        ("linear_final", "mp,b,l,dim", "2,4,1024,512", (4096, 512, 25216)),
        ("embedding", "mp,b,l,dim", "2,4,1024,512", (4096, 25216, 512)),
        ("flash_atten", "mp,b,h,l,dim", "2,4,16,1024,512", (4, 1024, 8, 32, 0)),
        ("RoPE", "mp,b,h,l,dim", "2,4,16,1024,512", (4096, 8, 32)),
        ("softmax", "mp,b,h,l", "2,4,16,1024", (32, 1024)),
        ("baddbmm", "mp,b,h,l,dim", "2,4,16,1024,512", (32, 1024, 32, 1024)),
        ("bmm", "mp,b,h,l,dim", "2,4,16,1024,512", (32, 1024, 1024, 32)),
        ("gelu", "mp,b,l,dim", "2,4,1024,512", (4096, 1024)),
        ("res_add", "b,l,dim", "4,1024,512", (4096, 512)),
        ("parallel_cross_entropy_128", "mp,b,l", "2,4,1024", (4096, 25216, 2)),
    ],
)
def test_operator_row_becomes_its_kernel_shape(tmp_path: Path, table: str, header: str, row: str, shape: Shape) -> None:
    path = write(tmp_path / f"{GPU}_{table}_fp16.csv", f"{header},F_dur(us),B_dur(us)", f"{row},10.0,20.0")
    forward, backward = read_table(path, GPU, "fp16")
    assert forward.shape == backward.shape == shape
    assert (forward.direction, forward.us, forward.other_us) == (Direction.FORWARD, 10.0, 20.0)
    assert (backward.direction, backward.us, backward.other_us) == (Direction.BACKWARD, 20.0, 10.0)


def test_only_the_outer_stages_hold_the_embedding() -> None:
    middle = stage_parameters("middleStage_optimizer", 1, 64, 2)
    first = stage_parameters("firstStage_optimizer", 1, 64, 2)
    assert middle == (12 * 64 * 64 * 2, 24)
    assert first == (12 * 64 * 64 * 2 + 50304 * 64, 25)


def test_collective_elements_are_two_bytes_and_repeated_rows_count_once(tmp_path: Path) -> None:
    header = "shape,nodes,GPUsPerNode,dur(us)"
    write(tmp_path / "nccl" / f"{GPU}_allreduce_fp16_2_4.csv", header, "1000,2,4,30.0", "2000,2,4,40.0")
    whole = write(tmp_path / "nccl" / f"{GPU}_allreduce_fp16.csv", header, "1000,2,4,30.0", "1000,1,4,9.0")
    assert read_table(whole, GPU, "fp16")[0].shape == (2000, 2, 4)
    rows = Tables(tmp_path, GPU, "fp16").rows("all_reduce")
    assert sorted((row.column, row.us) for row in rows) == [
        ("allreduce 1x4", 9.0),
        ("allreduce 2x4", 30.0),
        ("allreduce 2x4", 40.0),
    ]


def test_tables_are_found_in_the_folder_or_one_below(tmp_path: Path) -> None:
    cluster = write_cluster(tmp_path / "Testbed")
    for path in (cluster, tmp_path):
        assert Tables.find(path, GPU, "fp16").regressors() == ["all_gather", "gelu"]


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("conv2d", "mp,b,l,dim,F_dur(us),B_dur(us)", "unknown operator 'conv2d'; known: RMSlayernorm, RoPE"),
        ("gelu", "mp,b,l,dim,F_dur(us)", "no column 'B_dur(us)'; there are mp, b, l, dim"),
        ("gelu", "mp,b,dim,F_dur(us),B_dur(us)", "not a measurement table of gelu: 'l'"),
    ],
)
def test_bad_table_is_one_clear_line(tmp_path: Path, name: str, header: str, message: str) -> None:
    values = ",".join("1" for _ in header.split(","))
    path = write(tmp_path / f"{GPU}_{name}_fp16.csv", header, values)
    with pytest.raises(TableError) as error:
        read_table(path, GPU, "fp16")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_table_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / f"{GPU}_gelu_fp16.csv"
    for content in ("", "mp,b\n1,2,3,4\n", "mp,b,l,dim,F_dur(us),B_dur(us)\n1,1,many,2,3,4\n"):
        path.write_text(content)
        with pytest.raises(TableError, match="gelu") as error:
            read_table(path, GPU, "fp16")
        assert "\n" not in str(error.value)


def test_unknown_collective_lists_the_known(tmp_path: Path) -> None:
    path = tmp_path / "nccl" / f"{GPU}_gossip_fp16.csv"
    path.parent.mkdir()
    pd.DataFrame({"shape": [1]}).to_csv(path)
    with pytest.raises(TableError, match=r"unknown collective 'gossip'; known: allgather, .*p2p"):
        read_table(path, GPU, "fp16")


def test_folder_without_tables_of_this_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Tables.find(tmp_path / "absent", GPU, "fp16")
    with pytest.raises(TableError, match="no folder holds tables"):
        Tables.find(tmp_path, GPU, "fp16")
