"""The nccl-tests parser on its output formats: several versions, JSON, truncated, empty and failed."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from types import ModuleType

import pytest

from microbench import workflow
from microbench.collectives import backend, bandwidth, errors, nccl_tests, topologies
from microbench.collectives.bandwidth import bus_bandwidth, rank_bytes, total_bytes
from microbench.collectives.errors import CollectiveError
from microbench.collectives.nccl_output import parse_json, parse_text, without_environment

DATA = Path(__file__).resolve().parents[1] / "data" / "nccl_tests"


@pytest.mark.parametrize("module", [backend, bandwidth, errors, nccl_tests, topologies, workflow])
def test_examples_in_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


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
    run = parse_text(text(name))
    assert [row.total_bytes for row in run.rows] == sizes
    assert (run.version, run.nccl) == (version, nccl)
    assert all(row.wrong == 0 for row in run.rows)
    ranks = len(run.devices)
    assert sorted(rank for rank, *_ in run.devices) == list(range(ranks))
    for row in run.rows:  # the printed columns agree with our definition, to their last digit
        ours = bus_bandwidth(collective, row.total_bytes, row.time_us, ranks)
        assert ours == pytest.approx(row.bus_gb_per_s, rel=0.006, abs=0.006)


def test_devices_say_host_and_gpu() -> None:
    assert parse_text(text("all_gather_2.17.txt")).devices[1] == (1, "nid000487", 0, "NVIDIA GH200 120GB")


def test_json_is_read_with_every_iteration() -> None:
    run = parse_json(text("all_reduce_2.19.json"))
    assert [row.total_bytes for row in run.rows] == [1024, 4096]
    assert run.rows[0].samples_us == (12.03, 11.33, 11.2)
    assert run.rows[1].samples_us == ()
    assert run.devices[1] == (1, "gpu-c-01", 1, "NVIDIA H200")
    assert run.nccl == "22907"


def test_environment_is_not_kept() -> None:
    kept = without_environment(json.loads(text("all_reduce_2.19.json")))
    assert "SECRET_TOKEN" not in json.dumps(kept)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_2.13.txt", "4096 wrong elements at 16777216 bytes"),
        ("truncated_after_rows.txt", "cannot be read .*16777216"),
        ("ended_before_summary.txt", "ended before its summary"),
        ("no_gpu_2.19.txt", "2 requested but only 1 were found"),
        ("cuda_failure_2.17.txt", "unhandled cuda error"),
    ],
)
def test_bad_output_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(CollectiveError, match=message) as caught:
        parse_text(text(name))
    assert "\n" not in str(caught.value)


def test_empty_output_says_so() -> None:
    with pytest.raises(CollectiveError, match="printed no row: it said nothing"):
        parse_text("")


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
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "point_to_point"):
        assert rank_bytes(collective, total_bytes(collective, 4096, 8), 8) == 4096
    assert total_bytes("all_gather", 4096, 8) == 8 * 4096


def test_bus_bandwidth_refuses_what_is_none() -> None:
    with pytest.raises(ValueError, match="unknown collective 'reduce'; known: all_reduce"):
        bus_bandwidth("reduce", 1, 1.0, 2)
    with pytest.raises(ValueError, match="at least 2 ranks"):
        bus_bandwidth("all_reduce", 1, 1.0, 1)
    with pytest.raises(ValueError, match="more than 0"):
        bus_bandwidth("all_reduce", 1, 0.0, 2)
