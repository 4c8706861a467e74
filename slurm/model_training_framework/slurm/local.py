"""Run experiments on this machine, so many at once: the same commands, files and exit codes as through Slurm."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from model_training_framework.slurm.claims import Claim, newest_claim, take_claim
from model_training_framework.slurm.records import (
    SUBMISSIONS,
    exit_status,
    folder_of_job,
    put,
    read_record,
    recorded_end,
)
from model_training_framework.slurm.start import TRAP
from model_training_framework.slurm.states import TO_BE_RESUMED, JobStatus, status_of_exit

logger = logging.getLogger(__name__)

PREFIX = "local-"
POLL_S = 0.05
HANDLED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
LOCK = "running"  # in a submission's folder, held by the process that runs it
HELD = ".running"  # in an experiment's folder, held by its command
CANCELLED = "cancelled"
# The command's own shell records its success, so that it stands also where the launcher was killed in the meantime.
RECORD_SUCCESS = """\
status=$?
if [ "$status" -eq 0 ]; then
    echo COMPLETED >"$1/.final_state" && mv -f "$1/.final_state" "$1/final_state"
    echo 0 >"$1/.exit_code" && mv -f "$1/.exit_code" "$1/exit_code"
fi
exit "$status"
"""


@dataclass(slots=True)
class LocalRun:
    """An experiment that runs here.

    Attributes:
        folder: of the experiment.
        script: shell code that runs its command.
        project: folder that it starts in.
        max_preemptions: restarts of a command that ended with 75 by itself.
        job_id: of the run.
        process: of its command, while it runs.
        restarts: how often it was started again.
        exit_code: how it ended for good.
        claim: that it runs under.
        taken_by: another job that runs the experiment, so that this one does not.
    """

    folder: Path
    script: str
    project: Path
    max_preemptions: int
    job_id: str
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    exit_code: int | None = None
    claim: Claim | None = None
    taken_by: str | None = None

    def start(self) -> None:
        """Start the command in a process group of its own; its output is appended to logs/local.out.

        Its processes hold a lock in the folder: where this one is killed, they still run and are still seen to. Nothing
        starts where another job, of Slurm, runs the experiment or has ended it with 0 in the meantime.
        """
        self.process = None
        self.claim = take_claim(self.folder, self.job_id, self.restarts)
        if self.claim is None:
            newest = newest_claim(self.folder)
            self.taken_by = newest.job_id if newest else "unknown"
            return
        if exit_status(self.folder) == 0:
            self.claim.end()
            self.exit_code = 0
            return
        for name in ("exit_code", "final_state", CANCELLED):
            (self.folder / name).unlink(missing_ok=True)
        if self.restarts:
            put(self.folder / "preemptions", f"{self.restarts}\n")
        (self.folder / HELD).unlink(missing_ok=True)
        with (self.folder / "logs" / "local.out").open("ab") as log, (self.folder / HELD).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.process = subprocess.Popen(
                ["bash", "-c", f"{TRAP}\n(\n{self.script}\n)\n{RECORD_SUCCESS}", "bash", str(self.folder)],
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        self.claim.hand_over(self.process.pid)
        put(self.folder / "pid", f"{self.process.pid}\n")

    def send(self, number: int) -> None:
        """Pass a signal on to the command and all that it started."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def has_ended(self, is_stopping: bool) -> bool:
        """Return whether it has ended; start it again where it is to be resumed."""
        if self.process is None:
            return True
        status = self.process.poll()
        if status is None:
            return False
        assert self.claim is not None
        self.claim.end()
        status = 128 - status if status < 0 else status
        (self.folder / "pid").unlink(missing_ok=True)
        is_cancelled = (self.folder / CANCELLED).exists()
        if is_stopping and status != 0 and not is_cancelled:
            return True  # told to stop: to be resumed by the next call
        if status == TO_BE_RESUMED and not is_cancelled and self.restarts < self.max_preemptions:
            self.restarts += 1
            self.start()
            return False
        self.exit_code = status
        state = JobStatus.CANCELLED if is_cancelled and status != 0 else status_of_exit(status)
        put(self.folder / "final_state", f"{state}\n")
        put(self.folder / "exit_code", f"{status}\n")
        return True


@dataclass(slots=True)
class Pool:
    """Runs, of which so many go at once.

    Attributes:
        runs: in the order in which they start.
        limit: how many go at once.
        stopped_by: signal that ended the pool early; it was passed on to what ran.
    """

    runs: Sequence[LocalRun]
    limit: int
    stopped_by: signal.Signals | None = None
    going: list[LocalRun] = field(default_factory=list)

    def run(self) -> None:
        """Run everything to its end. After a signal nothing new starts, and what runs is told and waited for.

        Raises:
            KeyboardInterrupt: the signal was that of Ctrl-C.
        """
        waiting = list(self.runs)
        with self._signals_passed_on():
            while self.going or (waiting and self.stopped_by is None):
                while waiting and len(self.going) < self.limit and self.stopped_by is None:
                    self.going.append(waiting.pop(0))
                    self.going[-1].start()
                    if self.stopped_by is not None:  # in the moment of its start
                        self.going[-1].send(signal.SIGTERM)
                self.going = [run for run in self.going if not run.has_ended(self.stopped_by is not None)]
                if self.going:
                    time.sleep(POLL_S)
        if self.stopped_by is signal.SIGINT:
            raise KeyboardInterrupt

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
        before = {number: signal.signal(number, self._pass_on) for number in HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        """Tell what runs to save; a second Ctrl-C ends it."""
        again = self.stopped_by is not None and number == signal.SIGINT
        self.stopped_by = signal.Signals(number)
        told = signal.SIGKILL if again else signal.SIGTERM if number == signal.SIGINT else number
        for run in self.going:
            run.send(told)


def is_local(job_id: str) -> bool:
    """Return whether an id is that of a run on a single machine, not of a Slurm job."""
    return job_id.startswith(PREFIX)


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Hold the lock of a submission that runs here: the system lets go of it, however this process ends."""
    with (place / LOCK).open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def local_status(output_dir: Path, job_id: str) -> JobStatus:
    """Return the state of a run on this machine: PENDING while the pool has no place for it."""
    folder = folder_of_job(output_dir, job_id)
    if folder is None:
        return JobStatus.UNKNOWN
    record = read_record(folder)
    if record is None or record.job_id != job_id:
        return JobStatus.UNKNOWN
    end = recorded_end(folder)
    if end is not None:
        return end
    if _is_held(folder / HELD):
        return JobStatus.RUNNING
    if not _is_held(output_dir / SUBMISSIONS / record.submission / LOCK):
        return JobStatus.UNKNOWN
    return JobStatus.RUNNING if (folder / "pid").exists() else JobStatus.PENDING


def cancel_local(output_dir: Path, job_id: str) -> bool:
    """Tell a run on this machine to end; whether there was one to tell."""
    folder = folder_of_job(output_dir, job_id)
    if folder is None or local_status(output_dir, job_id) is not JobStatus.RUNNING:
        return False
    put(folder / CANCELLED, "")
    try:
        os.killpg(int((folder / "pid").read_text(encoding="ascii")), signal.SIGTERM)
    except (OSError, ValueError):
        return False
    return True
