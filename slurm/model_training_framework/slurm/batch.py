"""Order a batch into calls of sbatch, so that Slurm itself holds the number of jobs that run at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from model_training_framework.slurm.submission import Job, Request


def arrays(jobs: Sequence[Job], largest: int) -> list[tuple[Job, ...]]:
    """Return the jobs in groups that ask for the same, in the batch's order, none larger than an array may be."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.asks_for(), []).append(job)
    return [
        tuple(group[start : start + largest]) for group in groups.values() for start in range(0, len(group), largest)
    ]


def is_uniform(jobs: Sequence[Job]) -> bool:
    """Return whether all jobs ask for the same, so that they can be one array."""
    return len({job.asks_for() for job in jobs}) <= 1


def in_lanes(groups: Sequence[tuple[Job, ...]], limit: int, name: str, after: tuple[str, ...]) -> list[Request]:
    """Return requests in lanes, in each of which one job runs at a time: Slurm's dependency ``singleton``.

    A group goes to the lane with the shortest total time limit, which keeps the lanes equally long. An array in a lane
    runs one of its tasks at a time.
    """
    total_s = [0.0] * limit
    found = []
    for group in groups:
        lane = min(range(limit), key=total_s.__getitem__)
        total_s[lane] += sum(max(job.limit_s, 1.0) for job in group)
        found.append(Request(group, throttle=1, job_name=f"{name}-lane-{lane + 1}", after=after, is_singleton=True))
    return found


def shared_out(groups: Sequence[tuple[Job, ...]], limit: int, after: tuple[str, ...]) -> list[Request]:
    """Return arrays among which the jobs that may run at once are shared out."""
    share, more = divmod(limit, len(groups))
    return [Request(group, throttle=share + (index < more), after=after) for index, group in enumerate(groups)]


def lane_name(output_dir: Path, submission: str) -> str:
    """Return a name for the lanes of a batch that no other has: singleton compares names of all jobs of a user."""
    return f"{output_dir.name[:20]}-{hashlib.sha256(f'{output_dir}/{submission}'.encode()).hexdigest()[:8]}"


def requests(
    jobs: Sequence[Job], limit: int | None, active: Sequence[str], largest_array: int, name: str
) -> list[Request]:
    """Return the calls of sbatch for a batch.

    Args:
        jobs: what to submit.
        limit: how many may run at once; None for no limit.
        active: jobs of earlier calls that still wait or run, and count for the limit.
        largest_array: tasks that an array may have.
        name: of the lanes.
    """
    if not jobs:
        return []
    groups = arrays(jobs, largest_array)
    if limit is None:
        return [Request(group) for group in groups]
    free = limit - len(active)
    after = () if free > 0 else tuple(sorted({job_id.partition("_")[0] for job_id in active}, key=int))
    at_once = free if free > 0 else limit
    if at_once >= len(jobs):
        return [Request(group, after=after) for group in groups]
    if not is_uniform(jobs):
        return in_lanes([(job,) for job in jobs], at_once, name, after)
    if len(groups) <= at_once:
        return shared_out(groups, at_once, after)
    return in_lanes(groups, at_once, name, after)
