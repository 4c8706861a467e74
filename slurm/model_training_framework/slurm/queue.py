"""Ask Slurm for the states of jobs: squeue, then accounting where there is any, then the controller's own record."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from model_training_framework.config.fields import UNLIMITED, duration_s
from model_training_framework.slurm.commands import NO_ACCOUNTING, NO_SUCH_JOB, Patience, ask
from model_training_framework.slurm.errors import SLURMError
from model_training_framework.slurm.states import JobStatus, parse_state

SQUEUE_FORMAT = "%i|%T|%r|%o"  # job, state, reason, command with its arguments
IDS_PER_CALL = 500
CLOCKS_DIFFER = timedelta(days=1)  # at most: the submitting machine's and Slurm's
ARRAY = re.compile(r"(?P<job>\d+)_\[(?P<indices>[^\]%]*)(?:%\d+)?\]")
TASK = re.compile(r"(?P<job>\d+)(?:_(?P<index>\d+))?")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A line of the queue.

    Attributes:
        job_id: ``12``, or ``12_3`` for a task of an array.
        reason: why it waits, or how it ended, in Slurm's word; empty where Slurm says ``None``.
        command: what was given to sbatch.
    """

    job_id: str
    status: JobStatus
    reason: str = ""
    command: str = ""


def base_id(job_id: str) -> str:
    """Return the id that the tasks of an array share.

    Raises:
        ValueError: it is not the id of a Slurm job.

    >>> base_id("12_3")
    '12'
    """
    found = TASK.fullmatch(job_id)
    if not found:
        raise ValueError(f"job_id is {job_id!r}; expected a number such as 12, or 12_3 for a task of an array")
    return found["job"]


def expand(job_id: str) -> Iterator[str]:
    """Yield the single jobs of an id as squeue prints it.

    >>> list(expand("12_[1,4-6:2%3]"))
    ['12_1', '12_4', '12_6']
    """
    found = ARRAY.fullmatch(job_id)
    if not found:
        yield job_id
        return
    for part in found["indices"].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        for index in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{found['job']}_{index}"


def parse_squeue(text: str) -> list[QueueEntry]:
    """Return what ``squeue -h -o '%i|%T|%r|%o'`` printed.

    Raises:
        SLURMError: a line has not four fields, or an unknown state.
    """
    found = []
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) != 4:
            raise SLURMError(f"squeue printed {line!r}; expected 4 fields: {SQUEUE_FORMAT}")
        status = parse_state(fields[1])
        reason = "" if fields[2] == "None" else fields[2]
        found += [QueueEntry(job_id, status, reason, fields[3]) for job_id in expand(fields[0].strip())]
    return found


def parse_sacct(text: str) -> dict[str, JobStatus]:
    """Return the states that ``sacct -n -P -X -o JobID,State`` printed; the last line of a job counts.

    Raises:
        SLURMError: a line has not two fields, or an unknown state.
    """
    states: dict[str, JobStatus] = {}
    for line in text.splitlines():
        job_id, separator, state = line.partition("|")
        if not separator:
            raise SLURMError(f"sacct printed {line!r}; expected JobID|State")
        states.update(dict.fromkeys(expand(job_id), parse_state(state)))
    return states


def parse_record(text: str) -> list[dict[str, str]]:
    """Return the keys and values of every job that ``scontrol show job --oneliner`` printed."""
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines() if line.startswith("JobId=")]


def queue_of(job_ids: Iterable[str], patience: Patience) -> dict[str, QueueEntry]:
    """Return what the controller knows of jobs; one that it has forgotten (MinJobAge) or never had is absent.

    Raises:
        SLURMError: Slurm did not answer.
    """
    bases = sorted({base_id(job_id) for job_id in job_ids}, key=int)
    found: dict[str, QueueEntry] = {}
    for start in range(0, len(bases), IDS_PER_CALL):
        ids = ",".join(bases[start : start + IDS_PER_CALL])
        words = ("squeue", "--noheader", "--all", "--array", "--states=all", f"--format={SQUEUE_FORMAT}", "--jobs", ids)
        answer = ask(*words, patience=patience, settled=(NO_SUCH_JOB,))
        found |= {entry.job_id: entry for entry in parse_squeue(answer.output)}
    return found


def find_command(path: str, patience: Patience) -> str | None:
    """Return the job that a script was submitted as; None if Slurm has none.

    Args:
        path: of the script, as it was given to sbatch; one that no other submission used.
        patience: with a Slurm that does not answer.

    Raises:
        SLURMError: Slurm did not answer.
    """
    words = ("squeue", "--noheader", "--me", "--states=all", f"--format={SQUEUE_FORMAT}")
    for entry in parse_squeue(ask(*words, patience=patience).output):
        if entry.command == path:
            return base_id(entry.job_id)
    return None


def accounted_names(name: str, since: datetime, patience: Patience) -> list[str]:
    """Return the jobs of a name that accounting holds; nothing where the cluster has no accounting.

    Raises:
        SLURMError: the cluster has accounting, but it did not answer.
    """
    if shutil.which("sacct") is None:
        return []
    start = (since - CLOCKS_DIFFER).astimezone().strftime("%Y-%m-%dT%H:%M:%S")  # sacct takes local time
    words = ("sacct", "--noheader", "--parsable2", "--allocations", f"--starttime={start}", "--format=JobID,JobName")
    answer = ask(*words, patience=patience, settled=(NO_ACCOUNTING,))
    lines = (line.partition("|") for line in answer.output.splitlines() if answer.status == 0)
    return list(dict.fromkeys(job_id.partition("_")[0] for job_id, _, found in lines if found == name))


def accounted(job_ids: Iterable[str], patience: Patience) -> dict[str, JobStatus]:
    """Return the states that accounting holds; nothing where the cluster has no accounting.

    Raises:
        SLURMError: the cluster has accounting, but it did not answer.
    """
    if shutil.which("sacct") is None:
        return {}
    wanted = sorted(job_ids)
    found: dict[str, JobStatus] = {}
    for start in range(0, len(wanted), IDS_PER_CALL):
        ids = ",".join(wanted[start : start + IDS_PER_CALL])
        words = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", "--jobs", ids)
        answer = ask(*words, patience=patience, settled=(NO_ACCOUNTING,))
        if answer.status:
            return {}
        found |= parse_sacct(answer.output)
    return found


def show_job(job_id: str, patience: Patience) -> dict[str, str]:
    """Return what the controller keeps of one job (Restarts, Reason, NodeList …); nothing where it has no such job.

    Raises:
        SLURMError: Slurm did not answer.
    """
    base_id(job_id)
    answer = ask("scontrol", "show", "job", "--oneliner", job_id, patience=patience, settled=(NO_SUCH_JOB,))
    records = parse_record(answer.output)
    return records[0] if records else {}


def longest_job_s(partition: str | None, patience: Patience) -> float | None:
    """Return the time limit of a partition, or of the default one, in seconds; None where it has none.

    Raises:
        SLURMError: Slurm did not answer, or has no such partition.
    """
    answer = ask("scontrol", "show", "partition", "--oneliner", *([partition] if partition else []), patience=patience)
    lines = [line for line in answer.output.splitlines() if partition or "Default=YES" in line]
    found = re.search(r"\bMaxTime=(\S+)", lines[0]) if lines else None
    return None if found is None or found[1].upper() in UNLIMITED else float(duration_s(found[1]))


def setting(name: str, patience: Patience) -> str | None:
    """Return a setting of the cluster, such as MaxArraySize; None where it does not have it.

    Raises:
        SLURMError: Slurm did not answer.
    """
    answer = ask("scontrol", "show", "config", patience=patience)
    found = re.search(rf"^{re.escape(name)}\s*=\s*(.*?)\s*$", answer.output, re.MULTILINE)
    return found[1] if found else None
