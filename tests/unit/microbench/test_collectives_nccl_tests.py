"""nccl-tests under its launcher: a binary that plays recorded outputs, with and without JSON, and what can go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from microbench.collectives.errors import CollectiveError
from microbench.collectives.measure import Request, measure
from microbench.collectives.nccl_output import NcclRow
from microbench.collectives.nccl_tests import BINARIES, NcclTests, Output, binary, check_layout, pinned, writes_json
from microbench.collectives.sweep import Sweep
from microbench.table import Status, read_tables
from predictor.core.costs.collectives import Topology

DATA = Path(__file__).resolve().parents[2] / "data" / "nccl_tests"
TEXT, JSON = DATA / "all_reduce_2.19_per_iteration.txt", DATA / "all_reduce_2.19.json"
RECORDED_FAILURE = DATA / "recorded" / "all_reduce_2.13_cuda_error_nccl-tests-322.txt"
SIZES = [1024, 4096]
# Stands for srun: takes its options away and starts the wrapper, which becomes the binary, once.
ALONE = """sh -c 'shift 2; CUDA_VISIBLE_DEVICES=0 MPI_LOCALRANKID=0 exec "$@"' sh"""
BINARY = """#!/bin/sh
if [ "$1" = --help ]; then echo "{help}"; exit 0; fi
while [ $# -gt 0 ]; do [ "$1" = -J ] && {json}; shift; done
cat {text}
exit {status}
"""
OFFERS_JSON = "[-J,--output_file <file> write output to filepath]"


def fake(folder: Path, text: Path, json: str = "", status: int = 0, name: str = "all_reduce_perf") -> Path:
    """Write a binary that plays a recorded output, and writes JSON if it is told how."""
    path = folder / name
    path.write_text(BINARY.format(help=OFFERS_JSON * bool(json), json=json or "true", text=text, status=status))
    path.chmod(0o755)
    writes_json.cache_clear()
    return path


def runner(folder: Path, said: list[str] | None = None) -> NcclTests:
    """Return a runner of the binaries in a folder."""
    lines: list[str] = [] if said is None else said
    return NcclTests(folder, ALONE, "fp16", 5.0, folder, lines.append)


def run(tests: NcclTests, sizes: list[int] = SIZES) -> list[tuple[int, NcclRow, str]]:
    return list(tests.rows("all_reduce", Topology(1, 2), sizes))


def test_json_gives_every_digit_and_iteration_and_leaves_no_file(tmp_path: Path) -> None:
    fake(tmp_path, TEXT, json=f'cp {JSON} "$2"')
    said: list[str] = []
    found = run(runner(tmp_path, said))
    assert [(size, row.samples_us) for size, row, _ in found] == [(1024, (12.03, 11.33, 11.2)), (4096, ())]
    assert {kernel for *_, kernel in found} == {"nccl-tests 2.19.6, nccl 22907"}
    assert not said
    assert [path.name for path in tmp_path.iterdir()] == ["all_reduce_perf"]  # the environment is in that file


def test_a_binary_without_json_is_read_as_text_and_that_is_said(tmp_path: Path) -> None:
    fake(tmp_path, TEXT)
    said: list[str] = []
    assert [(size, row.time_us) for size, row, _ in run(runner(tmp_path, said))] == [(1024, 11.52), (4096, 12.01)]
    assert len(said) == 1
    assert "all_reduce_perf has no option -J" in said[0]


@pytest.mark.parametrize("json", ["true", f'head -c 700 {JSON} > "$2"'])
def test_json_that_is_missing_or_torn_is_said_and_the_text_taken(tmp_path: Path, json: str) -> None:
    fake(tmp_path, TEXT, json=json)
    said: list[str] = []
    assert [row.time_us for _, row, _ in run(runner(tmp_path, said))] == [11.52, 12.01]
    assert len(said) == 1
    assert said[0].startswith("no JSON (")


def test_json_of_another_run_is_refused(tmp_path: Path) -> None:
    fake(tmp_path, TEXT, json=f"""sed 's/"size":4096/"size":2048/' {JSON} > "$2\"""")
    with pytest.raises(CollectiveError, match="disagree about the sizes"):
        run(runner(tmp_path))


@pytest.mark.parametrize("json", ["", "true"])
def test_a_failed_run_keeps_what_it_printed_before(tmp_path: Path, json: str) -> None:
    fake(tmp_path, RECORDED_FAILURE, json=json, status=3)
    rows = runner(tmp_path).rows("all_reduce", Topology(1, 2), [2**i for i in range(30, 36)])
    assert [next(rows)[0] for _ in range(5)] == [2**i for i in range(30, 35)]
    with pytest.raises(CollectiveError, match=r"all_reduce_perf failed: .*unhandled cuda error"):
        next(rows)


def test_rows_whose_values_only_the_summary_judges_wait_for_it(tmp_path: Path) -> None:
    failed = DATA / "recorded" / "all_gather_2.0_failed_nccl-tests-37.txt"
    fake(tmp_path, failed, name="all_gather_perf")
    rows = runner(tmp_path).rows("all_gather", Topology(1, 8), [2**29])
    with pytest.raises(CollectiveError, match="wrong elements in 2 of its results"):
        next(rows)


def test_a_run_without_its_summary_fails(tmp_path: Path) -> None:
    fake(tmp_path, DATA / "ended_before_summary.txt")
    with pytest.raises(CollectiveError, match="ended before its summary"):
        list(runner(tmp_path).rows("all_reduce", Topology(2, 2), [2**20, 2**22]))


def test_a_binary_without_mpi_or_on_the_wrong_nodes_is_refused() -> None:
    output = Output("all_reduce_perf", Topology(2, 1))
    for line in (DATA / "recorded" / "all_reduce_2.12_without_mpi_nccl-tests-107.txt").read_text().splitlines():
        assert output.take(line) is None
    with pytest.raises(CollectiveError, match="lists the ranks 0, 0, and 2 were started: build it with MPI=1"):
        output.take(
            "  1310720000     327680000     float     sum    12.0  109.0    0.00  0e+00     12.0  109.0    0.00  0e+00"
        )
    gpus = [(0, "a"), (1, "a")]
    check_layout(gpus, Topology(1, 2))
    check_layout([], Topology(1, 2))
    with pytest.raises(CollectiveError, match=r"ranks lie on 1 nodes \(a: 2\); requested were 2 nodes × 1 ranks"):
        check_layout(gpus, Topology(2, 1))


def test_the_binary_gets_the_requested_sizes_and_type(tmp_path: Path) -> None:
    for name in BINARIES.values():
        fake(tmp_path, TEXT, name=name)
    words = " ".join(runner(tmp_path).command("all_gather", Topology(2, 1), [2048, 8192], tmp_path / "x.json"))
    assert "-b 4096 -e 16384 -f 2 -g 1" in words
    assert words.endswith(f"-d half -J {tmp_path}/x.json")
    assert "-J" not in runner(tmp_path).command("all_gather", Topology(2, 1), [2048], None)


@pytest.mark.parametrize("json", ["", f'cp {JSON} "$2"'])
def test_a_size_that_merely_did_not_come_back_is_an_error_and_no_row(tmp_path: Path, json: str) -> None:
    fake(tmp_path, TEXT, json=json)
    sweep = Sweep(min_bytes=1024, max_bytes=8192, sizes_per_octave=1, samples=1, block_us=1, most_calls=1)
    request = Request(
        names=("all_reduce",),
        backend="nccl-tests",
        sweep=sweep,
        topology=Topology(1, 2),
        precision="fp16",
        results=tmp_path / "results",
        launcher=ALONE,
        silence_s=5.0,
        nccl_tests=tmp_path,
    )
    with pytest.raises(CollectiveError, match="printed no row of 2048, 8192 bytes, which was requested"):
        measure(request, lambda part, row: None)
    (table,) = read_tables(tmp_path / "results", "collective")
    assert {row.shape[0]: row.status for row in table.rows} == {1024: Status.OK, 4096: Status.OK}


def test_each_rank_gets_a_gpu_of_its_own() -> None:
    there = {"CUDA_VISIBLE_DEVICES": "4,5", "MPI_LOCALRANKID": "1"}
    assert pinned(there)["CUDA_VISIBLE_DEVICES"] == "5"
    assert pinned({"CUDA_VISIBLE_DEVICES": "6", "SLURM_LOCALID": "3"})["CUDA_VISIBLE_DEVICES"] == "6"
    with pytest.raises(CollectiveError, match="rank 2 of this node has no GPU: 2 visible"):
        pinned(there | {"MPI_LOCALRANKID": "2"})


def test_a_missing_binary_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NCCL_TESTS_HOME", raising=False)
    with pytest.raises(CollectiveError, match="no alltoall_perf in PATH; build nccl-tests with MPI=1"):
        binary("all_to_all", None)


def test_the_wrapper_requests_the_version_and_warnings_of_nccl(tmp_path: Path) -> None:
    (tmp_path / "all_reduce_perf").write_text('#!/bin/sh\necho "$NCCL_DEBUG $CUDA_VISIBLE_DEVICES"\n')
    (tmp_path / "all_reduce_perf").chmod(0o755)
    tests = runner(tmp_path)
    command = tests.command("all_reduce", Topology(1, 2), SIZES, None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"NCCL_DEBUG": ""})
    assert done.stdout.strip() == "0"
    environment = {name: value for name, value in os.environ.items() if name != "NCCL_DEBUG"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "WARN 0"
    assert sys.executable in command
