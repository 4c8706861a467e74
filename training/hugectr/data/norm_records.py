"""Where the samples of a Norm file lie, and their slots.

Where every sample has as many keys in each slot as the first one, as in one-hot data, samples lie at equal distances
and are read as one array. Otherwise they are found by their lengths, which checked files state and others do not.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hugectr.data.samples import Keys, Lengths
from hugectr.exceptions import DataError

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
INT = struct.Struct("<i")
KeyType = np.dtype[np.int64] | np.dtype[np.uint32]


class RecordLayout(NamedTuple):
    """What the records of a file hold.

    Attributes:
        start: byte of the first record.
        float_bytes: of labels and dense features, with which a sample begins.
    """

    path: Path
    start: int
    num_samples: int
    float_bytes: int
    num_slots: int
    is_checked: bool
    key_type: KeyType


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
        self._num_samples = layout.num_samples

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

    def floats(self, start: int, stop: int, float_bytes: int) -> NDArray[np.float32]:
        """Return labels and dense features, (samples, numbers)."""
        rows = self.rows(start, stop)[:, self._before : self._before + float_bytes]
        return rows.copy().view("<f4")  # a copy even of one row, whose bytes count as contiguous but are unaligned

    def wrong_sums(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples whose check sum is wrong, counted from ``start``."""
        rows = self.rows(start, stop)
        sums = rows[:, self._before : self._before + self._payload].sum(axis=1, dtype=np.uint8)
        return np.flatnonzero(sums != rows[:, -1])

    def slots(self, start: int, stop: int) -> tuple[Lengths, Keys]:
        """Return lengths and keys."""
        records = self._content[start * self._stride : stop * self._stride].view(self._type)
        samples = stop - start
        lengths = np.repeat(np.array(self._pattern, np.int32)[:, None], samples, axis=1)
        keys = np.empty(samples * sum(self._pattern), np.int64)
        place = 0
        for slot, nnz in enumerate(self._pattern):
            keys[place : place + samples * nnz].reshape(samples, nnz)[...] = records[f"keys{slot}"]
            place += samples * nnz
        return lengths, keys


class RaggedRecords:
    """Records of any length."""

    def __init__(self, layout: RecordLayout, content: Bytes) -> None:
        """Find the records.

        Raises:
            DataError: the file ends within one, or does not end with the last.
        """
        self._layout, self._content = layout, content
        finder = _checked_records if layout.is_checked else _bare_records
        self._begins, self._ends = finder(layout, content)

    def floats(self, start: int, stop: int, float_bytes: int) -> NDArray[np.float32]:
        """Return labels and dense features, (samples, numbers)."""
        places = self._begins[start:stop, None] + np.arange(float_bytes)
        numbers: NDArray[np.float32] = self._content[places].view("<f4")
        return numbers

    def wrong_sums(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples whose check sum is wrong, counted from ``start``."""
        begins, ends = self._begins[start:stop], self._ends[start:stop]
        borders = np.stack([begins, ends], axis=1).reshape(-1)  # what lies between samples is summed too, and dropped
        sums = np.add.reduceat(self._content, borders, dtype=np.uint8)[::2]
        return np.flatnonzero(sums != self._content[ends])

    def slots(self, start: int, stop: int) -> tuple[Lengths, Keys]:
        """Return lengths and keys.

        Raises:
            DataError: a slot ends beyond its sample, or a sample does not end with its last slot.
        """
        layout, key_bytes = self._layout, self._layout.key_type.itemsize
        ends = self._ends[start:stop]
        cursor = self._begins[start:stop] + layout.float_bytes
        lengths = np.empty((layout.num_slots, stop - start), np.int32)
        places = np.empty((layout.num_slots, stop - start), np.int64)
        for slot in range(layout.num_slots):
            lengths[slot] = _numbers(self._content, np.minimum(cursor, ends - 4), np.dtype("<i4"))
            places[slot] = cursor + 4
            cursor = cursor + 4 + lengths[slot].astype(np.int64) * key_bytes
            broken = np.flatnonzero((lengths[slot] < 0) | (cursor > ends))
            if broken.size:
                self._refuse(start + int(broken[0]), slot, int(lengths[slot, broken[0]]))
        broken = np.flatnonzero(cursor != ends)
        if broken.size:
            raise DataError(
                f"{layout.path}, sample {start + int(broken[0])}: its slots leave "
                f"{int((ends - cursor)[broken[0]])} bytes over; is input_key_type right?"
            )
        return lengths, self._keys(lengths.ravel(), places.ravel())

    def _keys(self, lengths: NDArray[np.int32], places: Offsets) -> Keys:
        """Return the keys of slots that begin at bytes ``places``."""
        key_type = self._layout.key_type
        first = np.cumsum(lengths, dtype=np.int64) - lengths
        keys = np.arange(int(lengths.sum(dtype=np.int64)), dtype=np.int64) - np.repeat(first, lengths)
        return _numbers(self._content, np.repeat(places, lengths) + keys * key_type.itemsize, key_type).astype(np.int64)

    def _refuse(self, sample: int, slot: int, nnz: int) -> None:
        raise DataError(
            f"{self._layout.path}, sample {sample}: slot {slot} has {nnz} keys, which its bytes do not hold; "
            "is input_key_type right?"
        )


def _numbers(content: Bytes, places: Offsets, kind: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return the numbers that begin at any bytes, aligned or not."""
    view = np.ndarray((max(content.size - kind.itemsize + 1, 0),), kind, buffer=content, strides=(1,))
    return view[places]


def _checked_records(layout: RecordLayout, content: Bytes) -> tuple[Offsets, Offsets]:
    """Return where samples begin and end, by their lengths in bytes."""
    begins, size = np.empty(layout.num_samples, np.int64), content.size
    stated = content.data
    ends = np.empty(layout.num_samples, np.int64)
    shortest = layout.float_bytes + 4 * layout.num_slots
    place = layout.start
    for sample in range(layout.num_samples):
        if place + 4 > size:
            raise _torn(layout, size, sample)
        (length,) = INT.unpack_from(stated, place)
        if length < shortest:
            raise DataError(
                f"{layout.path}, sample {sample}, byte {place}: its length is {length} bytes; the least is {shortest}"
            )
        begins[sample] = place + 4
        place += 5 + length
        ends[sample] = place - 1
        if place > size:
            raise _torn(layout, size, sample)
    _check_end(layout, place, size)
    return begins, ends


def _bare_records(layout: RecordLayout, content: Bytes) -> tuple[Offsets, Offsets]:
    """Return where samples begin and end, by the numbers of their keys: all of the file has to be walked."""
    rest = content.size - layout.start
    words = content[layout.start : content.size - rest % 4].data.cast("I")
    begins = np.empty(layout.num_samples + 1, np.int64)
    key_words, float_words = layout.key_type.itemsize // 4, layout.float_bytes // 4
    place = sample = 0
    try:
        for sample in range(layout.num_samples):
            begins[sample] = place
            place += float_words
            for _ in range(layout.num_slots):
                place += 1 + key_words * words[place]
    except IndexError:
        raise _torn(layout, content.size, sample) from None
    if 4 * place > rest:
        raise _torn(layout, content.size, sample)
    _check_end(layout, layout.start + 4 * place, content.size)
    begins[-1] = place
    begins = layout.start + 4 * begins
    return begins[:-1], begins[1:]


def _torn(layout: RecordLayout, size: int, sample: int) -> DataError:
    return DataError(
        f"{layout.path} ends at byte {size}, within sample {sample} of {layout.num_samples} that its header states"
    )


def _check_end(layout: RecordLayout, place: int, size: int) -> None:
    if place != size:
        raise DataError(
            f"{layout.path}: its {layout.num_samples} samples end at byte {place}, but the file has {size} bytes"
        )


def locate(layout: RecordLayout, content: Bytes) -> UniformRecords | RaggedRecords:
    """Find the records of a file.

    Raises:
        DataError: the file is torn.
    """
    pattern = _first_pattern(layout, content)
    if pattern is not None:
        uniform = UniformRecords(layout, content, pattern)
        if uniform.fits():
            return uniform
    return RaggedRecords(layout, content)


def _first_pattern(layout: RecordLayout, content: Bytes) -> tuple[int, ...] | None:
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
    return tuple(pattern)
