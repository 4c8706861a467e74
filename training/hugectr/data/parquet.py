"""Parquet: files of one column per label, dense feature and slot, read and written.

``_metadata.json`` beside the files says which columns are labels, dense features and slots, each with its index in the
file; features are taken in the order of their indices, as HugeCTR takes them. Every slot holds one key.

Source: HugeCTR, "Configuration File Setup", Parquet; NVTabular writes such files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hugectr.data.samples import SampleLayout, Samples, one_hot
from hugectr.exceptions import DataError
from predictor.core.base.files import atomic_file, write_whole
from predictor.core.base.read_yaml import first_problem

Scalar = TypeVar("Scalar", bound=np.generic)
METADATA = "_metadata.json"


class Content(BaseModel):
    """Base of what ``_metadata.json`` holds; NVTabular writes more keys than are used."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FileStats(Content):
    """Rows of one file."""

    file_name: str
    num_rows: Annotated[int, Field(ge=0)]


class Column(Content):
    """One column."""

    col_name: str
    index: Annotated[int, Field(ge=0)]


class Metadata(Content):
    """Files and columns of a folder."""

    file_stats: tuple[FileStats, ...]
    cats: tuple[Column, ...]
    conts: tuple[Column, ...]
    labels: tuple[Column, ...]

    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the names of labels, dense features and slots, each by index."""
        labels, conts, cats = (
            tuple(column.col_name for column in sorted(columns, key=lambda column: column.index))
            for columns in (self.labels, self.conts, self.cats)
        )
        return labels, conts, cats


def read_metadata(folder: Path, layout: SampleLayout) -> Metadata:
    """Return the metadata of a folder.

    Raises:
        DataError: it is missing or not of its form, or has not the columns that the configuration has.
    """
    path = folder / METADATA
    try:
        metadata = Metadata.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; Parquet data need it beside their files") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    except ValidationError as error:
        raise DataError(f"{path}: {first_problem(error)}") from None
    for name, columns, expected in (
        ("labels", metadata.labels, layout.label_dim),
        ("conts", metadata.conts, layout.dense_dim),
        ("cats", metadata.cats, layout.num_slots),
    ):
        if len(columns) != expected:
            raise DataError(f"{path}: {name} has {len(columns)} columns; the configuration has {expected}")
    return metadata


class ParquetFile:
    """One file of samples; the row groups that were read last are kept."""

    def __init__(self, path: Path, layout: SampleLayout, metadata: Metadata) -> None:
        """Open a file and check its columns.

        Raises:
            DataError: it is missing or no Parquet file, a column is missing or of another type, or the rows are not
                as many as the metadata say.
        """
        self._path, self._layout, self._columns = path, layout, metadata.columns()
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._schema = self._file.schema_arrow
        except FileNotFoundError:
            raise DataError(f"{path} does not exist") from None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is no Parquet file, or torn: {_one_line(error)}") from None
        self.num_samples = int(self._file.metadata.num_rows)
        self._check(metadata)
        groups = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._ends = np.cumsum(groups, dtype=np.int64)
        if sum(groups) != self.num_samples:
            raise DataError(f"{path}: its row groups have {sum(groups)} rows; the file says {self.num_samples}")
        self._kept: tuple[int, Samples] | None = None

    def _check(self, metadata: Metadata) -> None:
        stated = {Path(stats.file_name).name: stats.num_rows for stats in metadata.file_stats}
        rows = stated.get(self._path.name)
        if rows is None:
            raise DataError(f"{self._path.parent / METADATA}: file_stats does not have {self._path.name}")
        if rows != self.num_samples:
            raise DataError(f"{self._path} has {self.num_samples} rows; {METADATA} says {rows}")
        schema = self._schema
        labels, conts, cats = self._columns
        for names, is_allowed, expected in (
            (labels + conts, pa.types.is_floating, "float"),
            (cats, pa.types.is_int64, "int64"),
        ):
            for name in names:
                number = schema.get_field_index(name)
                if number < 0:
                    raise DataError(f"{self._path}: column {name} of {METADATA} is missing, or there twice")
                if not is_allowed(schema.field(number).type):
                    raise DataError(
                        f"{self._path}: column {name} is of type {schema.field(number).type}; expected {expected}"
                    )

    def read(self, start: int, stop: int) -> Samples:
        """Return the samples from ``start`` to before ``stop``.

        Raises:
            DataError: a value is missing, a key is out of its slot's size, or the file is torn.
        """
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        parts = []
        for group in range(first, last + 1):
            begin = int(self._ends[group - 1]) if group else 0
            end = int(self._ends[group])
            parts.append((self._group(group, begin), max(start, begin) - begin, min(stop, end) - begin))
        return _rows_of(parts, self._layout.num_slots)

    def _group(self, group: int, begin: int) -> Samples:
        """Return a row group."""
        if self._kept is not None and self._kept[0] == group:
            return self._kept[1]
        labels, conts, cats = self._columns
        try:
            table = self._file.read_row_group(group, columns=[*labels, *conts, *cats], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path}, row group {group}: torn: {_one_line(error)}") from None
        if table.num_rows != self._ends[group] - begin:
            raise DataError(
                f"{self._path}, row group {group}: {table.num_rows} rows; its metadata say {self._ends[group] - begin}"
            )
        for name in table.column_names:
            column = table.column(name)
            if column.null_count:
                row = begin + int(column.is_null().index(pa.scalar(True)).as_py())
                raise DataError(f"{self._path}, row {row}: column {name} has no value; missing values are not allowed")
        keys = _matrix(table, cats, np.int64)
        self._layout.check_keys(self._path, begin, keys)
        samples = one_hot(
            np.ascontiguousarray(_matrix(table, labels, np.float32).T),
            np.ascontiguousarray(_matrix(table, conts, np.float32).T),
            keys,
        )
        self._kept = (group, samples)
        return samples


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _matrix(table: pa.Table, names: tuple[str, ...], kind: type[Scalar]) -> NDArray[Scalar]:
    """Return columns as (columns, rows)."""
    matrix = np.empty((len(names), table.num_rows), kind)
    for number, name in enumerate(names):
        matrix[number] = table.column(name).to_numpy()
    return matrix


def _rows_of(parts: list[tuple[Samples, int, int]], num_slots: int) -> Samples:
    """Return rows of several row groups as one value."""
    return one_hot(
        np.concatenate([samples.label[first:last] for samples, first, last in parts]),
        np.concatenate([samples.dense[first:last] for samples, first, last in parts]),
        np.concatenate([samples.keys.reshape(num_slots, -1)[:, first:last] for samples, first, last in parts], axis=1),
    )


def write_parquet(folder: Path, parts: Iterable[tuple[str, Samples]], *, rows_per_group: int = 65536) -> list[Path]:
    """Write samples of one key per slot as files of the given names, and their metadata; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    stats: list[dict[str, object]] = []
    names: tuple[list[str], list[str], list[str]] = ([], [], [])
    for file_name, samples in parts:
        num_slots, num_samples = samples.lengths.shape
        names = (
            ["label"] if samples.label.shape[1] == 1 else [f"label{i}" for i in range(samples.label.shape[1])],
            [f"I{i + 1}" for i in range(samples.dense.shape[1])],
            [f"C{i + 1}" for i in range(num_slots)],
        )
        columns = [*samples.label.T, *samples.dense.T, *samples.keys.reshape(num_slots, num_samples)]
        flat = [name for group in names for name in group]
        table = pa.table(
            {name: pa.array(np.ascontiguousarray(column)) for name, column in zip(flat, columns, strict=True)}
        )
        with atomic_file(folder / file_name) as building:
            pq.write_table(table, building, row_group_size=rows_per_group, write_page_checksum=True)
        stats.append({"file_name": file_name, "num_rows": num_samples})
    labels, conts, cats = names
    places = {name: index for index, name in enumerate([*labels, *conts, *cats])}
    content = {"file_stats": stats} | {
        kind: [{"col_name": name, "index": places[name]} for name in group]
        for kind, group in (("cats", cats), ("conts", conts), ("labels", labels))
    }
    write_whole(folder / METADATA, json.dumps(content, indent=1) + "\n")
    return [folder / str(entry["file_name"]) for entry in stats]
