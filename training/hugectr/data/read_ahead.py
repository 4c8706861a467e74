"""Read ahead: a thread takes items from an iterator while earlier ones are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """Items of an iterator, in order."""

    def __init__(self, items: Iterator[Item], depth: int = 3) -> None:
        """Begin to read; at most ``depth`` items wait to be used."""
        self._items = items
        self._pool = ThreadPoolExecutor(1, "data-reader")
        self._pending: deque[Future[Item | None]] = deque()
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        self._pending.append(self._pool.submit(next, self._items, None))

    def next(self) -> Item | None:
        """Return the next item; None after the last, and from then on.

        Raises:
            Exception: what the iterator raised, at its place in the order, and from then on.
        """
        item = self._pending[0].result()
        if item is not None:
            self._pending.popleft()
            self._ask()
        return item

    def close(self) -> None:
        """Stop reading and forget what was read."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()
