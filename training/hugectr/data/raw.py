"""Raw: one binary file of samples of one key per slot, without header, read and written.

A sample is labels, dense features and keys, 32 bits each. Labels and dense features are whole numbers, the latter read
as log(dense + 1), or floats as they are (float_label_dense).

Source: HugeCTR, "Configuration File Setup", Raw and Common Parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hugectr.data.samples import SampleLayout, Samples, one_hot
from hugectr.exceptions import DataError
from predictor.core.base.files import atomic_file

WORD_BYTES = 4


class RawFile:
    """One file of samples."""

    def __init__(self, path: Path, layout: SampleLayout, *, is_float: bool, num_samples: int | None = None) -> None:
        """Check a file's size.

        Args:
            path: of the file.
            layout: of a sample.
            is_float: labels and dense features are floats.
            num_samples: of the file that are used; None: all.

        Raises:
            DataError: the file is missing, torn, or holds fewer samples.
        """
        self._path, self._layout, self._is_float = path, layout, is_float
        self._words = layout.label_dim + layout.dense_dim + layout.num_slots
        if not path.is_file():
            raise DataError(f"{path} does not exist or is no file; expected Raw data")
        size, sample_bytes = path.stat().st_size, self._words * WORD_BYTES
        held, rest = divmod(size, sample_bytes)
        if rest:
            raise DataError(
                f"{path} has {size} bytes, {rest} after its last whole sample; a sample has {sample_bytes}: "
                f"{layout.label_dim} labels, {layout.dense_dim} dense features and {layout.num_slots} keys of 4 bytes"
            )
        if num_samples is not None and held < num_samples:
            raise DataError(f"{path} holds {held} samples; num_samples of the data layer is {num_samples}")
        self.num_samples = held if num_samples is None else num_samples

    def read(self, start: int, stop: int) -> Samples:
        """Return the samples from ``start`` to before ``stop``.

        Raises:
            DataError: a key or a dense feature is not allowed, or the file was cut since it was opened.
        """
        offset = start * self._words * WORD_BYTES
        words = np.fromfile(self._path, "<i4", (stop - start) * self._words, offset=offset)
        if words.size != (stop - start) * self._words:
            raise DataError(f"{self._path} ends within sample {start + words.size // self._words}")
        rows = words.reshape(stop - start, self._words)
        label, dense, keys = np.split(
            rows, [self._layout.label_dim, self._layout.label_dim + self._layout.dense_dim], axis=1
        )
        if self._is_float:
            label = np.ascontiguousarray(label).view("<f4")
            dense = np.ascontiguousarray(dense).view("<f4")
        else:
            if dense.size and dense.min() < 0:
                sample, column = divmod(int(dense.argmin()), dense.shape[1])
                raise DataError(
                    f"{self._path}, sample {start + sample}: dense feature {column} is {dense.min()}; log(dense + 1) "
                    "needs 0 or more; set float_label_dense where these are floats"
                )
            label = label.astype(np.float32)
            dense = np.log(dense.astype(np.float32) + np.float32(1))
        by_slot = keys.T.astype(np.int64)
        self._layout.check_keys(self._path, start, by_slot)
        return one_hot(label, dense, by_slot)


def raw_words(samples: Samples, *, is_float: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Return samples as a file's words, (samples, words).

    Args:
        samples: of one key per slot; without ``is_float`` dense features are what ``RawFile`` reads, and become the
            nearest whole numbers.
        is_float: labels and dense features are written as floats.
    """
    num_slots, num_samples = samples.lengths.shape
    keys = samples.keys.reshape(num_slots, num_samples).T.astype("<i4")
    if is_float:
        label, dense = samples.label.astype("<f4").view("<i4"), samples.dense.astype("<f4").view("<i4")
    else:
        label, dense = samples.label.astype("<i4"), np.rint(np.expm1(samples.dense.astype(np.float64))).astype("<i4")
    return np.concatenate([label, dense, keys], axis=1)


def write_raw(path: Path, parts: Iterable[Samples], *, is_float: bool) -> None:
    """Write samples, part by part, as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as building, building.open("wb") as stream:
        for samples in parts:
            stream.write(raw_words(samples, is_float=is_float).tobytes())
