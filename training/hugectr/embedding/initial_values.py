"""Initial values of rows, from a generator that counts instead of keeping a state.

A value depends on the seed, the layer, the key and the column alone. So a row begins alike on any number of ranks,
under any plan, and whenever its key is first met. The generator is SplitMix64's finalizer over the counter (Steele et
al. 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

from math import sqrt
from zlib import crc32

import torch

GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
HASH_TABLE_BOUND = 0.05  # of layers whose slots' sizes are not known; HugeCTR's documents say "random small weight"
MANTISSA_BITS = 24
ROWS_AT_ONCE = 1 << 16


def _signed(value: int) -> int:
    """Return the 64-bit pattern as the signed number that torch's int64 holds."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)  # torch's own shift copies the sign


def _mix(values: torch.Tensor) -> torch.Tensor:
    values = (values ^ _shift_right(values, 30)) * _signed(FIRST_FACTOR)
    values = (values ^ _shift_right(values, 27)) * _signed(SECOND_FACTOR)
    return values ^ _shift_right(values, 31)


def bound_of_slot(slot_rows: int) -> float:
    """Return the bound of a slot's values, 1 / √rows.

    Source: HugeCTR, ``init_embedding_functor.cu``, tables with slot sizes.
    """
    return sqrt(1.0 / slot_rows)


def initial_rows(seed: int, layer: str, keys: torch.Tensor, columns: range, bound: float) -> torch.Tensor:
    """Return rows of uniform values in [-bound, bound).

    Args:
        seed: of the run.
        layer: name of the embedding layer.
        keys: (rows,) int64.
        columns: of the whole table that are wanted.
        bound: of the values.

    Returns:
        (rows, columns) float32, where ``keys`` are.
    """
    stream = _signed(GOLDEN * (2 * crc32(layer.encode()) + 1) + seed * SECOND_FACTOR)
    steps = torch.tensor([_signed(GOLDEN * (column + 1)) for column in columns], device=keys.device)
    rows = torch.empty(len(keys), len(columns), device=keys.device)
    for start in range(0, len(keys), ROWS_AT_ONCE):  # the counters of all rows at once would be twice the table
        some = keys[start : start + ROWS_AT_ONCE]
        bits = _mix(_mix(some.to(torch.int64) ^ stream)[:, None] + steps[None, :])
        uniform = _shift_right(bits, 64 - MANTISSA_BITS).to(torch.float32)
        rows[start : start + ROWS_AT_ONCE] = uniform.mul_(2.0 * bound / (1 << MANTISSA_BITS)).sub_(bound)
    return rows
