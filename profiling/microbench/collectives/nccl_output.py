"""Read what nccl-tests prints, and what it writes with -J; nothing here runs anything.

Formats: nccl-tests 2.13 to 2.19, src/common.cu and src/util.cu.
A row is size, count, type, redop, root, then (time, algbw, busbw, #wrong) out of place and in place; from 2.19 -I adds
four columns to each. Columns are recognised by the header, so one that a version adds does not shift another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from microbench.collectives.errors import CollectiveError, last_lines

NOT_CHECKED = "N/A"
WRONG_COLUMNS = ("#wrong", "error")
FAILURE = re.compile(
    r"Test (NCCL|CUDA) failure|Test failure|Invalid number of GPUs|# error: \S|\bABORT\b", re.IGNORECASE
)
DEVICE = re.compile(r"#\s+Rank\s+(\d+) .*? on\s+(\S+) device\s+(\d+) \[([^\]]+)\] (.+)")
VERSION = re.compile(r"# nccl-tests version (\S+) .*nccl-library=(\d+)")
CONCLUDED = "Out of bounds values"


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size, out of place.

    Attributes:
        total_bytes: S of nccl-tests.
        time_us: mean of one call over iterations and ranks.
        algorithm_gb_per_s: as printed.
        bus_gb_per_s: as printed.
        wrong: elements with a wrong value, out of place and in place together; None where neither was checked.
        samples_us: every iteration, where -I was given with -J.
    """

    total_bytes: int
    time_us: float
    algorithm_gb_per_s: float
    bus_gb_per_s: float
    wrong: int | None
    samples_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclRun:
    """One run of one binary.

    Attributes:
        rows: one per size.
        devices: (rank, host, device index on it, GPU) of each rank that the binary lists.
        version: of nccl-tests; empty before 2.17, which did not print it.
        nccl: number of the NCCL library, e.g. 22706.
    """

    rows: tuple[NcclRow, ...]
    devices: tuple[tuple[int, str, int, str], ...]
    version: str = ""
    nccl: str = ""


def failure_in(line: str) -> bool:
    """Return whether a line says that the run failed."""
    return FAILURE.search(line) is not None


def columns_of(line: str) -> list[str] | None:
    """Return the column names if the line is the header of the table."""
    words = line.lstrip("# ").split()
    return words if line.startswith("#") and words[:2] == ["size", "count"] and "time" in " ".join(words) else None


def _count_wrong(judged: Sequence[float | None]) -> int | None:
    counts = [round(value) for value in judged if value is not None]
    return sum(counts) if counts else None


def row_of(line: str, columns: Sequence[str]) -> NcclRow | None:
    """Return a row of the table; None for any other line.

    Raises:
        CollectiveError: the line begins like a row but is torn or of another format.
    """
    words = line.split()
    if not words or not words[0].isdigit() or not line.startswith(" "):
        return None
    first = columns.index("time") if "time" in columns else columns.index("cputime")
    try:
        total, values = int(words[0]), words[first:]
        if len(values) < len(columns) - first:
            raise ValueError(f"{len(words)} values for {len(columns)} columns")
        time_us, algorithm, bus = (float(value) for value in values[:3])
        judged = [value for name, value in zip(columns[first:], values, strict=False) if name in WRONG_COLUMNS]
        wrong = _count_wrong([None if value == NOT_CHECKED else float(value) for value in judged])
    except ValueError as error:
        raise CollectiveError(f"nccl-tests printed a row that cannot be read ({error}): {line.strip()}") from None
    return NcclRow(total, time_us, algorithm, bus, wrong)


def check(row: NcclRow) -> NcclRow:
    """Return the row if its values were right.

    Raises:
        CollectiveError: an element was wrong, or the time is not one.
    """
    if row.wrong:
        raise CollectiveError(
            f"nccl-tests found {row.wrong} wrong elements at {row.total_bytes} bytes; its times mean nothing"
        )
    if not row.time_us > 0.0:
        raise CollectiveError(
            f"nccl-tests printed {row.time_us} µs at {row.total_bytes} bytes; a call takes more than 0 µs"
        )
    return row


def parse_text(text: str) -> NcclRun:
    """Read a whole run's standard output.

    Raises:
        CollectiveError: empty, truncated, failed, or with wrong elements; the message ends with the last lines.
    """
    lines = text.splitlines()
    columns: list[str] | None = None
    rows: list[NcclRow] = []
    for line in lines:
        if failure_in(line):
            raise CollectiveError(f"nccl-tests failed: {last_lines(lines)}")
        columns = columns_of(line) or columns
        row = row_of(line, columns) if columns else None
        if row:
            rows.append(check(row))
    if not rows:
        raise CollectiveError(f"nccl-tests printed no row: {last_lines(lines)}")
    if not any(CONCLUDED in line for line in lines):
        raise CollectiveError(f"nccl-tests ended before its summary: {last_lines(lines, 1)}")
    found = [match for line in lines if (match := DEVICE.match(line))]
    version = next((match for line in lines if (match := VERSION.match(line))), None)
    return NcclRun(
        tuple(rows),
        tuple((int(m[1]), m[2], int(m[3]), m[5].strip()) for m in found),
        version[1] if version else "",
        version[2] if version else "",
    )


def without_environment(document: dict[str, Any]) -> dict[str, Any]:
    """Return what -J wrote without ``env``: it holds the whole environment, tokens and passwords with it."""
    return {key: value for key, value in document.items() if key != "env"}


def _json_row(result: dict[str, Any]) -> NcclRow:
    timed = result["out_of_place"]
    samples = (result.get("out_of_place_per_iter") or {}).get("times_us", ())
    return NcclRow(
        int(result["size"]),
        float(timed["time"] if "time" in timed else timed["cpu_time"]),
        float(timed["alg_bw"]),
        float(timed["bus_bw"]),
        _count_wrong([part["nwrong"] for part in (timed, result.get("in_place")) if part]),
        tuple(float(us) for us in samples),
    )


def parse_json(text: str) -> NcclRun:
    """Read what -J wrote.

    Raises:
        CollectiveError: not JSON, truncated, without results, failed, or with wrong elements.
    """
    try:
        document = without_environment(json.loads(text))
        if not document.get("results"):
            said = document.get("errors") or ["it holds no results; without a GPU it never has any"]
            raise CollectiveError(f"nccl-tests failed: {last_lines([str(line) for line in said])}")
        rows = tuple(check(_json_row(result)) for result in document["results"])
        if "out_of_bounds" not in document:
            raise CollectiveError(f"nccl-tests ended before its summary, after {len(rows)} rows")
        listed = document.get("config", {}).get("devices", ())
        devices = tuple((int(d["rank"]), str(d["hostname"]), int(d["device"]), str(d["device_info"])) for d in listed)
    except (json.JSONDecodeError, AttributeError) as error:
        raise CollectiveError(f"nccl-tests wrote no whole JSON document ({error}); the run was cut off") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CollectiveError):
            raise
        raise CollectiveError(
            f"nccl-tests wrote JSON of another format: {error!r} is missing or of the wrong kind"
        ) from None
    return NcclRun(rows, devices, nccl=str(document.get("nccl_version", "")))
