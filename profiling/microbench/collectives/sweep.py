"""Sizes to time and repetitions: ``sweeps.yaml``, or a file of the same form."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from microbench.errors import MeasureError
from microbench.provenance import Closed
from microbench.timing import Blocks
from predictor.core.base.read_yaml import read_mapping, read_valid

SWEEPS = Path(__file__).with_name("sweeps.yaml")
SMALLEST_BYTES = 1024
LARGEST_BYTES = 2**40


class Sweep(Closed):
    """Sizes and repetitions of one sweep."""

    min_bytes: Annotated[int, Field(ge=SMALLEST_BYTES, description="smallest message of one rank, bytes")]
    max_bytes: Annotated[int, Field(le=LARGEST_BYTES, description="largest message of one rank, bytes")]
    sizes_per_octave: Literal[1, 2, 4, 8] = Field(description="sizes from one to its double, evenly spaced")
    samples: Annotated[int, Field(ge=1, description="timed blocks of calls per size")]
    block_us: Annotated[float, Field(gt=0, description="length of a block, µs")]
    most_calls: Annotated[int, Field(ge=1, description="calls in a block, at most")]
    computing_us: Annotated[
        float,
        Field(
            ge=0,
            description="every rank of a CPU computes for so long before each call, µs, which is not counted: ranks "
            "that share a machine arrive at different times, and a call of a training step includes that wait",
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _ordered(self) -> Sweep:
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes is {self.max_bytes}; it must be at least min_bytes, {self.min_bytes}")
        return self

    def sizes(self, multiple_of: int = 1) -> list[int]:
        """Return the message sizes that are multiples of so many bytes, smallest first.

        They are series of doubles, one per step of an octave, so that rounding a series' first size keeps all others
        exact. It begins at its first size that loses less than a quarter of a step; what is below is left out.
        """
        sizes, steps = set[int](), self.sizes_per_octave
        for step in range(steps):
            size = self.min_bytes * (steps + step) // steps
            while size <= self.max_bytes and 4 * steps * (size % multiple_of) > size:
                size *= 2
            sizes |= {size - size % multiple_of << octave for octave in range((self.max_bytes // size).bit_length())}
        return sorted(sizes)

    @property
    def blocks(self) -> Blocks:
        """Return how each size is timed."""
        return Blocks(self.samples, self.block_us, self.most_calls)

    @property
    def config_hash(self) -> str:
        """Return the SHA-256 of the sweep's content."""
        return sha256(self.model_dump_json().encode()).hexdigest()


def read_sweep(name: str) -> Sweep:
    """Return a sweep by name, or from a YAML file.

    Raises:
        MeasureError: the name is unknown, or the file is not a sweep.
    """
    named = read_mapping(SWEEPS)
    path = Path(name)
    if name in named:
        return Sweep.model_validate(named[name])
    if path.suffix not in {".yaml", ".yml"}:
        raise MeasureError(f"unknown sweep {name!r}; known: {', '.join(named)}, or a path to a .yaml file")
    return read_valid(path, Sweep, MeasureError)
