"""Records of a Norm file of any length: found by their lengths, which checked files state and others do not."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from hugectr.data.norm_records import Bytes, Decoded, RecordLayout
from hugectr.data.samples import Keys
from hugectr.exceptions import DataError

INT = struct.Struct("<i")
Offsets = NDArray[np.int64]


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

    def _words(self, start: int, stop: int) -> tuple[NDArray[np.uint32], Offsets]:
        """Return the 32-bit words of records, one after another, and where each record begins and the last one ends."""
        begins, ends = self._begins[start:stop], self._ends[start:stop]
        borders = np.concatenate([[0], np.cumsum(ends - begins)]) // 4
        first, last = (int(begins[0]), int(ends[-1])) if stop > start else (0, 0)
        own = self._content[first:last]
        if not self._layout.is_checked:
            return own.view("<u4"), borders
        # Lengths and check sums lie between records, which are not aligned for that.
        content = own.tobytes()
        parts = zip((begins - first).tolist(), (ends - first).tolist(), strict=True)
        return np.frombuffer(b"".join([content[begin:end] for begin, end in parts]), "<u4"), borders

    def wrong_sums(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples whose check sum is wrong, counted from ``start``."""
        begins, ends = self._begins[start:stop], self._ends[start:stop]
        borders = np.stack([begins, ends], axis=1).reshape(-1)  # what lies between samples is summed too, and dropped
        sums = np.add.reduceat(self._content, borders, dtype=np.uint8)[::2]
        return np.flatnonzero(sums != self._content[ends])

    def decoded(self, start: int, stop: int) -> Decoded:
        """Return samples.

        Raises:
            DataError: a slot ends beyond its sample, or a sample does not end with its last slot.
        """
        layout, key_words = self._layout, self._layout.key_type.itemsize // 4
        words, borders = self._words(start, stop)
        float_words = layout.float_bytes // 4
        numbers = words[borders[:-1, None] + np.arange(float_words)]
        cursor, ends = borders[:-1] + float_words, borders[1:]
        lengths = np.empty((layout.num_slots, stop - start), np.int64)
        places = np.empty((layout.num_slots, stop - start), np.int64)
        for slot in range(layout.num_slots):
            lengths[slot] = words[np.minimum(cursor, ends - 1)]
            places[slot] = cursor + 1
            cursor = cursor + 1 + lengths[slot] * key_words
            self._check_slot(start, slot, lengths[slot], cursor, ends)
        if (cursor != ends).any():
            sample = int((cursor != ends).argmax())
            raise DataError(
                f"{layout.path}, sample {start + sample}: its slots leave {4 * int((ends - cursor)[sample])} bytes "
                "over; is input_key_type right?"
            )
        keys = _keys(words, lengths.reshape(-1), places.reshape(-1), key_words)
        return Decoded(numbers.view(np.float32), lengths.astype(np.int32), keys)

    def _check_slot(self, start: int, slot: int, lengths: Offsets, cursor: Offsets, ends: Offsets) -> None:
        if (cursor > ends).any():
            sample = int((cursor > ends).argmax())
            raise DataError(
                f"{self._layout.path}, sample {start + sample}: slot {slot} has {lengths[sample]} keys, which its "
                "bytes do not hold; is input_key_type right?"
            )


def _keys(words: NDArray[np.uint32], lengths: Offsets, places: Offsets, key_words: int) -> Keys:
    """Return the keys of slots that begin at words ``places``."""
    ends = np.cumsum(lengths)
    places = np.repeat(places - key_words * (ends - lengths), lengths)
    places += np.arange(0, key_words * places.size, key_words)
    low: Keys = words[places].astype(np.int64)
    if key_words == 2:
        low |= words[places + 1].astype(np.int64) << 32
    return low


def _checked_records(layout: RecordLayout, content: Bytes) -> tuple[Offsets, Offsets]:
    """Return where samples begin and end, by their lengths in bytes."""
    shortest = layout.float_bytes + 4 * layout.num_slots
    _check_room(layout, content.size, shortest + 5)
    stated, unpack, place = content.data, INT.unpack_from, layout.start
    places = [place]
    try:
        for _ in range(layout.num_samples):
            place += 5 + unpack(stated, place)[0]
            places.append(place)
    except struct.error:  # the file has ended, or a length before was wrong
        pass
    begins = np.array(places, np.int64)
    lengths = np.diff(begins) - 5
    wrong = (lengths < shortest) | (lengths % 4 != 0)
    if wrong.any():
        sample = int(wrong.argmax())
        raise DataError(
            f"{layout.path}, sample {sample}, byte {begins[sample]}: its length is {lengths[sample]} bytes; expected a "
            f"multiple of 4 from {shortest}"
        )
    if lengths.size < layout.num_samples or place > content.size:
        raise _torn(layout, content.size, int(np.searchsorted(begins, content.size, side="left")) - 1)
    _check_end(layout, place, content.size)
    return begins[:-1] + 4, begins[1:] - 1


def _bare_records(layout: RecordLayout, content: Bytes) -> tuple[Offsets, Offsets]:
    """Return where samples begin and end, by the numbers of their keys: all of the file has to be walked."""
    _check_room(layout, content.size, layout.float_bytes + 4 * layout.num_slots)
    rest = content.size - layout.start
    # From a slot to the next, had every word been a number of keys.
    hops = content[layout.start : content.size - rest % 4].view("<u4").astype(np.int64)
    hops *= layout.key_type.itemsize // 4
    hops += 1
    steps = hops.data
    float_words, slots = layout.float_bytes // 4, range(layout.num_slots)
    begins, place = [0], 0
    try:
        for _ in range(layout.num_samples):
            place += float_words
            for _ in slots:
                place += steps[place]
            begins.append(place)
    except IndexError:
        raise _torn(layout, content.size, len(begins) - 1) from None
    if 4 * place > rest:
        raise _torn(layout, content.size, len(begins) - 2)
    _check_end(layout, layout.start + 4 * place, content.size)
    borders = layout.start + 4 * np.array(begins, np.int64)
    return borders[:-1], borders[1:]


def _check_room(layout: RecordLayout, size: int, shortest: int) -> None:
    held = (size - layout.start) // shortest
    if layout.num_samples > held:
        raise _torn(layout, size, held)


def _torn(layout: RecordLayout, size: int, sample: int) -> DataError:
    return DataError(
        f"{layout.path} ends at byte {size}, in or before sample {sample} of the {layout.num_samples} that its header "
        "states"
    )


def _check_end(layout: RecordLayout, place: int, size: int) -> None:
    if place != size:
        raise DataError(
            f"{layout.path}: its {layout.num_samples} samples end at byte {place}, but the file has {size} bytes"
        )
