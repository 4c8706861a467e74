"""A folder of checkpoints: each complete or not there, the newest good one found, the best and the last kept."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_training_framework.trainer.checkpoint_files import FileEntry, difference
from model_training_framework.trainer.config import KEPT_FOR_SAFETY, GenericTrainerConfig
from model_training_framework.trainer.errors import CheckpointError

MANIFEST = "manifest.json"
BUILDING = ".building-"
NAME = re.compile(r"step-(\d+)-(\d+)")
log = logging.getLogger(__name__)


class Manifest(BaseModel):
    """What a checkpoint consists of, and what it is of."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["model-training-framework/checkpoint/1"] = "model-training-framework/checkpoint/1"
    sequence: int = Field(description="checkpoints of this run are numbered in the order of writing")
    global_step: int
    epoch: int
    phase: str
    is_emergency: bool
    world_size: int
    metrics: dict[str, float | None] = Field(
        description="of a validation at this very step; null: no number, never the best; empty without"
    )
    written: str = Field(description="UTC, ISO 8601")
    versions: dict[str, str]
    files: dict[str, FileEntry] = Field(description="by path within the checkpoint")

    def to_text(self) -> str:
        """Return the file's text: a line of content and a line of its checksum."""
        content = self.model_dump_json()
        return f"{content}\n{zlib.crc32(content.encode()):08x}\n"

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Read what ``to_text`` gave.

        Raises:
            ValueError: it is damaged.
        """
        content, _, crc = text.rstrip("\n").rpartition("\n")
        if crc != f"{zlib.crc32(content.encode()):08x}":
            raise ValueError("its checksum does not match")
        return cls.model_validate_json(content)


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint whose manifest reads."""

    path: Path
    manifest: Manifest

    def damage(self) -> str:
        """Return what is wrong with its files, for a message; empty if nothing is."""
        found = (difference(self.path / name, entry) for name, entry in self.manifest.files.items())
        return next((text for text in found if text), "")


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        CheckpointError: it is not there or damaged.
    """
    try:
        return Manifest.from_text((path / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} is no checkpoint: {MANIFEST} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise CheckpointError(f"{path}: {MANIFEST} is not of this version: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {MANIFEST} is damaged: {str(error).splitlines()[0]}") from error


class CheckpointStore:
    """Checkpoints in a folder; one process at a time writes."""

    def __init__(
        self, folder: Path, save_top_k: int, monitor: str | None, mode: str, keep_last: int = KEPT_FOR_SAFETY
    ) -> None:
        """Say where, and what is kept.

        Args:
            folder: of checkpoints.
            save_top_k: how many of the best are kept beside the last; all where negative.
            monitor: metric by which they are judged.
            mode: min or max.
            keep_last: how many of the last are kept.
        """
        self.folder = folder
        self._save_top_k = save_top_k
        self._monitor = monitor
        self._sign = 1.0 if mode == "min" else -1.0
        self._keep_last = keep_last

    @classmethod
    def of(cls, config: GenericTrainerConfig) -> CheckpointStore:
        """Return the store of a run."""
        return cls(config.checkpoint_folder, config.save_top_k, config.monitor, config.mode, config.keep_last)

    def prepare(self) -> None:
        """Remove what a killed run left half-written; the folder is there, and no other run's."""
        for left in self.folder.glob(f"{BUILDING}*"):
            log.info("removing %s, which was not finished", left)
            shutil.rmtree(left, ignore_errors=True)

    def _paths(self) -> list[Path]:
        """Return checkpoints' folders, the last written first."""
        found = ((NAME.fullmatch(path.name), path) for path in self.folder.glob("step-*"))
        return [path for _, path in sorted(((int(m[2]), path) for m, path in found if m), reverse=True)]

    def readable(self) -> Iterator[Stored]:
        """Yield checkpoints whose manifest reads, the last written first; say which do not."""
        for path in self._paths():
            try:
                yield Stored(path, read_manifest(path))
            except CheckpointError as error:
                log.warning("%s; going back to the one before", error)

    def newest_good(self) -> Stored | None:
        """Return the last undamaged checkpoint; say which ones are damaged."""
        for stored in self.readable():
            damage = stored.damage()
            if not damage:
                return stored
            log.warning("%s is damaged: %s; going back to the one before", stored.path, damage)
        return None

    def good(self, path: Path) -> Stored:
        """Return a checkpoint.

        Raises:
            CheckpointError: it is damaged or none.
        """
        stored = Stored(path, read_manifest(path))
        if damage := stored.damage():
            raise CheckpointError(f"{path} is damaged: {damage}")
        return stored

    def next_sequence(self) -> int:
        """Return the number of the next checkpoint."""
        numbers = [int(match[2]) for path in self._paths() if (match := NAME.fullmatch(path.name))]
        return max(numbers, default=0) + 1

    def begin(self, sequence: int) -> Path:
        """Make a folder to write parts to."""
        building = self.folder / f"{BUILDING}{sequence:04d}-{os.getpid()}"
        building.mkdir()
        return building

    def commit(self, building: Path, manifest: Manifest) -> Path:
        """Put a checkpoint in place, whole."""
        (building / MANIFEST).write_text(manifest.to_text(), encoding="utf-8")
        place = self.folder / f"step-{manifest.global_step:08d}-{manifest.sequence:04d}"
        building.rename(place)
        return place

    def discard(self, building: Path) -> None:
        """Remove what cannot be finished."""
        shutil.rmtree(building, ignore_errors=True)

    def prune(self) -> None:
        """Remove all but the last ``keep_last`` and the best ``save_top_k``."""
        if self._save_top_k < 0:
            return
        stored = list(self.readable())
        keep = {kept.path for kept in stored[: self._keep_last]}
        keep |= {
            best.path for best in sorted(stored, key=self._rank)[: self._save_top_k] if self._rank(best) < math.inf
        }
        for path in self._paths():
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _rank(self, stored: Stored) -> float:
        value = stored.manifest.metrics.get(self._monitor or "")
        return math.inf if value is None else self._sign * value

    def best(self) -> Stored | None:
        """Return the best checkpoint by the monitored metric; None where none was judged."""
        judged = [one for one in self.readable() if self._rank(one) < math.inf]
        return min(judged, key=self._rank, default=None)
