"""The nccl-tests parser on recorded outputs from 2017 to 2026 and on its formats: JSON, truncated, empty and failed."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import pytest

from microbench import workflow
from microbench.collectives import backend, bandwidth, errors, nccl_output, nccl_series, nccl_tests, topologies
from microbench.collectives.bandwidth import bus_bandwidth, total_bytes
from microbench.collectives.errors import CollectiveError
from microbench.collectives.nccl_output import (
    FAILURE,
    OUT_OF_MEMORY,
    NcclRow,
    check_type,
    columns_of,
    device_in,
    most_bytes_in,
    parse_json,
    row_of,
    unmarked,
)
from microbench.collectives.nccl_tests import Output
from predictor.core.costs.collectives import Topology

DATA = Path(__file__).resolve().parents[2] / "data" / "nccl_tests"


@pytest.mark.parametrize("module", [backend, bandwidth, errors, nccl_output, nccl_series, topologies, workflow])
def test_examples_in_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def recorded(name: str) -> str:
    return text(f"recorded/{name}.txt")


def rows_in(lines: str) -> list[NcclRow]:
    """Return the rows of an output that may be cut off."""
    columns, rows = None, list[NcclRow]()
    for line in map(unmarked, lines.splitlines()):
        columns = columns_of(line) or columns
        row = row_of(line, columns) if columns else None
        rows += [row] if row else []
    return rows


def read(lines: str) -> tuple[list[NcclRow], Output]:
    """Return the rows of an output, and the rest that was read from it."""
    output = Output("nccl-tests", Topology(1, 2))
    return [row for line in lines.splitlines() if (row := output.take(line))], output


@pytest.fixture(autouse=True)
def _any_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the ranks of any recorded run."""
    monkeypatch.setattr(nccl_tests, "check_layout", lambda devices, topology: None)


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "sizes", "wrong"),
    [
        ("all_reduce_2.0_v100_nccl-258", "all_reduce", 4, [8, 16, 32, 64], None),
        ("broadcast_2.10_cut_nccl-tests-82", "broadcast", 2, [8], None),
        ("all_reduce_2.10_nccl-tests-78", "all_reduce", 64, [2**28, 2**29], None),
        ("alltoall_2.10_nccl-tests-78", "all_to_all", 64, [2**28, 2**29], None),
        ("reduce_scatter_2.13_sizes_of_nothing_nccl-tests-128", "reduce_scatter", 8, [0, 0, 128, 256], 0),
        ("all_reduce_2.13_tagged_aws-k8s-tester-503", "all_reduce", 16, [8, 16, 32], 0),
        ("all_reduce_2.14_72_ranks_coreweave-43", "all_reduce", 72, [2**i for i in range(29, 34)], 0),
        ("all_reduce_2.13_cuda_error_nccl-tests-322", "all_reduce", 1024, [2**i for i in range(30, 35)], 0),
        ("all_reduce_2.20_cut_dgx-spark-playbooks-103", "all_reduce", 2, [2**i for i in range(13, 17)], 0),
    ],
)
def test_recorded_rows_are_read(name: str, collective: str, ranks: int, sizes: list[int], wrong: int | None) -> None:
    rows = rows_in(recorded(name))
    assert [row.total_bytes for row in rows] == sizes
    assert {row.wrong for row in rows} == {wrong}
    for row in rows:  # the printed columns agree with our definition, to their last digit
        ours = bus_bandwidth(collective, row.total_bytes, row.time_us, ranks)
        assert ours == pytest.approx(row.bus_gb_per_s, rel=0.006, abs=0.006)


def test_a_recorded_run_that_passed_is_read_whole() -> None:
    for name in (
        "all_reduce_2.10_nccl-tests-78",
        "alltoall_2.10_nccl-tests-78",
        "all_reduce_2.14_72_ranks_coreweave-43",
    ):
        rows, output = read(recorded(name))
        assert rows == rows_in(recorded(name))
        assert output.concluded
    assert len(read(recorded("all_reduce_2.13_tagged_aws-k8s-tester-503"))[0]) == 3
    (first, *_), output = read(recorded("all_gather_2.13.6_one_gpu_nixpkgs-251856"))
    assert (first.time_us, first.bus_gb_per_s, len(output.devices)) == (18.48, 0.0, 1)
    assert read(recorded("alltoall_2.13_one_gpu_nccl-tests-287"))[0][0].wrong == 0  # N/A in place


def test_a_relative_error_is_no_number_of_wrong_elements() -> None:
    """Up to 2.12 alltoall has an « error » of 1e+00 in place, where nothing was checked, and its summary is OK."""
    rows, _ = read(recorded("alltoall_2.10_nccl-tests-78"))
    assert [row.time_us for row in rows] == [520935.0, 1041974.0]
    with pytest.raises(CollectiveError, match="wrong elements in 2 of its results"):
        read(recorded("all_gather_2.0_failed_nccl-tests-37"))


def test_the_library_is_told_by_nccl_where_nccl_tests_does_not() -> None:
    _, output = read(recorded("broadcast_2.10_cut_nccl-tests-82"))
    assert output.kernel == "nccl-tests, nccl 2.9.6+cuda11.2"
    assert [host for _, host in output.devices] == ["v100-gpu-1", "v100-gpu-5"]
    _, newest = read(recorded("all_reduce_2.20_cut_dgx-spark-playbooks-103"))
    assert newest.kernel == "nccl-tests 2.20.0, nccl 23102"


def test_recorded_devices_are_read() -> None:
    lines = recorded("devices_2.19.6_nccl-tests-389").splitlines()
    assert [device for line in lines if (device := device_in(line))] == [(7, "node1"), (8, "node2")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failure_1.3_nccl-tests-5", "failed: .*all_reduce.cu:95 'unhandled cuda error'"),
        ("failure_2.0_nccl-tests-66", "failed: Test CUDA failure common.cu:730 'unknown error'"),
        ("failure_2.13_nccl-tests-280", "failed: .*common.cu:1005 'unhandled CUDA error'"),
        ("all_reduce_2.13_cuda_error_nccl-tests-322", "failed: .*unhandled cuda error"),
        ("sendrecv_2.13_cut_nccl-tests-214", "a row that cannot be read .*8192"),
    ],
)
def test_recorded_failures_are_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(CollectiveError, match=message) as caught:
        read(recorded(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "rows", "last"),
    [
        ("failure_2.16_nccl-1812", 0, "Failed to open libibverbs"),
        ("no_library_nccl-tests-131", 0, "libnccl.so.2: cannot open shared object file"),
        ("all_reduce_2.12_without_mpi_nccl-tests-107", 0, ""),
        ("broadcast_2.10_cut_nccl-tests-82", 1, ""),
    ],
)
def test_a_recorded_run_without_its_summary_is_not_concluded(name: str, rows: int, last: str) -> None:
    read_rows, output = read(recorded(name))
    assert len(read_rows) == rows
    assert not output.concluded
    assert last in errors.last_lines(output.said)


def test_the_log_of_nccl_is_no_failure() -> None:
    for line in (
        "host:1:2 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 4000 - Abort COMPLETE",
        "host:1:2 [1] enqueue.cc:47 NCCL WARN Cuda failure 'named symbol not found'",
        "# Errors with asterisks indicate errors that have exceeded the maximum threshold.",
    ):
        assert not FAILURE.search(line)


def test_a_size_that_fills_its_column_is_a_row() -> None:
    columns = columns_of("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    assert columns
    line = (
        "137438953472  34359738368     float     sum      -1  3.1e+06   44.00   77.00       0  3.1e+06  44.00  77.00  0"
    )
    row = row_of(line, columns)
    assert row is not None
    assert (row.total_bytes, row.time_us) == (2**37, 3.1e6)
    assert row_of("2024 12 31: something else", columns) is None


@pytest.mark.parametrize(
    ("name", "collective", "sizes", "version", "nccl"),
    [
        ("all_reduce_2.13.txt", "all_reduce", [2**20, 2**22, 2**24], "", ""),
        ("all_gather_2.17.txt", "all_gather", [4096, 16384], "2.17.1", "22706"),
        ("alltoall_2.18.txt", "all_to_all", [2**30, 2**31], "2.18.3", "23003"),
        ("all_reduce_2.19_per_iteration.txt", "all_reduce", [1024, 4096], "2.19.6", "22907"),
    ],
)
def test_every_version_is_read(name: str, collective: str, sizes: list[int], version: str, nccl: str) -> None:
    rows, output = read(text(name))
    assert output.concluded
    assert [row.total_bytes for row in rows] == sizes
    assert (output.version, output.library) == (version, nccl)
    assert all(row.wrong == 0 for row in rows)
    ranks = len(output.devices)
    assert sorted(rank for rank, _ in output.devices) == list(range(ranks))
    for row in rows:  # the printed columns agree with our definition, to their last digit
        ours = bus_bandwidth(collective, row.total_bytes, row.time_us, ranks)
        assert ours == pytest.approx(row.bus_gb_per_s, rel=0.006, abs=0.006)


def test_json_is_read_with_every_iteration() -> None:
    rows = parse_json(text("all_reduce_2.19.json"))
    assert [row.total_bytes for row in rows] == [1024, 4096]
    assert rows[0].samples_us == (12.03, 11.33, 11.2)
    assert rows[1].samples_us == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_2.13.txt", "4096 wrong elements at 16777216 bytes"),
        ("truncated_after_rows.txt", "cannot be read .*16777216"),
        ("no_gpu_2.19.txt", "2 requested but only 1 were found"),
    ],
)
def test_bad_output_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(CollectiveError, match=message) as caught:
        read(text(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "no whole JSON"),
        (text("all_reduce_2.19.json")[:900], "no whole JSON"),
        ("[]", "no whole JSON"),
        ('{"version": 2, "errors": ["no CUDA-capable device is detected"]}', "no CUDA-capable device"),
        ('{"version": 2}', "without a GPU"),
        ('{"results": [{"size": 8}], "out_of_bounds": {}}', "another format"),
        (text("all_reduce_2.19.json").replace('"nwrong":null', '"nwrong":7.0'), "7 wrong elements"),
        (text("all_reduce_2.19.json").replace('"out_of_bounds"', '"else"'), "ended before its summary"),
        (
            text("all_reduce_2.19.json").replace('"count":0,"okay":"true"', '"count":3,"okay":"false"'),
            "in 3 of its results",
        ),
    ],
)
def test_bad_json_is_one_clear_line(document: str, message: str) -> None:
    with pytest.raises(CollectiveError, match=message) as caught:
        parse_json(document)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(collective: str, factor: float) -> None:
    assert bus_bandwidth(collective, 10**9, 10_000.0, num_ranks=8) == pytest.approx(100.0 * factor)


def test_sizes_of_one_rank_and_of_all_are_told_apart() -> None:
    for collective in ("all_reduce", "all_to_all", "broadcast", "point_to_point"):
        assert total_bytes(collective, 4096, 8) == 4096
    for collective in ("all_gather", "reduce_scatter"):
        assert total_bytes(collective, 4096, 8) == 8 * 4096


def test_what_is_said_of_memory_and_types_is_understood() -> None:
    limited = recorded("all_reduce_2.13_cuda_error_nccl-tests-322").splitlines()
    assert [size for line in limited if (size := most_bytes_in(line))] == [27951912277]
    assert not any(map(OUT_OF_MEMORY.search, limited)), "the failure there does not say why"
    assert OUT_OF_MEMORY.search("node1: Test CUDA failure common.cu:941 'out of memory'")
    assert OUT_OF_MEMORY.search(
        "[1,0]<stdout>:worker-0:402:402 [0] enqueue.cc:1451 NCCL WARN Cuda failure 2 'out of memory'"
    )
    assert not OUT_OF_MEMORY.search("node1: Test CUDA failure common.cu:297 'an illegal memory access was encountered'")
    with pytest.raises(CollectiveError, match=r"does not know bfloat16 and would measure float: .* --precision fp16"):
        check_type("invalid type bfloat16, defaulting to float .. ")


def test_bus_bandwidth_refuses_what_is_none() -> None:
    with pytest.raises(ValueError, match="unknown collective 'reduce'; known: all_reduce"):
        bus_bandwidth("reduce", 1, 1.0, 2)
    with pytest.raises(ValueError, match="at least 2 ranks"):
        bus_bandwidth("all_reduce", 1, 1.0, 1)
    with pytest.raises(ValueError, match="more than 0"):
        bus_bandwidth("all_reduce", 1, 0.0, 2)
