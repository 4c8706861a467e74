"""Keysets: the different keys of a file list, which the model oversubscriber loads.

A keyset file holds the keys alone, of 32 or 64 bits each, without header. One file serves all embedding tables, or
each table has its own.

Source: HugeCTR, "Python Interface", ModelOversubscriber, and its ``criteo2hugectr`` tool.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hugectr.data.norm import key_type
from hugectr.data.samples import Keys, layout_of
from hugectr.data.sources import open_source
from hugectr.exceptions import DataError
from predictor.core.base.files import write_whole
from predictor.recommender.hugectr.sections import Data


def read_keyset(path: Path, *, is_64_bit: bool) -> Keys:
    """Return the different keys of a keyset, in rising order.

    Raises:
        DataError: it is missing, or its bytes are no whole number of keys.
    """
    kind = key_type(is_64_bit)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; expected a keyset") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; expected a keyset") from None
    if len(content) % kind.itemsize:
        raise DataError(f"{path} has {len(content)} bytes; a keyset of {8 * kind.itemsize}-bit keys is torn there")
    return np.unique(np.frombuffer(content, kind)).astype(np.int64)


def write_keyset(path: Path, keys: Keys, *, is_64_bit: bool) -> None:
    """Write the different ones of some keys.

    Raises:
        DataError: a key does not fit its type.
    """
    kind = key_type(is_64_bit)
    different = np.unique(keys)
    if different.size and (different[0] < np.iinfo(kind).min or different[-1] > np.iinfo(kind).max):
        raise DataError(f"{path}: keys are from {different[0]} to {different[-1]}; {kind.name} does not hold them")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, different.astype(kind).tobytes())


def keys_of(data: Data, file_list: str, *, is_64_bit: bool) -> dict[str, Keys]:
    """Return the different keys of each sparse input over all files of a list, as the files hold them.

    Raises:
        DataError: a file is not as it should be.
    """
    inputs = layout_of(data).inputs
    data = data.model_copy(update={"slot_size_array": ()})
    seen: dict[str, list[Keys]] = {part.name: [] for part in inputs}
    for open_file in open_source(data, file_list, is_64_bit=is_64_bit).files:
        file = open_file()
        samples = file.read(0, file.num_samples)
        ends = np.concatenate([[0], np.cumsum(samples.lengths.sum(axis=1, dtype=np.int64))])
        for part in inputs:
            seen[part.name].append(np.unique(samples.keys[ends[part.first] : ends[part.last]]))
    return {name: np.unique(np.concatenate(keys)) for name, keys in seen.items()}


def write_keysets(data: Data, file_list: str, *, is_64_bit: bool, per_table: bool = False) -> list[Path]:
    """Write the keyset of a file list beside it, and return the files.

    Args:
        data: the data layer.
        file_list: ``file_list.0.txt`` has ``file_list.0.keyset``.
        is_64_bit: of keys.
        per_table: a file for each sparse input: ``file_list.0.wide_data.keyset``.
    """
    keys = keys_of(data, file_list, is_64_bit=is_64_bit)
    path = Path(file_list)
    if not per_table:
        keys = {"": np.concatenate(list(keys.values()))}
    written = {path.with_suffix(f".{name}.keyset" if name else ".keyset"): own for name, own in keys.items()}
    for place, own in written.items():
        write_keyset(place, own, is_64_bit=is_64_bit)
    return list(written)
