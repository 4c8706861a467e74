"""The files of a data set, in order, whatever their format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hugectr.data.file_list import read_file_list
from hugectr.data.norm import NormFile
from hugectr.data.parquet import Metadata, ParquetFile, read_metadata
from hugectr.data.raw import RawFile
from hugectr.data.samples import SampleFile, layout_of
from hugectr.exceptions import HugeCtrError
from predictor.recommender.hugectr.sections import Data


class Source(NamedTuple):
    """A data set.

    Attributes:
        name: file list or file.
        files: that open its files, in order.
    """

    name: str
    files: tuple[Callable[[], SampleFile], ...]


def open_source(data: Data, name: str, *, is_64_bit: bool, num_samples: int | None = None) -> Source:
    """Return the files of a data layer's format.

    Args:
        data: the data layer.
        name: file list, or Raw file.
        is_64_bit: keys have 64 bits.
        num_samples: of a Raw file; None: as many as it holds.

    Raises:
        HugeCtrError: the format has no keys of that width.
        DataError: a list, its files or their metadata are missing, or a Raw file is torn.
    """
    check_key_width(data, is_64_bit)
    path, layout = Path(name), layout_of(data)
    if data.format == "Raw":
        file = RawFile(path, layout, is_float=data.float_label_dense, num_samples=num_samples)
        return Source(name, (lambda: file,))
    paths = read_file_list(path)
    if data.format == "Norm":
        opened = partial(NormFile, layout=layout, is_64_bit=is_64_bit, asks_check=data.check == "Sum")
        return Source(name, tuple(partial(opened, path) for path in paths))
    metadata: dict[Path, Metadata] = {
        folder: read_metadata(folder, layout) for folder in dict.fromkeys(path.parent for path in paths)
    }
    return Source(name, tuple(partial(ParquetFile, path, layout, metadata[path.parent]) for path in paths))


def check_key_width(data: Data, is_64_bit: bool) -> None:
    """Check that a format has such keys.

    Raises:
        HugeCtrError: Raw data have 32-bit keys alone, Parquet data 64-bit ones.
    """
    if data.format == "Raw" and is_64_bit:
        raise HugeCtrError("i64_input_key is true; Raw data have 32-bit keys: set it to false (input_key_type I32)")
    if data.format == "Parquet" and not is_64_bit:
        raise HugeCtrError("i64_input_key is false; Parquet data have 64-bit keys: set it to true (input_key_type I64)")
