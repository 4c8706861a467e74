"""Start a program on every rank, yield its lines as they are printed, and end it on a failure or a timeout."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from sys import executable

from microbench.collectives.errors import CollectiveError, last_lines
from predictor.core.costs.collectives import Topology

KEPT_LINES = 40
GRACE_S = 5.0
# PMI-2 is the wire protocol that both Slurm and MPICH speak; PMIx needs both built against one library.
SLURM_LAUNCHER = "srun --mpi=pmi2 --cpu-bind=none --kill-on-bad-exit=1"
LAUNCHERS = ("srun", "ibrun", "mpirun", "mpiexec")
# Identity of the batch script's own process: a rank that inherited it would take the first node for its own.
OF_ONE_PROCESS = {"SLURMD_NODENAME", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID"}


def _program(name: str) -> str | None:
    """Return a program's path, on PATH or where pip installed it beside this interpreter."""
    return shutil.which(name) or shutil.which(name, path=str(Path(executable).parent))


def _words(launcher: str | None) -> list[str]:
    """Return a launcher's words: srun's in a Slurm job, mpiexec elsewhere, where none is named."""
    return shlex.split(launcher or (SLURM_LAUNCHER if "SLURM_JOB_ID" in os.environ else "mpiexec"))


def launch_command(topology: Topology, launcher: str | None = None) -> list[str]:
    """Return the words that start one process per rank: srun in a Slurm job, mpiexec elsewhere.

    Args:
        topology: nodes and ranks on each.
        launcher: one of ``LAUNCHERS`` with options of the site; its sizes are added here.

    Raises:
        CollectiveError: the launcher is missing, or mpiexec is to start ranks on other nodes.

    Source: ibrun's option, TACC, Vista User Guide, "NVIDIA MPS".
    """
    words = _words(launcher)
    program = _program(words[0])
    if program is None:
        raise CollectiveError(
            f"{words[0]} is not on PATH; pip install mpich, load the site's MPI, or name a launcher with --launcher"
        )
    if Path(program).name == "srun":
        sizes = [
            f"--nodes={topology.nodes}",
            f"--ntasks-per-node={topology.gpus_per_node}",
            f"--ntasks={topology.ranks}",
        ]
        return [program, *words[1:], *sizes]
    if topology.nodes > 1 and launcher is None:
        raise CollectiveError(f"{topology.nodes} nodes outside a Slurm job; name the site's launcher with --launcher")
    return [program, *words[1:], "-np" if Path(program).name == "ibrun" else "-n", str(topology.ranks)]


def _first_environment(process: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    text = os.fsdecode(Path(f"/proc/{process}/environ").read_bytes())
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split("\0") if pair)}


def _parent(process: int) -> int:
    """Return the process that started another one; 0: none that is still there."""
    return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])


def job_variables() -> dict[str, str]:
    """Return the variables that Slurm set for this job's script.

    Snakemake's job step passes on the job's id and no other; the nearest process above that was started with the job's
    nodes has them all, those of the site among them (SLURM_TACC_*).

    Raises:
        CollectiveError: no process above has them.
    """
    job, process = os.environ["SLURM_JOB_ID"], os.getpid()
    with suppress(OSError):  # a process of another user: the node's daemon
        while process:
            variables = _first_environment(process)
            if variables.get("SLURM_JOB_ID") == job and "SLURM_JOB_NODELIST" in variables:
                return {name: value for name, value in variables.items() if name.startswith("SLURM")}
            process = _parent(process)
    raise CollectiveError(f"no process above this one was started with job {job}'s nodes; use --launcher srun")


def launch_environment(topology: Topology, launcher: str | None = None) -> dict[str, str] | None:
    """Return the environment of a launcher that reads the job's nodes and tasks from it; None: this process's.

    Raises:
        CollectiveError: see ``job_variables``.

    Source: ranks per node, TACC, Vista User Guide, "NVIDIA MPS": TACC_TASKS_PER_NODE; MPICH and Open MPI read Slurm's.
    """
    name = Path(_words(launcher)[0]).name
    if "SLURM_JOB_ID" not in os.environ or name not in LAUNCHERS or name == "srun":
        return None
    job, per_node = job_variables(), topology.gpus_per_node
    asked = {"SLURM_TASKS_PER_NODE": f"{per_node}(x{job['SLURM_JOB_NUM_NODES']})", "TACC_TASKS_PER_NODE": str(per_node)}
    return {key: value for key, value in (os.environ | job | asked).items() if key not in OF_ONE_PROCESS}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and everything that it started here: it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


def _read_lines(process: subprocess.Popen[bytes], silence_s: float) -> Iterator[str | None]:
    """Yield each line, None once nothing came for ``silence_s``."""
    assert process.stdout is not None
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(silence_s):
                yield None
                return
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    if buffer:
        yield buffer.decode(errors="replace")


def run_lines(command: Sequence[str], silence_s: float, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a program and yield its lines, standard error among them.

    Args:
        command: the words of the command line.
        silence_s: a program that says nothing for so long hangs, and is ended.
        env: its environment; this process's if None.

    Raises:
        CollectiveError: it cannot be started, hangs, or ends with another status than 0; with its last lines.
    """
    name = Path(command[0]).name
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise CollectiveError(f"{command[0]}: {error.strerror}") from None
    try:
        for line in _read_lines(process, silence_s):
            if line is None:
                raise CollectiveError(f"{name} hung: nothing for {silence_s:.0f} s; it last said: {last_lines(kept)}")
            kept.append(line)
            yield line
        status = process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        raise CollectiveError(f"{name} closed its output and did not end; it last said: {last_lines(kept)}") from None
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise CollectiveError(f"{name} ended with {how}; it last said: {last_lines(kept)}")


def local_rank(environment: dict[str, str]) -> int:
    """Return this process's rank on its node, as its launcher says.

    Raises:
        CollectiveError: no launcher that is known started this process.
    """
    names = (
        *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        "SLURM_LOCALID",  # last: of another launcher's rank it is the batch script's
    )
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    raise CollectiveError(f"no launcher says this process's rank on its node ({', '.join(names)} are unset)")
