"""What workflow tests need: the commands, a scratch folder to run in, and where asked for a throw-away Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from microbench.table import read_tables
from tests.workflow.cluster import Cluster, missing

ROOT = Path(__file__).resolve().parents[2]
# Beside this interpreter, since a virtual environment that is not activated is not on PATH.
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
SLURM_TESTS = "SLURM_TESTS"

Rows = set[tuple[str, tuple[int, ...], str, str]]


def rows(folder: Path) -> Rows:
    """Return what a results folder holds, times aside: table, shape, direction and status of every row."""
    found: Rows = set()
    for kind in ("operator", "collective"):
        for table in read_tables(folder, kind):
            found |= {(table.path.name, row.shape, row.direction.value, row.status.value) for row in table.rows}
    return found


@dataclass
class Workflow:
    """Runs of Snakemake in one scratch folder."""

    folder: Path
    environment: dict[str, str]
    options: tuple[str, ...] = ()
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """Return where a run of the system « here » leaves its tables."""
        return self.folder / "results" / "here"

    @property
    def output(self) -> str:
        """Return what every run printed."""
        return (self.folder / "snakemake.txt").read_text(encoding="utf-8", errors="replace")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start Snakemake in a process group of its own."""
        # A shell ignores SIGINT in what it starts in the background, and that is inherited.
        command = [
            "env",
            "--default-signal=INT",
            "snakemake",
            "-s",
            str(ROOT / "Snakefile"),
            "-d",
            str(self.folder),
            *self.options,
            *words,
        ]
        with (self.folder / "snakemake.txt").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def wait(self, process: subprocess.Popen[bytes], seconds: float) -> int | None:
        """Return how a run ended; end it, and return None, where it takes longer."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end(process)
            return None

    def run(self, *words: str, seconds: float = 60.0) -> int | None:
        """Run Snakemake and return how it ended."""
        return self.wait(self.start(*words), seconds)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End one run that is still there: in order, then by force."""
        for number, seconds in ((signal.SIGINT, 20.0), (signal.SIGKILL, 5.0)):
            if process.poll() is None:
                os.killpg(process.pid, number)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue

    def close(self) -> None:
        """End every run."""
        for process in self.processes:
            self.end(process)


def until(condition: object, seconds: float, what: str) -> None:
    """Wait until a call returns something true; fail with ``what`` where it never does."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds:.0f} s still not: {what}")
        time.sleep(0.1)


@pytest.fixture
def workflow(tmp_path: Path) -> Iterator[Workflow]:
    """Return a scratch folder to run Snakemake in, on this machine; skip where there is no Snakemake."""
    if shutil.which("snakemake", path=PATH) is None:
        pytest.skip("no snakemake here; pip install 'estimate-train-time[workflow]' brings it")
    found = Workflow(tmp_path, os.environ | {"PATH": PATH})
    yield found
    found.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a throw-away Slurm; skip unless ``make test-slurm`` asked for it."""
    if not os.environ.get(SLURM_TESTS):
        pytest.skip(f"takes minutes; make test-slurm runs it (it sets {SLURM_TESTS}=1)")
    lacking = missing()
    if lacking:
        pytest.skip(
            f"this machine has no {', '.join(lacking)}; make test-slurm installs slurm-wlm and munge where it may"
        )
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        found.environment["PATH"] = os.pathsep.join((found.environment["PATH"].split(os.pathsep)[0], PATH, "/usr/sbin"))
        yield found
