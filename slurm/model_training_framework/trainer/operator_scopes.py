"""Name the operators and the traffic of a step for the profiler, with the predictor's names.

Outside ``recording()`` a name costs one look at a flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch.profiler import record_function

PREFIX, TRAFFIC_PREFIX = "operator::", "traffic::"  # of the names in a trace

_UNNAMED = nullcontext()
_recording = False


def operator(name: str) -> AbstractContextManager[object]:
    """Return the context in which an operator runs.

    Args:
        name: as predictor/core/costs/operators names it.
    """
    return record_function(PREFIX + name) if _recording else _UNNAMED


def traffic(part: str) -> AbstractContextManager[object]:
    """Return the context in which collectives run that are for a part of the step.

    Args:
        part: as the predictor's tasks name it.
    """
    return record_function(TRAFFIC_PREFIX + part) if _recording else _UNNAMED


@contextmanager
def recording() -> Iterator[None]:
    """Name the operators that run inside; for use within ``torch.profiler.profile``."""
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before
