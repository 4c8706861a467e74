"""Keys of a batch as embedding kernels are timed with: some lookups hit the same row, the others are scattered."""

from __future__ import annotations

from microbench.call import Maker, Tensor

# Rows of the table per row that is looked up, so that rows that follow each other in memory are not looked up together.
SPREAD = 2
# Slots of a sample at most: as many categorical features as Criteo's data has.
MOST_SLOTS = 26


def check_rows(lookups: int, rows: int) -> None:
    """Check that so many lookups can touch so many different rows.

    Raises:
        ValueError: they cannot.
    """
    if not 1 <= rows <= lookups:
        raise ValueError(f"rows is {rows}; {lookups} lookups touch 1 to {lookups} different rows")


def keys(lookups: int, rows: int, make: Maker) -> Tensor:
    """Return int64 keys below SPREAD · rows, in random order, of which ``rows`` differ.

    Raises:
        ValueError: so many lookups cannot touch so many rows.
    """
    import torch

    check_rows(lookups, rows)
    chosen = torch.randperm(SPREAD * rows, device=make.device)[:rows]
    repeated = chosen.index_select(0, make.ids(lookups - rows, rows))
    every = torch.cat((chosen, repeated))
    return every.index_select(0, torch.randperm(lookups, device=make.device))


def even_offsets(bags: int, lookups: int, make: Maker) -> Tensor:
    """Return the int32 offsets of bags as equal as they can be, the end included."""
    import torch

    counts = torch.arange(bags + 1, device=make.device, dtype=torch.int64)
    return (counts * lookups // bags).to(torch.int32)


def slots_of(bags: int) -> int:
    """Return how many slots each sample has, where ``bags`` is slots · samples: the most that divides it.

    >>> slots_of(26 * 512), slots_of(17 * 64), slots_of(31)
    (26, 17, 1)
    """
    return next(slots for slots in range(min(MOST_SLOTS, bags), 0, -1) if bags % slots == 0)
