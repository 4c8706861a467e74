"""Run Slurm's commands. A controller that is away is asked again, with growing pauses, before it is an error."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from model_training_framework.slurm.errors import SLURMError

logger = logging.getLogger(__name__)

PATIENCE_S = 180.0
ANSWER_S = 60.0  # one command may take; slurmctld's own MessageTimeout is 10 s by default
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
# Words of Slurm's answer that no second try changes. Source: slurm_errno.c of Slurm 22.05 and 24.11.
NO_SUCH_JOB = "Invalid job id specified"
NO_ACCOUNTING = "Slurm accounting storage is disabled"
# Words of an answer after which a submission may be tried again: the controller is away, or busy.
AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Transport endpoint is not connected",
    "Communication connection failure",
    "Communication shutdown failure",
    "Message send failure",
    "Message receive failure",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Job violates accounting/QOS policy (job submit limit",
    "Unable to resolve",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered: its exit status, its output, and its complaint in one line."""

    status: int
    output: str
    complaint: str

    @property
    def is_away(self) -> bool:
        """Return whether Slurm did not answer, so that nothing is known about what was asked."""
        return self.status != 0 and any(words in self.complaint for words in AWAY)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to ask a Slurm that does not answer.

    Attributes:
        seconds: from the first try to the last. A controller that restarts is back within a minute or two.
    """

    seconds: float = PATIENCE_S

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between tries: doubling up to the longest, until so many seconds have gone by."""
        end, pause = time.monotonic() + self.seconds, FIRST_PAUSE_S
        while (left := end - time.monotonic()) > 0:
            yield min(pause, left)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def run_once(*words: str, keep_open: tuple[int, ...] = ()) -> Answer:
    """Run a command of Slurm once.

    Args:
        words: the command.
        keep_open: files that it holds open, too, also where it outlives us.

    Raises:
        SLURMError: it is not installed here.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=_environment(words[0]),
            timeout=ANSWER_S,
            pass_fds=keep_open,
            check=False,
        )
    except FileNotFoundError as error:
        raise SLURMError(
            f"{words[0]} is not on PATH: this is no machine of a Slurm cluster, and only there is known what became of "
            "jobs that were submitted; ask there, or name another output_dir"
        ) from error
    except OSError as error:
        raise SLURMError(f"{words[0]}: {error}") from error
    except subprocess.TimeoutExpired:
        return Answer(1, "", f"{words[0]}: Socket timed out: no answer in {ANSWER_S:.0f} s")
    return Answer(done.returncode, done.stdout, " ".join(done.stderr.split()))


def _environment(command: str) -> dict[str, str]:
    """Return our environment without the user's formats, and without the job that we may run in.

    sbatch hands the environment on: a job that is submitted from within a task of an array would take its own index
    and restarts for those of that task.
    """
    settings = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_", "SLURM_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(settings) or key == "SLURM_CONF"}
    if command == "sbatch":
        return kept
    return kept | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}  # 0: lists of array tasks are not cut short


def ask(*words: str, patience: Patience, settled: tuple[str, ...] = ()) -> Answer:
    """Ask Slurm something, again and again until it answers.

    Args:
        words: the command; asking twice must do no harm.
        patience: how long to try.
        settled: words of complaints that are an answer.

    Raises:
        SLURMError: no answer for as long as the patience lasted.
    """
    pauses = patience.pauses()
    while True:
        answer = run_once(*words)
        if answer.status == 0 or any(text in answer.complaint for text in settled):
            return answer
        complaint = answer.complaint or f"{words[0]}: exit status {answer.status}"
        pause = next(pauses, None)
        if pause is None:
            raise SLURMError(
                f"{' '.join(words[:2])}: no answer in {patience.seconds:.0f} s: {complaint}; "
                "the jobs may well be running: ask again later"
            )
        logger.warning("%s; asked again in %.1f s, for %.0f s in all", complaint, pause, patience.seconds)
        time.sleep(pause)
