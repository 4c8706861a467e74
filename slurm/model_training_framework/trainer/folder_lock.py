"""One run at a time in a folder: a lock that the kernel frees when the run's first rank ends, however it ends.

flock on a file of the folder, over NFS too (Linux makes it a lock on the server, which frees it when the client's
lease ends). It belongs to the open file, which a forked data worker must not keep open.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_training_framework.trainer.errors import CheckpointError, RunRefusedError, TrainerError
from model_training_framework.trainer.ranks import Ranks

FILE = ".trainer.lock"
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
# An NFS server frees a dead client's locks after a lease and as long a grace: 90 s, nfsd's default, and some more.
LEASE_S = 120.0
POLL_S = 1.0
log = logging.getLogger(__name__)
_handles: set[int] = set()


def _close_in_child() -> None:
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def held(folders: Iterable[Path], ranks: Ranks) -> Iterator[None]:
    """Hold folders for a run; all ranks together, of which the first has the locks.

    Args:
        folders: made where they are not there.
        ranks: of the run.

    Raises:
        RunRefusedError: another run holds one of them.
        CheckpointError: one of them cannot be made or written.
    """
    mine: list[int] = []
    problem: TrainerError | None = None
    try:
        if ranks.is_first:
            try:
                mine.extend(_locked(place) for place in dict.fromkeys(folder.resolve() for folder in folders))
            except TrainerError as error:
                problem = error
        problem = ranks.from_first(problem, "lock the run's folder")
        if problem is not None:
            raise problem
        yield
    finally:
        for handle in mine:
            _release(handle)


def _locked(folder: Path) -> int:
    """Return the handle of a folder's lock."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be made or written: {error.strerror}") from error
    _handles.add(handle)
    try:
        _lock(handle, path)
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(_this_run()).encode(), 0)
    except RunRefusedError:
        _release(handle, is_mine=False)
        raise
    except OSError as error:
        _release(handle, is_mine=False)
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
    return handle


def _release(handle: int, *, is_mine: bool = True) -> None:
    _handles.discard(handle)
    if is_mine:
        os.truncate(handle, 0)
    os.close(handle)


def _lock(handle: int, path: Path) -> None:
    """Take a lock; wait for one that an earlier start of the same Slurm job had on a host that died."""
    here = _this_run()
    until = time.monotonic() + LEASE_S
    is_said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in NO_LOCKS:
                log.warning("%s: %s, so nothing keeps a second run out of the folder", path, error.strerror)
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        holder = _read(handle)
        is_ours = here["job"] and holder.get("job") == here["job"] and holder.get("restart", 0) < here["restart"]
        if not is_ours or time.monotonic() > until:
            raise RunRefusedError(_refusal(path, holder, str(here["host"])))
        if not is_said:
            log.warning("%s: waiting up to %g s for this job's earlier start on %s", path, LEASE_S, holder["host"])
            is_said = True
        time.sleep(POLL_S)


def _this_run() -> dict[str, Any]:
    """Return who holds the lock: a record for others to name."""
    environment = os.environ
    job = environment.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_TASK_ID" in environment:
        job = f"{environment.get('SLURM_ARRAY_JOB_ID', job)}_{environment['SLURM_ARRAY_TASK_ID']}"
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": job,
        "restart": int(environment.get("SLURM_RESTART_COUNT", "0")),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _read(handle: int) -> dict[str, Any]:
    """Return the holder's record; empty while it is being written."""
    try:
        record = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _refusal(path: Path, holder: Mapping[str, Any], host: str) -> str:
    job = f", Slurm job {holder['job']}" if holder.get("job") else ""
    who = f"{holder['host']}, process {holder['pid']}{job}, since {holder['since']}" if holder else "unknown as yet"
    gone = f"; if {holder['host']} is gone for good, delete {path}" if holder and holder["host"] != host else ""
    return f"{path.parent} is in use by another run ({who}): end it or wait for its end, or choose another folder{gone}"
