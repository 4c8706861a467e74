"""Runs of others: a CSV of configurations and of the seconds that a step took."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from predictor.core.base.errors import ConfigError, PublishedError, nearest
from predictor.core.plan.loading import read_config
from predictor.core.schema.merging import merged
from predictor.evidence.verification.answer import Failed, Verification
from predictor.evidence.verification.configurations import Configured, configured
from predictor.evidence.verification.measured import MeasuredStep
from predictor.evidence.verification.runs import verified

OWN = ("name", "seconds", "statistic", "source", "config", "num_gpus")
REQUIRED = ("name", "seconds")
TOP = ("system", "from")
SECTIONS = ("model", "parallelism", "training")


def _value(text: str) -> Any:
    """Return a cell as YAML would read it: a switch, a number, a list, or text.

    >>> _value("8"), _value("1e-4"), _value("true"), _value("[11, 12]"), _value("bf16")
    (8, 0.0001, True, [11, 12], 'bf16')
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float, json.loads):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_columns(path: Path, columns: list[str]) -> None:
    for name in REQUIRED:
        if name not in columns:
            raise ConfigError(f"{path} has no column {name}; it has {', '.join(columns) or 'none'}")
    for column in columns:
        section, _, key = column.partition(".")
        if column not in (*OWN, *TOP) and not (section in SECTIONS and key):
            close = nearest(column, (*OWN, *TOP))
            raise ConfigError(
                f"{path}: column {column} is not known.{close} Columns are {', '.join((*OWN, *TOP))} and keys of a "
                "configuration such as model.num_layers"
            )


def _content(row: dict[str, str], path: Path) -> tuple[dict[str, Any], Path]:
    """Return the configuration of a row, its keys over those of its file, and the folder its paths are relative to."""
    content: dict[str, Any] = {}
    base = path.resolve().parent
    if row.get("config"):
        content, base = read_config(base / row["config"])
    own: dict[str, Any] = {}
    for column, cell in row.items():
        if column in OWN or not cell:
            continue
        *sections, key = column.split(".")
        place = own
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = _value(cell) if sections else cell
    return merged(content, own), base


def _number(row: dict[str, str], column: str, where: str) -> float:
    """Return a positive number of a row."""
    try:
        number = float(row[column])
    except ValueError:
        number = -1.0
    if not isfinite(number) or number <= 0.0:
        raise ConfigError(f"{where}: {column} is {row[column]!r}; expected a number above 0")
    return number


def _rows(path: Path) -> list[tuple[str, dict[str, str]]]:
    """Return every row of a table with what messages call it."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        try:
            reader = csv.DictReader(stream, strict=True)
            columns = list(reader.fieldnames or ())
            _check_columns(path, columns)
            lines = [(f"{path}, line {reader.line_num}", row) for row in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no CSV in UTF-8: {error}") from None
    if not lines:
        raise ConfigError(f"{path} has no runs, only columns")
    for where, cells in lines:
        if None in cells or None in cells.values():
            raise ConfigError(f"{where}: it does not have {len(columns)} cells as the first line has")
    return [(where, {column: cell.strip() for column, cell in cells.items()}) for where, cells in lines]


def _timed(
    where: str, row: dict[str, str], seconds: float, path: Path, system: str | None
) -> tuple[Configured, MeasuredStep]:
    """Return a row's configuration, and what it took."""
    content, base = _content(row, path)
    configuration = configured(f"{where} ({row['name']})", content, base, system)
    step = MeasuredStep(
        table=row.get("source") or path.stem,
        name=row["name"],
        seconds=seconds,
        num_gpus=int(_number(row, "num_gpus", where)) if row.get("num_gpus") else configuration.num_gpus,
        config=configuration.content,
        statistic=row.get("statistic", ""),
    )
    return configuration, step


Row = TypeVar("Row")
Errors = list[tuple[str, ConfigError | PublishedError]]


def read_table(
    path: Path, system: str | None, read: Callable[[Configured, MeasuredStep], Row]
) -> tuple[list[Row], Errors]:
    """Read every row of a table; errors of those that cannot be predicted are told apart, by the row's name.

    Args:
        path: of the table.
        system: that predicts, instead of the rows' own.
        read: what becomes of a row.

    Raises:
        ConfigError: a column or a time is not what it must be, or no row can be predicted; the message names the line.
        PublishedError: no row can be predicted.
        OSError: the file, or one that it names, cannot be read.
    """
    timed = [(where, row, _number(row, "seconds", where)) for where, row in _rows(path)]
    rows: list[Row] = []
    errors: Errors = []
    for where, row, seconds in timed:
        try:
            rows.append(read(*_timed(where, row, seconds, path, system)))
        except (ConfigError, PublishedError) as error:
            errors.append((row["name"], error))
    if not rows:
        raise errors[0][1]
    return rows, errors


def verified_table(path: Path, system: str | None) -> Verification:
    """Compare every row of a table with its prediction; errors as ``read_table``."""
    runs, errors = read_table(path, system, verified)
    return Verification(tuple(runs), tuple(Failed.of(name, error) for name, error in errors))
