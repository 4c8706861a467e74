"""Norm: binary files of samples whose slots hold any number of keys, read and written.

A file is a header of eight 64-bit numbers, then its samples: labels and dense features as 32-bit floats, then for
every slot the number of its keys and the keys. With check sums each sample begins with the number of its bytes and
ends with their sum modulo 256. HugeCTR writes the header as one more checked record; the documentation shows it bare.
Both are read, and the former is written. Keys are unique over slots; where the configuration states the slots' sizes,
slot after slot has the next so many keys, and they are handed on as keys that count from 0 in every slot.

Source: HugeCTR, "Configuration File Setup", Norm; the checked header: its ``DataWriter`` and ``CheckSum``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hugectr.data.norm_ragged import RaggedRecords
from hugectr.data.norm_records import Bytes, KeyType, RecordLayout
from hugectr.data.norm_uniform import UniformRecords, first_pattern
from hugectr.data.samples import Lengths, SampleLayout, Samples, local_keys
from hugectr.exceptions import DataError
from predictor.core.base.files import atomic_file

HEADER = struct.Struct("<8q")
LENGTH = struct.Struct("<i")


class Header(NamedTuple):
    """What a file says of itself.

    Attributes:
        start: byte of the first sample.
    """

    is_checked: bool
    num_samples: int
    label_dim: int
    dense_dim: int
    num_slots: int
    start: int


def key_type(is_64_bit: bool) -> KeyType:
    """Return the type of keys on disk."""
    return np.dtype("<i8") if is_64_bit else np.dtype("<u4")


def read_header(path: Path, content: Bytes) -> Header:
    """Return the header of a file's bytes.

    Raises:
        DataError: it is torn or not one.
    """
    start = 0
    head = content[: LENGTH.size + HEADER.size + 1].tobytes()
    if len(head) >= LENGTH.size and LENGTH.unpack_from(head)[0] == HEADER.size:
        start = LENGTH.size
    if len(head) < start + HEADER.size + bool(start):
        raise DataError(f"{path} has {content.size} bytes; a Norm file begins with a header of {HEADER.size}")
    check, num_samples, label_dim, dense_dim, num_slots, *_ = HEADER.unpack_from(head, start)
    if start and sum(head[start : start + HEADER.size]) % 256 != head[start + HEADER.size]:
        raise DataError(f"{path}, byte 0: the check sum of the header is wrong")
    if check not in (0, 1):
        raise DataError(f"{path}, byte {start}: error_check is {check}; expected 0 or 1 at the head of a Norm file")
    for name, value in (("number_of_records", num_samples), ("label_dim", label_dim), ("dense_dim", dense_dim)):
        if value < 0:
            raise DataError(f"{path}: {name} of the header is {value}; expected a number from 0")
    return Header(bool(check), num_samples, label_dim, dense_dim, num_slots, start + HEADER.size + bool(start))


class NormFile:
    """One file of samples."""

    def __init__(self, path: Path, layout: SampleLayout, *, is_64_bit: bool, asks_check: bool) -> None:
        """Open a file and find its samples.

        Args:
            path: of the file.
            layout: that the configuration asks for.
            is_64_bit: of keys; otherwise they are unsigned and of 32 bits.
            asks_check: check sums must be there and right; otherwise those that are there are not looked at.

        Raises:
            DataError: the file is missing or torn, or its header is not that of the configuration.
        """
        self._path, self._layout, self._asks_check = path, layout, asks_check
        content = _content(path)
        header = read_header(path, content)
        self._check_header(header)
        self.num_samples = header.num_samples
        self._records = _located(
            RecordLayout(
                path=path,
                start=header.start,
                num_samples=header.num_samples,
                float_bytes=4 * (header.label_dim + header.dense_dim),
                num_slots=header.num_slots,
                is_checked=header.is_checked,
                key_type=key_type(is_64_bit),
            ),
            content,
        )

    def _check_header(self, header: Header) -> None:
        layout = self._layout
        for name, stated, expected in (
            ("label_dim", header.label_dim, layout.label_dim),
            ("dense_dim", header.dense_dim, layout.dense_dim),
            ("slot_num", header.num_slots, layout.num_slots),
        ):
            if stated != expected:
                raise DataError(f"{self._path}: {name} of the header is {stated}; the configuration has {expected}")
        if self._asks_check and not header.is_checked:
            raise DataError(f"{self._path} has no check sums; set check of the data layer to None")

    def read(self, start: int, stop: int) -> Samples:
        """Return the samples from ``start`` to before ``stop``.

        Raises:
            DataError: a check sum is wrong, or a sample has more keys than the configuration allows, or others.
        """
        if self._asks_check and stop > start:
            wrong = self._records.wrong_sums(start, stop)
            if wrong.size:
                raise DataError(f"{self._path}, sample {start + int(wrong[0])}: its check sum is wrong")
        numbers, lengths, keys = self._records.decoded(start, stop)
        self._check_lengths(start, lengths)
        if self._layout.slot_sizes:
            keys = local_keys(self._path, start, self._layout, keys, lengths)
        label, dense = np.split(numbers, [self._layout.label_dim], axis=1)
        return Samples(np.ascontiguousarray(label), np.ascontiguousarray(dense), keys, lengths)

    def _check_lengths(self, start: int, lengths: Lengths) -> None:
        for name, first, last, max_keys, max_nnz in self._layout.inputs:
            own = lengths[first:last]
            most = own.sum(axis=0)
            if most.size and most.max() > max_keys:
                sample = int(most.argmax())
                raise DataError(
                    f"{self._path}, sample {start + sample}: {name} has {most[sample]} keys; "
                    f"max_feature_num_per_sample is {max_keys}"
                )
            if max_nnz is not None and own.size and own.max() > max_nnz:
                slot, sample = divmod(int(own.argmax()), own.shape[1])
                raise DataError(
                    f"{self._path}, sample {start + sample}: slot {first + slot} has {own.max()} keys; "
                    f"max_nnz of {name} is {max_nnz}"
                )


def _located(layout: RecordLayout, content: Bytes) -> UniformRecords | RaggedRecords:
    """Find the records of a file.

    Raises:
        DataError: the file is torn.
    """
    pattern = first_pattern(layout, content)
    if pattern is not None:
        uniform = UniformRecords(layout, content, pattern)
        if uniform.fits():
            return uniform
    return RaggedRecords(layout, content)


def _content(path: Path) -> Bytes:
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except ValueError:  # no bytes, which cannot be mapped
        return np.zeros(0, np.uint8)


def write_norm(path: Path, samples: Samples, *, is_64_bit: bool, is_checked: bool) -> None:
    """Write a file of samples.

    Raises:
        DataError: a key does not fit its type.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    header = HEADER.pack(
        int(is_checked), len(samples.label), samples.label.shape[1], samples.dense.shape[1], *samples.lengths.shape[:1],
        0, 0, 0,
    )  # fmt: skip
    if is_checked:
        header = LENGTH.pack(len(header)) + header + bytes([sum(header) % 256])
    with atomic_file(path) as building, building.open("wb") as stream:
        stream.write(header)
        stream.write(encoded(path, samples, key_type(is_64_bit), is_checked))


def encoded(path: Path, samples: Samples, kind: KeyType, is_checked: bool) -> bytes:
    """Return samples as a file's records."""
    if samples.keys.size and (samples.keys.min() < np.iinfo(kind).min or samples.keys.max() > np.iinfo(kind).max):
        raise DataError(f"{path}: keys reach {samples.keys.max()}, which {kind.name} does not hold; use I64 keys")
    floats = np.concatenate([samples.label, samples.dense], axis=1).astype("<f4").view(np.uint8)
    sizes = 4 + samples.lengths.astype(np.int64) * kind.itemsize
    payload = floats.shape[1] + sizes.sum(axis=0)
    stride = payload + 5 * is_checked
    begins = np.cumsum(stride) - stride + 4 * is_checked
    content = np.zeros(int(stride.sum()), np.uint8)
    content[begins[:, None] + np.arange(floats.shape[1])] = floats
    places = begins + floats.shape[1] + np.cumsum(sizes, axis=0) - sizes
    _place(content, places.ravel(), samples.lengths.ravel().astype("<i4"))
    lengths = samples.lengths.ravel()
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    within = np.arange(samples.keys.size) - first
    _place(content, np.repeat(places.ravel() + 4, lengths) + within * kind.itemsize, samples.keys.astype(kind))
    if is_checked:
        _place(content, begins - 4, payload.astype("<i4"))
        total = np.cumsum(content, dtype=np.uint8)
        before = total[begins - 1]
        content[begins + payload] = total[begins + payload - 1] - before
    return content.tobytes()


def _place(content: Bytes, places: NDArray[np.int64], numbers: NDArray[np.generic]) -> None:
    """Write numbers at any bytes."""
    size = numbers.dtype.itemsize
    content[places[:, None] + np.arange(size)] = numbers[:, None].view(np.uint8)
