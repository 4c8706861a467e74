"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "GPU"), counted(1200, "launch"), counted(3, "micro-batch")
    ('1 GPU', '1,200 launches', '3 micro-batches')
    """
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
