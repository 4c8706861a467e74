"""Ranks as child processes: they end with the program, however it ends, and their errors reach it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hugectr import launchers
from hugectr.exceptions import HugeCtrError
from hugectr.launchers import Launched, check_engine, check_ranks, launched
from hugectr.ranks import ChildRanks, RankError
from hugectr.solver import solver_parser_helper
from tests.hugectr.model_made import make

TRAINING = """
import sys
from hugectr import Session, solver_parser_helper
from tests.hugectr.model_made import make
from pathlib import Path

session = Session(solver_parser_helper(batchsize=16, vvgpu=[[0, 1]]), str(make(Path(sys.argv[1])).config))
session.start_data_reading()
print(*session._ranks.pids, flush=True)
while True:
    session.train()
"""
IDLE = """
from hugectr.ranks import ChildRanks

print(*ChildRanks(2).pids, flush=True)
kept = ChildRanks(1)
print(*kept.pids, flush=True)
"""
END_S = 120.0  # far above what it takes, for machines that do much else


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + END_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "a rank outlives its program"
        time.sleep(0.05)


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_end_when_the_program_is_killed_within_a_step(tmp_path: Path) -> None:
    program = start(TRAINING, tmp_path)
    assert program.stdout is not None
    try:
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.3)
        assert all(map(is_alive, pids))
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
    wait_until_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_end_with_a_program_that_closes_nothing(tmp_path: Path) -> None:
    program = start(IDLE, tmp_path)
    output, _ = program.communicate(timeout=END_S)
    assert program.returncode == 0
    pids = [int(pid) for pid in output.split()]
    assert len(pids) == 3
    wait_until_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("is_training", [False, True])
def test_an_interrupt_ends_all_ranks(tmp_path: Path, is_training: bool) -> None:
    """Ctrl-C reaches the program and its ranks, at their start as well as within a step."""
    solver = {"gpu": [[0, 1]], "batchsize": 16, "max_iter": 10**6, "display": 1, "eval_interval": 10**6}
    config = make(tmp_path, solver={**solver, "snapshot": 10**6}).config
    program = subprocess.Popen(
        [sys.executable, "-m", "hugectr", "train", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert program.stdout is not None
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    if is_training:
        assert program.stdout.readline().startswith("iteration 1: ")
    while len(pids := children.read_text(encoding="utf-8").split()) < 1 + is_training:
        time.sleep(0.01)
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=END_S)
    assert (program.returncode, errors) == (130, "hugectr: interrupted\n")
    wait_until_gone([int(pid) for pid in pids])


def test_a_rank_that_ends_closes_the_session_in_one_line() -> None:
    ranks = ChildRanks(2)
    first, second = ranks.pids
    os.kill(second, signal.SIGKILL)
    wait_until_gone([second])
    with pytest.raises(RankError, match="rank 1 ended with status -9") as raised:
        ranks.call("close")
    assert "\n" not in str(raised.value)
    wait_until_gone([first])
    with pytest.raises(RankError, match="the session is closed"):
        ranks.call("train")


def environment(**variables: str) -> dict[str, str]:
    return variables


def test_launchers_are_told_by_their_variables() -> None:
    assert launched({}) is None
    assert launched(environment(RANK="0", WORLD_SIZE="1")) is None
    assert launched(environment(RANK="1", WORLD_SIZE="4", LOCAL_RANK="1")) == Launched("torchrun", 1, 4)
    assert launched(environment(OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="3")) == Launched("Open MPI", 2, 3)
    assert launched(environment(PMI_RANK="0", PMI_SIZE="2")) == Launched("MPICH", 0, 2)


def test_other_numbers_of_processes_are_refused_with_the_command() -> None:
    two_nodes = solver_parser_helper(vvgpu=[[0, 1], [0, 1]])
    with pytest.raises(HugeCtrError, match=r"of 2 nodes.*torchrun --nnodes 2 --nproc-per-node 2"):
        check_ranks(two_nodes, None)
    with pytest.raises(HugeCtrError, match=r"4 GPUs; torchrun started 2 processes.*--nproc-per-node 4"):
        check_ranks(two_nodes, Launched("torchrun", 0, 2))
    check_ranks(two_nodes, Launched("torchrun", 3, 4))
    check_ranks(solver_parser_helper(vvgpu=[[0, 1]]), None)


def test_a_missing_engine_is_named_with_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine()
    monkeypatch.setattr(launchers, "ENGINE", ("torch", "no_such_engine"))
    with pytest.raises(HugeCtrError, match="no_such_engine is not installed; training needs pip install"):
        check_engine()


def test_an_engine_that_does_not_load_is_named_with_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_engine.py").write_text('raise OSError("Could not load this library: /x/tbe.so")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(launchers, "ENGINE", ("torch", "broken_engine"))
    with pytest.raises(
        HugeCtrError, match=r"broken_engine is installed, but does not load .*tbe\.so\); .* pip install"
    ):
        check_engine()
