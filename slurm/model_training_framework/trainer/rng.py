"""Random numbers: states that can be stored, and seeds derived from their purpose alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand

SEED_BITS = 63
_SCRATCH = np.random.MT19937()


@dataclass(slots=True)
class RNGState:
    """States of Python's, NumPy's, torch's and this process's CUDA generators, in types that hold no code.

    Attributes:
        python: version, internal words and the pending Gaussian of ``random.getstate()``.
        numpy: kind, words (int64), position, whether a Gaussian is pending, and it.
        torch: state of the CPU generator, bytes.
        cuda: state of the current device's generator; empty without CUDA.
    """

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, Any, int, int, float]
    torch: Any
    cuda: list[Any] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return it as tensors, numbers and text."""
        kind, words, *rest = self.numpy
        numpy = (kind, torch.from_numpy(words.astype(np.int64)), *rest)
        return {"python": self.python, "numpy": numpy, "torch": self.torch, "cuda": self.cuda}

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> RNGState:
        """Return what ``state_dict`` gave."""
        kind, words, *rest = plain["numpy"]
        numpy = (kind, words.numpy().astype(np.uint32), *rest)
        return cls(plain["python"], numpy, plain["torch"], list(plain["cuda"]))


def capture_rng() -> RNGState:
    """Return the state of every generator of this process."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return RNGState(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)  # type: ignore[arg-type]


def restore_rng(state: RNGState) -> None:
    """Put every generator back."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state(state.cuda[0])


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits that is a hash of its parts.

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)


def seed_host(seed: int) -> None:
    """Seed the generators that draw on the CPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def seed_all(seed: int) -> None:
    """Seed every generator of this process."""
    seed_host(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


class _Outer(NamedTuple):
    """The CPU's generators while others draw."""

    python: Any
    numpy: Any
    numpy_state: Any
    torch: Any


class RandomStream:
    """Random numbers of its own: inside a ``with`` block the CPU's generators are this stream's, outside as before.

    Its own NumPy generator is another object, so that it needs no copies; what was pending outside comes back with the
    state.
    """

    def __init__(self) -> None:
        """Begin with numbers that are nobody else's; seed within the block."""
        self._numpy = np.random.MT19937()
        self._mine: tuple[Any, Any] | None = None
        self._outer: list[_Outer] = []

    def __enter__(self) -> RandomStream:
        """Take the generators over."""
        self._outer.append(_take_over(self._numpy))
        if self._mine is not None:
            random.setstate(self._mine[0])
            torch.set_rng_state(self._mine[1])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give them back as they were, and keep this stream's place."""
        self._mine = (random.getstate(), torch.get_rng_state())
        _give_back(self._outer.pop())


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Keep what happens inside from drawing random numbers that others would draw (CPU generators)."""
    outer = _take_over(_SCRATCH)
    try:
        yield
    finally:
        _give_back(outer)


def _take_over(numpy: Any) -> _Outer:
    """Return the CPU's generators as they are, and let NumPy draw from another."""
    outer = _Outer(random.getstate(), mtrand.get_bit_generator(), np.random.get_state(), torch.get_rng_state())
    mtrand.set_bit_generator(numpy)
    return outer


def _give_back(outer: _Outer) -> None:
    random.setstate(outer.python)
    mtrand.set_bit_generator(outer.numpy)
    np.random.set_state(outer.numpy_state)  # exchanging the generator drops a pending Gaussian
    torch.set_rng_state(outer.torch)
