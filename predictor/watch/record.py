"""A watched run as a row of a CSV of runs, which ``calibrate`` and ``verify`` read."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole
from predictor.core.predict.inputs import Configuration, completed_form
from predictor.watch.health import Health

SECTIONS = ("model", "parallelism", "training")


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Return the keys of a section, dotted, as cells of a table."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}", inner)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _system(configuration: Configuration, content: Mapping[str, Any], folder: Path) -> str:
    """Return the system's name, or its path from the table's folder."""
    name = str(content["system"])
    place = configuration.base / name
    return os.path.relpath(place, folder) if place.exists() else name


def _row(configuration: Configuration, folder: Path, cells: Mapping[str, str]) -> dict[str, str]:
    """Return a run as a row of a table in a folder: its own cells, and every key of its configuration."""
    content = completed_form(configuration).content
    keys = dict(pair for section in SECTIONS if section in content for pair in _flat(section, content[section]))
    return {**cells, "system": _system(configuration, content, folder), **keys}


def _read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none of a file that is not there yet.

    Raises:
        ConfigError: it is no table of runs.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except FileNotFoundError:
        return []
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"--record {path} is no CSV in UTF-8: {error}") from None
    if columns and not {"name", "seconds"} <= set(columns):
        raise ConfigError(f"--record {path} has columns {', '.join(columns)}; a table of runs has name and seconds")
    if any(None in cells or None in cells.values() for cells in rows):
        raise ConfigError(f"--record {path} has lines without the {len(columns)} cells of the first; mend or rename it")
    return rows


def record_run(
    path: Path, configuration: Configuration, name: str, source: str, health: Health, contradictions: Sequence[str]
) -> None:
    """Add a run's usual step to a table.

    Raises:
        ConfigError: the run has no usual step yet, its log contradicts the configuration, or the file is no table or
            cannot be written.
    """
    if health.median_s is None:
        raise ConfigError(f"--record {path}: {name} has no timed step yet")
    if contradictions:
        raise ConfigError(
            f"--record {path}: {contradictions[0]} A row would be wrong; name the run's own configuration"
        )
    cells = {
        "name": name,
        "seconds": f"{health.median_s:.6g}",
        "statistic": f"median of usual steps up to {health.last_step}",
        "source": source,
    }
    try:
        _add(path, _row(configuration, path.resolve().parent, cells))
    except OSError as error:
        raise ConfigError(f"--record {path}: {error.strerror or error}") from None


def _add(path: Path, added: Mapping[str, str]) -> None:
    """Add a row to a table, with the columns that it needs; an earlier row of the same run is replaced.

    Raises:
        ConfigError: the file is no table of runs.
        OSError: it cannot be written.
    """
    same = added["name"], added["source"]
    rows = [cells for cells in _read(path) if (cells["name"], cells.get("source", "")) != same]
    columns = list(dict.fromkeys([*(key for cells in rows for key in cells), *added]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, added])
    write_whole(path, text.getvalue())
