"""``trainer_state.json`` of a Hugging Face Trainer: written anew at each checkpoint, read when it has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from predictor.watch.events import Activity, End, Event, Step
from predictor.watch.readers.records import MetricRecords
from predictor.watch.readers.tracker import StepTracker

LARGEST = 1 << 28


class TrainerState:
    """Reads the history of the log, whose entries have no times, and the mean time of a run that has ended."""

    def __init__(self, path: Path, tracker: StepTracker) -> None:
        """Name the file."""
        self.block = 0  # it is read whole
        self._path = path
        self._records = MetricRecords(tracker)
        self._tracker = tracker
        self._seen = 0
        self._read_at: tuple[int, int] | None = None

    @property
    def description(self) -> str:
        """Return the path and the format."""
        return f"{self._path}: trainer_state.json"

    def poll(self) -> Iterator[Event]:
        """Return the events of entries that are new."""
        try:
            state = self._path.stat()
            changed = (state.st_mtime_ns, state.st_size)
            if changed == self._read_at or state.st_size > LARGEST:
                return
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return  # half written: it is complete in a moment
        self._read_at = changed
        history = content.get("log_history") if isinstance(content, dict) else None
        if not isinstance(history, list):
            return
        if self._seen > len(history):  # the run began again
            self._seen = 0
        if not self._seen and isinstance(target := content.get("max_steps"), int) and 0 < target < 1 << 53:
            self._tracker.start(target_step=target)
        entries = [entry for entry in history[self._seen :] if isinstance(entry, dict)]
        self._seen = len(history)
        yield from self._events(entries)

    def _events(self, entries: list[dict[str, Any]]) -> Iterator[Event]:
        ended = next((entry for entry in entries if "train_runtime" in entry), None)
        for entry in entries:
            if entry is ended:
                continue
            for event in self._records.take(entry):
                # Where the end says how long all steps took, losses without a time say less.
                if ended is None or not isinstance(event, Step) or isinstance(event, Activity):
                    yield event
        if ended is not None:
            yield from self._end(ended)

    def _end(self, entry: dict[str, Any]) -> Iterator[Event]:
        step, took = entry.get("step"), entry.get("train_runtime")
        if isinstance(step, int) and isinstance(took, int | float) and 0 < step < 1 << 53 and 0 < took < 1e12:
            yield Step(step, took / step, steps=step)
        yield End("completed")
