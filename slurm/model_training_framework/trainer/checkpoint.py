"""Save and load a run's state over all ranks: complete when every rank's part is."""

from __future__ import annotations

import logging
import math
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning_fabric
import torch
from torch.distributed.checkpoint.api import CheckpointException

from model_training_framework.trainer import sharded
from model_training_framework.trainer.checkpoint_files import (
    FileEntry,
    check_storable,
    make_durable,
    read_part,
    write_part,
)
from model_training_framework.trainer.checkpoint_store import MANIFEST, CheckpointStore, Manifest, Stored, read_manifest
from model_training_framework.trainer.errors import CheckpointError, TrainerError
from model_training_framework.trainer.ranks import Ranks
from model_training_framework.trainer.state import ResumeState

SHARED = "shared.pt"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint keeps.

    Attributes:
        shared: alike on all ranks but for shards (DTensor): weights, optimizer, scheduler.
        own: this rank's: resume state, gradients, callbacks.
    """

    shared: Mapping[str, Any]
    own: Mapping[str, Any]


def versions() -> dict[str, str]:
    """Return the libraries' versions on which equality bit by bit depends."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning_fabric": lightning_fabric.__version__,
    }


def rank_part(rank: int) -> str:
    """Return the name of a rank's part."""
    return f"rank-{rank:05d}.pt"


class Durability:
    """Files on their way to the disk, which training does not wait for."""

    def __init__(self, paths: list[Path]) -> None:
        """Begin in a thread; the kernel does the work."""
        self._paths = paths
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="checkpoint to disk")
        self._thread.start()

    def _run(self) -> None:
        try:
            for path in self._paths:
                make_durable(path)
        except FileNotFoundError:
            pass  # pruned by now
        except OSError as error:
            self._problem = error.strerror or str(error)

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            CheckpointError: the disk failed.
        """
        self._thread.join()
        if self._problem:
            raise CheckpointError(
                f"the last checkpoint did not reach the disk: {self._problem}; the one before is kept"
            )


class Checkpointer:
    """Checkpoints of one run; every method that all ranks must call together says so."""

    def __init__(self, store: CheckpointStore, ranks: Ranks) -> None:
        """Take a folder and the ranks that share it."""
        self.store = store
        self._ranks = ranks
        self._durability: Durability | None = None

    def save(self, snapshot: Snapshot, state: ResumeState, metrics: Mapping[str, float], is_emergency: bool) -> Path:
        """Write a checkpoint; all ranks together.

        Raises:
            CheckpointError: a rank could not write; nothing was changed, the older checkpoints are there.
            TrainerError: the state holds what cannot be stored.
        """
        check_storable(dict(snapshot.own), "state")
        plain, shards = sharded.split(snapshot.shared)
        check_storable(plain, "state")
        try:
            self.wait_until_durable()
        except CheckpointError as error:  # the other ranks do not know of it, and go on to the next one
            log.warning("%s", error)
        building, sequence, problem = self._ranks.from_first(self._begin(), "begin a checkpoint")
        files: dict[str, FileEntry] = {}
        if not problem:
            files, problem = _attempt(lambda: self._write(Path(building), plain, shards, snapshot.own))
        answers = self._ranks.gather((files, problem), "write a checkpoint")
        problem = next((problem for _, problem in answers if problem), "")
        place = ""
        if self._ranks.is_first and not problem:
            manifest = Manifest(
                sequence=sequence,
                global_step=state.global_step,
                epoch=state.epoch,
                phase=state.phase.value,
                is_emergency=is_emergency,
                world_size=self._ranks.world_size,
                metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
                written=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=versions(),
                files={name: entry for files, _ in answers for name, entry in files.items()},
            )
            committed, problem = _attempt(lambda: {"": self.store.commit(Path(building), manifest)})
            place = str(committed.get("", ""))
        place, problem = self._ranks.from_first((place, problem), "complete a checkpoint")
        if problem:
            if self._ranks.is_first and building:
                self.store.discard(Path(building))
            raise CheckpointError(
                f"checkpoint of step {state.global_step} was not written to {self.store.folder}: {problem}; "
                "older checkpoints are unchanged"
            )
        if self._ranks.is_first:
            self.store.prune()
        mine = [Path(place) / name for name in files]
        if self._ranks.is_first:
            mine += [Path(place) / MANIFEST, Path(place), self.store.folder]
        self._durability = Durability(mine)
        if is_emergency:
            self.wait_until_durable()
        return Path(place)

    def wait_until_durable(self) -> None:
        """Wait until this rank's files of the last checkpoint are on the disk.

        A crash of the machine before that costs the last checkpoint alone: its checksums tell, and the one before,
        which was waited for, is kept. A crash of the process costs nothing.

        Raises:
            CheckpointError: the disk failed.
        """
        durability, self._durability = self._durability, None
        if durability is not None:
            durability.wait()

    def _begin(self) -> tuple[str, int, str]:
        if not self._ranks.is_first:
            return "", 0, ""
        sequence = self.store.next_sequence()
        made, problem = _attempt(lambda: {"": self.store.begin(sequence)})
        return str(made.get("", "")), sequence, problem

    def _write(
        self, building: Path, plain: Mapping[str, Any], shards: Mapping[str, Any], own: Mapping[str, Any]
    ) -> dict[str, FileEntry]:
        """Write this rank's files and return them by name."""
        files = (
            sharded.write(building, shards, self._ranks) if shards else {}
        )  # together, so before what may fail alone
        name = rank_part(self._ranks.rank)
        files[name] = write_part(building / name, own)
        if self._ranks.is_first:
            files[SHARED] = write_part(building / SHARED, plain)
        return files

    def find(self, path: Path | None) -> Stored | None:
        """Return a checkpoint, undamaged, or the newest that is; None where there is none. All ranks together.

        Raises:
            CheckpointError: the given one is damaged or none, or was written by another number of ranks.
        """
        found, problem = "", ""
        if self._ranks.is_first:
            try:
                stored = self.store.newest_good() if path is None else self.store.good(path)
                found = str(stored.path) if stored else ""
            except CheckpointError as error:
                problem = str(error)
        found, problem = self._ranks.from_first((found, problem), "find a checkpoint")
        if problem:
            raise CheckpointError(problem)
        if not found:
            return None
        stored = Stored(Path(found), read_manifest(Path(found)))
        if stored.manifest.world_size != self._ranks.world_size:
            raise CheckpointError(
                f"{found} was written by {stored.manifest.world_size} ranks, this run has {self._ranks.world_size}; "
                "resume on as many, or begin in another checkpoint_dir"
            )
        return stored

    def read(self, stored: Stored, like: Callable[[str], Any]) -> Snapshot:
        """Return a checkpoint's content; all ranks together.

        Args:
            stored: from ``find``.
            like: gives a tensor, of zeros, with the sharding that a name's tensor is to have.
        """
        plain = read_part(stored.path / SHARED)
        shared = sharded.join(plain, lambda names: sharded.read(stored.path, {n: like(n) for n in names}, self._ranks))
        return Snapshot(shared, read_part(stored.path / rank_part(self._ranks.rank)))


def read_state(stored: Stored, rank: int = 0) -> ResumeState:
    """Return the resume state of a rank.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return ResumeState.from_state_dict(read_part(stored.path / rank_part(rank))["resume"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{stored.path} holds no resume state: {error}") from error


def _attempt(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return a result and what went wrong, in one line: the other ranks have to know before any rank gives up."""
    try:
        return work(), ""
    except OSError as error:
        return {}, error.strerror or str(error)
    except (RuntimeError, CheckpointException) as error:
        if isinstance(error, TrainerError):
            raise
        return {}, str(error).splitlines()[0]
