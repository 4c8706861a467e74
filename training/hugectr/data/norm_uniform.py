"""Records of a Norm file that have as many keys in each slot as the first one, as in one-hot data.

They lie at equal distances, and are read as one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hugectr.data.norm_records import Bytes, Decoded, RecordLayout


def first_pattern(layout: RecordLayout, content: Bytes) -> tuple[int, ...] | None:
    """Return the keys in each slot of the first sample; None where there is none or it is broken."""
    if not layout.num_samples:
        return None
    place, pattern = layout.start + 4 * layout.is_checked + layout.float_bytes, []
    for _ in range(layout.num_slots):
        number = content[place : place + 4]
        nnz = int(number.view("<i4")[0]) if number.size == 4 else -1
        if nnz < 0:
            return None
        pattern.append(nnz)
        place += 4 + nnz * layout.key_type.itemsize
    return tuple(pattern) if place <= content.size else None


class UniformRecords:
    """Records of one length."""

    def __init__(self, layout: RecordLayout, content: Bytes, pattern: tuple[int, ...]) -> None:
        """Lay records of the same slots, ``pattern`` keys each, over a file's bytes."""
        self._pattern = pattern
        key_type, before = layout.key_type, 4 * layout.is_checked
        offset = before + layout.float_bytes
        fields: dict[str, tuple[Any, int]] = {"length": ("<i4", 0)} if layout.is_checked else {}
        for slot, nnz in enumerate(pattern):
            fields[f"nnz{slot}"] = ("<i4", offset)
            fields[f"keys{slot}"] = ((key_type, (nnz,)), offset + 4)
            offset += 4 + nnz * key_type.itemsize
        self._payload, self._before = offset - before, before
        self._stride = offset + layout.is_checked
        self._type = np.dtype(
            {
                "names": list(fields),
                "formats": [kind for kind, _ in fields.values()],
                "offsets": [place for _, place in fields.values()],
                "itemsize": self._stride,
            }
        )
        self._content = content[layout.start :]
        self._num_samples, self._float_bytes = layout.num_samples, layout.float_bytes

    def fits(self) -> bool:
        """Return whether all records of the file are so."""
        if self._content.size != self._num_samples * self._stride:
            return False
        records = self._content.view(self._type)
        if self._before and not (records["length"] == self._payload).all():
            return False
        return all(bool((records[f"nnz{slot}"] == nnz).all()) for slot, nnz in enumerate(self._pattern))

    def rows(self, start: int, stop: int) -> Bytes:
        """Return records as (samples, bytes), check sums and lengths included."""
        return self._content[start * self._stride : stop * self._stride].reshape(stop - start, self._stride)

    def wrong_sums(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples whose check sum is wrong, counted from ``start``."""
        rows = self.rows(start, stop)
        sums = rows[:, self._before : self._before + self._payload].sum(axis=1, dtype=np.uint8)
        return np.flatnonzero(sums != rows[:, -1])

    def decoded(self, start: int, stop: int) -> Decoded:
        """Return samples."""
        rows = self.rows(start, stop)[:, self._before : self._before + self._float_bytes]
        numbers = rows.copy().view("<f4")  # a copy even of one row, whose bytes count as contiguous but are unaligned
        records = self._content[start * self._stride : stop * self._stride].view(self._type)
        samples = stop - start
        lengths = np.repeat(np.array(self._pattern, np.int32)[:, None], samples, axis=1)
        keys = np.empty(samples * sum(self._pattern), np.int64)
        place = 0
        for slot, nnz in enumerate(self._pattern):
            keys[place : place + samples * nnz].reshape(samples, nnz)[...] = records[f"keys{slot}"]
            place += samples * nnz
        return Decoded(numbers, lengths, keys)
