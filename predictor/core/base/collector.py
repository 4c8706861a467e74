"""Pause Python's collector of circular garbage while millions of objects are made that are all kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the collector from visiting new objects again and again, and once more at the end.

    What was made meanwhile counts as old afterwards, so that it is not visited before the next full collection.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # otherwise someone else's objects would be thawed
                gc.freeze()
                gc.unfreeze()
            gc.enable()
