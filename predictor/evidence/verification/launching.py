"""Run a configuration on this machine: one process per rank, on the loopback alone, gone with whoever started it.

The runner is a command line, such as ``python -m llm_trainer.measure``; nothing here imports it, or torch.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.replay.files.measured_step import FOLDER

LOG_FILE = "log.txt"
LOOPBACK = "127.0.0.1"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
# All that a child inherits: what finds programs, libraries and devices. Ranks, ports and thread counts of a job that
# this process may be part of are not.
KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SYSTEMROOT",
)  # fmt: skip
KEPT_PREFIXES = ("LC_", "XDG_")
SOURCE_ROOTS = ("training", "slurm", "profiling")
PROBE = (
    "import importlib.util, sys, torch; "
    "missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]; "
    "assert not missing, f'{missing[0]} is not installed'; print('cuda' if torch.cuda.is_available() else 'cpu')"
)
PROBE_TIMEOUT_S, GRACE_S = 120.0, 10.0
RANK_PREFIX = re.compile(r"^(\[rank\d+\]: ?)?(error: )?")
LAUNCHER_LINE = re.compile(r"torch[./]distributed[./](elastic|run)")


class RunFailed(Exception):  # noqa: N818 (what happened to a child, told in a table; no error of ours)
    """A launch that did not record its steps; the message is one line."""


@dataclass(frozen=True, slots=True)
class Runner:
    """How configurations are run.

    Attributes:
        python: interpreter that has torch and the trainer.
        device: "cpu" or "cuda".
        steps: to time.
        threads: that each rank computes with on a CPU.
        timeout_s: for one launch.
    """

    python: str
    device: str
    steps: int
    threads: int
    timeout_s: float

    def command(self, module: str, config: Path, folder: Path, ranks: int) -> list[str]:
        """Return the command line of one launch, as a person could type it."""
        torchrun = [
            *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:0", "--local-addr", LOOPBACK),
        ]
        options = ["--out", str(folder), "--steps", str(self.steps), "--device", self.device]
        called = ["-m", module, str(config), *options, "--threads", str(self.threads)]
        return [self.python, *(torchrun if ranks > 1 else []), *called]

    def environment(self) -> dict[str, str]:
        """Return the environment of one launch."""
        kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)} | {
            "MASTER_ADDR": LOOPBACK,
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": str(self.threads),
        }
        checkout = Path(__file__).resolve().parents[3]
        if (checkout / "training" / "llm_trainer").is_dir():  # the same code runs as predicts
            roots = [checkout, *(checkout / name for name in SOURCE_ROOTS)]
            kept["PYTHONPATH"] = os.pathsep.join([*map(str, roots), *filter(None, [kept.get("PYTHONPATH")])])
        return kept


def find_device(python: str, asked: str, packages: Sequence[str] = ()) -> str:
    """Return the device that configurations run on, having made sure that the interpreter can run them.

    Args:
        python: interpreter.
        asked: "cpu", "cuda" or "auto", a GPU where torch sees one.
        packages: that it must have.

    Raises:
        ConfigError: the interpreter is not there, or has no torch or not the trainers.
    """
    if shutil.which(python) is None:
        raise ConfigError(f"--python is {python}, which is no program; name an interpreter that has torch")
    probe = Runner(python, "cpu", 1, 1, PROBE_TIMEOUT_S)
    try:
        done = subprocess.run(
            [python, "-c", PROBE, *packages],
            env=probe.environment(), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{python} does not import torch within {PROBE_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        why = last_line(done.stderr)
        raise ConfigError(
            f"{python} cannot run configurations ({why}): pip install -e .[train] there, or name another interpreter "
            "with --python; --no-run compares what is recorded"
        )
    has = done.stdout.split()[-1]
    if asked == "cuda" and has != "cuda":
        raise ConfigError(f"--device is cuda; torch of {python} sees no GPU")
    return has if asked == "auto" else asked


def last_line(log: str) -> str:
    """Return the last line of a log that says what went wrong: the program's own, not its launcher's about it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = next((number for number, line in enumerate(lines) if LAUNCHER_LINE.search(line)), len(lines))
    told = lines[:own] or lines
    return RANK_PREFIX.sub("", told[-1]) if told else "it printed nothing"


def launch(runner: Runner, module: str, config: Path, folder: Path, ranks: int) -> None:
    """Run a configuration once; its records and its log lie in the folder.

    Raises:
        RunFailed: it ended with an error, by a signal, or not in time.
        KeyboardInterrupt: this process was interrupted or terminated; the children are gone.
        OSError: the log cannot be written.
    """
    shutil.rmtree(folder / FOLDER, ignore_errors=True)  # of an earlier launch that did not end
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG_FILE
    with log.open("wb") as stream, _interrupted_when_terminated():
        process = subprocess.Popen(
            runner.command(module, config, folder, ranks),
            stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env=runner.environment(), start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(runner.timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not done after {runner.timeout_s:g} s (--timeout); log: {log}") from None
        finally:
            _stop(process)
    if code < 0:
        raise RunFailed(f"ended by signal {-code} ({signal.Signals(-code).name}); log: {log}")
    if code:
        raise RunFailed(f"{last_line(log.read_text(encoding='utf-8', errors='replace'))}; log: {log}")


@contextmanager
def _interrupted_when_terminated() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt meanwhile, so that a terminated workflow leaves no ranks behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _descendants(pid: int) -> list[int]:
    """Return the processes below one, which may have sessions of their own; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    below: list[int] = []
    waiting = [pid]
    while waiting:
        waiting += (new := children.get(waiting.pop(), []))
        below += new
    return below


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a launch that still runs, with its ranks: first asked, then killed."""
    if process.poll() is not None:
        return
    below = _descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
