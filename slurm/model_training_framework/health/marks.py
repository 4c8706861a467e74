"""Marks of the parts of steps as they run; on a GPU they are its events, so that the host does not wait."""

from __future__ import annotations

import time
from typing import Any


class Marks:
    """Takes the marks of one step after another."""

    def __init__(self, is_gpu: bool = False) -> None:
        """Choose the clock."""
        self.is_gpu = is_gpu
        self.marks: list[tuple[str, Any]] = []

    def mark(self, part: str) -> None:
        """Note that a part begins."""
        if self.is_gpu:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((part, event))
        else:
            self.marks.append((part, time.perf_counter_ns()))

    def take(self) -> list[tuple[str, Any]]:
        """Return the marks of the step that ends with the last, which begins the next."""
        marks, self.marks = self.marks, self.marks[-1:]
        return marks

    def us(self, begin: Any, end: Any) -> float:
        """Return the microseconds between two marks."""
        return 1e3 * float(begin.elapsed_time(end)) if self.is_gpu else (end - begin) / 1e3
