"""Collectives from the command line, over MPI and gloo on this machine, and everything that can go wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from microbench.cli import main
from microbench.collectives.backend import buffer_bytes
from microbench.collectives.errors import CollectiveError
from microbench.collectives.launch import launch_command, local_rank, run_lines
from microbench.collectives.sweep import read_sweep
from microbench.collectives.topologies import Seat, check_seats, members, offered
from microbench.errors import MeasureError
from microbench.table import Status, read_tables
from predictor.core.costs.collectives import MESSAGE_PASSING, Topology

ROOT = Path(__file__).resolve().parents[3]
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
TINY = "{min_bytes: 1024, max_bytes: 4096, sizes_per_octave: 1, samples: 2, block_us: 200, most_calls: 5}"
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or importlib.util.find_spec("torch") is None,
    reason="no mpi4py or torch here; pip install 'estimate-train-time[profile]' mpich brings them",
)


def collective(*words: str, path: str = PATH, **variables: str) -> subprocess.CompletedProcess[str]:
    """Type ``python -m microbench collective``."""
    sources = os.pathsep.join(str(ROOT / name) for name in (".", "profiling"))
    environment = {"PATH": path, "PYTHONPATH": sources, "HOME": os.environ.get("HOME", "/"), **variables}
    command = [sys.executable, "-m", "microbench", "collective", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


@needs_mpi
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_ranks_measure_and_resume(backend: str, sweep: str, tmp_path: Path) -> None:
    words = ("all", "--backend", backend, "--sweep", sweep, "--out", str(tmp_path / "results"))
    done = collective(*words)
    assert done.returncode == 0, done.stderr
    tables = read_tables(tmp_path / "results", "collective")
    assert {table.provenance.identity.name for table in tables} == set(MESSAGE_PASSING)
    assert all([row.shape for row in table.rows] == [(size, 1, 2) for size in (1024, 2048, 4096)] for table in tables)
    assert all(len(row.samples_us) == 2 and row.median_us > 0 for table in tables for row in table.rows)
    times = 0 if backend == "mpi" else 2  # of the reference kernel, before and after; ranks of MPI need no torch
    assert {len(table.provenance.sessions[-1].reference_us) for table in tables} == {times}
    if backend == "mpi":
        assert "0 calls measured, 18 were there already" in collective(*words).stderr
    cut = tmp_path / "results" / "collective" / "broadcast_fp32.1x2.csv"
    cut.write_text(cut.read_text()[:-40])  # killed while it wrote the last row
    assert "1 calls measured, 17 were there already" in collective(*words).stderr


@needs_mpi
def test_calls_between_computations_do_not_count_the_computing(tmp_path: Path) -> None:
    (tmp_path / "between.yaml").write_text(TINY.replace("}", ", computing_us: 30000}"))
    words = ("all_reduce", "--sweep", str(tmp_path / "between.yaml"))
    begin = time.monotonic()
    done = collective(*words, "--backend", "gloo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (table,) = read_tables(tmp_path, "collective")
    counted_us = sum(sum(row.samples_us) for row in table.rows)
    least_calls = 3 * 2  # a call in every sample of every size, and the pilots beside them
    assert (time.monotonic() - begin) * 1e6 > counted_us + least_calls * 30000 / 2
    refused = collective(*words, "--backend", "mpi", "--out", str(tmp_path / "mpi"))
    assert refused.returncode == 2
    assert "computing_us, which needs --backend gloo" in refused.stderr


@needs_mpi
def test_what_does_not_fit_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "huge.yaml").write_text(TINY.replace("1024", str(2**40)).replace("4096", str(2**40)))
    done = collective("broadcast", "--backend", "mpi", "--sweep", str(tmp_path / "huge.yaml"), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (table,) = read_tables(tmp_path, "collective")
    assert [row.status for row in table.rows] == [Status.OUT_OF_MEMORY]


@needs_mpi
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_redcue",), "unknown collective 'all_redcue'.*Did you mean all_reduce"),
        (("all_reduce", "--sweep", "tiny"), "unknown sweep 'tiny'; known: smoke, standard, full"),
        (("all_reduce", "--ranks-per-node", "1"), "at least 2"),
        (("all_reduce", "--nodes", "2"), "2 nodes outside a Slurm job"),
        (("all_reduce", "--precision", "fp16", "--backend", "mpi"), "no half precision"),
        (("all_reduce", "--launcher", "no-such-mpiexec"), "no-such-mpiexec is not on PATH"),
        (
            ("all_reduce", "--launcher", "sh -c 'echo out of luck; exit 3'"),
            "ended with status 3; it last said: out of luck",
        ),
        (("all_reduce", "--launcher", "sh -c 'sleep 60'", "--silence-s", "0.5"), "sh hung: nothing for"),
        (("all_reduce", "--launcher", "env -u NOTHING sh -c true"), "ended in order after 0 of 3 calls"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    words: tuple[str, ...],
    message: str,
    sweep: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", PATH)
    default = () if "--sweep" in words else ("--sweep", sweep)
    assert main(["collective", *words, *default, "--out", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert re.search(message, said[0]), said[0]


@needs_mpi
def test_ranks_that_disagree_end_in_one_line(sweep: str, tmp_path: Path) -> None:
    alone = """sh -c 'shift 2; exec "$@"' sh"""  # takes the number of ranks and starts one, as a foreign MPI does
    done = collective("all_reduce", "--backend", "mpi", "--launcher", alone, "--sweep", sweep, "--out", str(tmp_path))
    assert done.returncode == 2
    assert "ranks disagree: 2 were requested, they count 1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_seats_are_checked() -> None:
    with pytest.raises(CollectiveError, match="ranks disagree: 4 were requested, they count 1"):
        check_seats([Seat(0, 1, "a")] * 4, 2, 2)
    with pytest.raises(CollectiveError, match=r"lie on 1 nodes \(a: 4\); requested were 2 nodes × 2 ranks"):
        check_seats([Seat(rank, 4, "a") for rank in range(4)], 2, 2)
    with pytest.raises(CollectiveError, match=r"a: 3, b: 1"):
        check_seats([Seat(rank, 4, "b" if rank == 3 else "a") for rank in range(4)], 2, 2)
    nodes = check_seats([Seat(rank, 4, "ab"[rank % 2]) for rank in range(4)], 2, 2)
    assert members(Topology(2, 1), nodes) == [0, 1]
    assert members(Topology(1, 2), nodes) == [0, 2]


def test_every_topology_of_the_allocation_is_offered() -> None:
    assert {(t.nodes, t.gpus_per_node) for t in offered(3, 4)} == {
        (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (3, 4),
    }  # fmt: skip


def test_sizes_reach_from_one_kibibyte_up() -> None:
    for name in ("smoke", "standard", "full"):
        sizes = read_sweep(name).sizes()
        assert sizes[0] == 1024
        assert sizes == sorted(set(sizes))
    with pytest.raises(MeasureError, match=r"no-such\.yaml does not exist"):
        read_sweep("no-such.yaml")
    assert buffer_bytes("all_gather", 1024, 8) == 9 * 1024


def test_a_bad_sweep_file_says_which_field(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(TINY.replace("4096", "10"))
    with pytest.raises(MeasureError, match="max_bytes is 10; it must be at least min_bytes"):
        read_sweep(str(tmp_path / "bad.yaml"))


def test_slurm_ranks_are_spread_as_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    words = launch_command(Topology(4, 2))
    assert words[1] == "--mpi=pmi2"
    assert words[-3:] == ["--nodes=4", "--ntasks-per-node=2", "--ntasks=8"]


def test_ibrun_gets_the_number_of_ranks_as_its_guide_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ibrun", "mpirun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch_command(Topology(4, 2), "ibrun") == [str(tmp_path / "ibrun"), "-np", "8"]
    assert launch_command(Topology(4, 2), "mpirun -x A")[1:] == ["-x", "A", "-n", "8"]


JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_TASKS_PER_NODE": "2(x4)",
    "SLURM_TACC_NODES": "4",
    "SLURMD_NODENAME": "n1",
    "SLURM_LOCALID": "0",
}
STEP = """
import json, sys
from microbench.collectives.errors import CollectiveError
from microbench.collectives.launch import launch_environment
from predictor.core.costs.collectives import Topology
try:
    found = launch_environment(Topology(2, 1), sys.argv[1])
    print(json.dumps(found and {key: value for key, value in found.items() if key[:4] in ("SLUR", "TACC", "OWN_")}))
except CollectiveError as error:
    print(json.dumps(str(error)))
"""


def in_job_step(launcher: str, job: dict[str, str]) -> object:
    """Return the job's part of a launcher's environment in a job step of Snakemake, which passes the job's id alone."""
    sources = os.pathsep.join(str(ROOT / name) for name in (".", "profiling"))
    left = f"env -i OWN_VARIABLE=1 PYTHONPATH={sources} ${{SLURM_JOB_ID:+SLURM_JOB_ID=$SLURM_JOB_ID}}"
    script = f'{left} "$0" -c "$1" {launcher}; exit'  # the shell stays between, as the step does
    command = ["/bin/sh", "-c", script, sys.executable, STEP]
    done = subprocess.run(command, env=job, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("launcher", ["ibrun", "mpirun", "mpiexec"])
def test_a_launcher_gets_the_jobs_nodes_that_the_job_step_keeps(launcher: str) -> None:
    assert in_job_step(launcher, JOB) == {
        "OWN_VARIABLE": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_TACC_NODES": "4",
        "SLURM_TASKS_PER_NODE": "1(x4)",
        "TACC_TASKS_PER_NODE": "1",
    }


def test_a_launcher_that_needs_no_variables_gets_none() -> None:
    assert in_job_step("srun", JOB) is None
    assert in_job_step("ibrun", {}) is None
    said = in_job_step("ibrun", {"SLURM_JOB_ID": "7"})
    assert said == "no process above this one was started with job 7's nodes; use --launcher srun"


def test_local_rank_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_rank({"SLURM_LOCALID": "3"}) == 3
    assert local_rank({"MPI_LOCALRANKID": "1"}) == 1
    assert local_rank({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}) == 2
    with pytest.raises(CollectiveError, match="no launcher says"):
        local_rank({})


def test_a_hung_program_leaves_nothing_running(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(CollectiveError, match="hung: nothing for 1 s; it last said: begun"):
        list(run_lines(["sh", "-c", f"echo begun; sleep 300 & echo $! > {pid}; wait"], 1.0))
    state = Path(f"/proc/{pid.read_text().strip()}/stat")

    def has_ended() -> bool:
        return not state.exists() or state.read_text().split()[2] == "Z"

    deadline = time.monotonic() + 5.0  # a killed process ends when a busy host schedules it
    while not has_ended() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended()
