"""Name the operators of a step for the profiler, with the predictor's names.

Outside ``recording()`` a name costs one look at a flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch.profiler import record_function

PREFIX = "operator::"  # of the names in a trace

_UNNAMED = nullcontext()
_recording = False


def operator(name: str) -> AbstractContextManager[object]:
    """Return the context in which an operator runs.

    Args:
        name: as predictor/costs/operators names it.
    """
    return record_function(PREFIX + name) if _recording else _UNNAMED


@contextmanager
def recording() -> Iterator[None]:
    """Name the operators that run inside; for use within ``torch.profiler.profile``."""
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before
