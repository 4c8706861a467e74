"""Interface of a backend to the ranks; ``mpi`` and ``torch_distributed`` each define a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


class Group(Protocol):
    """Some of the ranks, ready to communicate."""

    def call(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """Allocate the buffers of a call and return the call."""
        ...

    def time_us(self, call: Callable[[], None], calls: int) -> float:
        """Return the time of so many calls in a row on this rank."""
        ...

    def time_between_us(self, call: Callable[[], None], calls: int, *, computing_us: float) -> float:
        """Return the time of so many calls on this rank, each behind so long a computation, which is not counted."""
        ...


class Backend(Protocol):
    """Connection of this rank to the others."""

    kernel: str
    device: str

    def group(self, members: Sequence[int]) -> Group | None:
        """Return the group of these ranks, None on a rank outside; every rank calls this with the same ranks."""
        ...

    def free_bytes(self) -> int:
        """Return the memory that this rank's node or GPU has left for buffers."""
        ...

    def close(self) -> None:
        """Leave in order."""
        ...


def elements(size_bytes: int, precision: str) -> int:
    """Return how many elements make up a size; ``size_multiple`` sees to it that it is a whole number.

    >>> elements(1024, "fp32"), elements(1024, "bf16")
    (256, 512)
    """
    count, rest = divmod(size_bytes, ELEMENT_BYTES[precision])
    assert not rest, f"{size_bytes} bytes in {precision}"
    return count


def buffer_bytes(collective: str, size_bytes: int, num_ranks: int) -> int:
    """Return the bytes that one rank allocates for a call, sent and received buffer together.

    >>> buffer_bytes("all_gather", 1024, 4), buffer_bytes("broadcast", 1024, 4)
    (5120, 1024)
    """
    if collective in ("all_gather", "reduce_scatter"):
        return size_bytes * (num_ranks + 1)
    return size_bytes if collective == "broadcast" else 2 * size_bytes
