"""Parse the text output of nccl-tests and the JSON of -J; nothing here runs anything.

Formats: nccl-tests 2.0 to 2.20, src/common.cu and src/util.cu, checked against the outputs in tests/data/nccl_tests.
A row is size, count, type, redop, root, then (time, algbw, busbw, #wrong) out of place and in place; from 2.19 -I adds
four columns to each. Columns are recognised by the header, so one that a version adds does not shift another. Up to
2.12 there is no root beside a redop, a redop that is none is left blank, and « error » is the largest relative
difference, not a number of elements: there the summary alone says whether the values were right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from microbench.collectives.errors import CollectiveError, last_lines

NOT_CHECKED = "N/A"
COUNTED, NOT_COUNTED = "#wrong", "error"  # with the second, only the summary judges the values
TIMESTAMP = "timestamp"  # -S: one column, two words
FAILURE = re.compile(
    r"Test (NCCL|CUDA) failure|(NCCL|Cuda) failure \S+\.cu:\d+|Test failure|Test timeout|Invalid number of GPUs"
    r"|# error: \S|^ABORT: "
)
DEVICE = re.compile(r"#\s+Rank\s+(\d+) .*? on\s+(\S+)\s+device\s+\d+ \[[^\]]+\] .")
VERSION = re.compile(r"# nccl-tests version (\S+) .*nccl-library=(\d+)")
LIBRARY = re.compile(r"NCCL version (\S+)")  # NCCL's own line, which tells it where nccl-tests does not
UNKNOWN_TYPE = re.compile(r"invalid type (\S+), defaulting to (\S+)")
REDUCED = re.compile(r"# Reducing maxBytes to (\d+) due to memory limitation")
OUT_OF_MEMORY = re.compile(r"cuda failure .*'out of memory'", re.IGNORECASE)  # its own line, or NCCL's warning
CONCLUDED = re.compile(r"# Out of bounds values : (\d+) (OK|FAILED)")
# How mpirun (--tag-output) and srun (--label) mark which rank a line is of.
LAUNCHER_MARK = re.compile(r"^\s*(?:\[[^\]]*\d+,\d+\]<std(?:out|err)>:|\d+: )")


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size, out of place.

    Attributes:
        total_bytes: S of nccl-tests.
        time_us: mean of one call over iterations and ranks.
        bus_gb_per_s: as printed.
        wrong: elements with a wrong value, out of place and in place together; None where neither was checked.
        samples_us: every iteration, where -I was given with -J.
    """

    total_bytes: int
    time_us: float
    bus_gb_per_s: float
    wrong: int | None
    samples_us: tuple[float, ...] = ()


def unmarked(line: str) -> str:
    """Return a line without its launcher's mark.

    >>> unmarked("[1,0]<stdout>:#  size"), unmarked("0:    1024  256"), unmarked("   1024   256")
    ('#  size', '   1024  256', '   1024   256')
    """
    return LAUNCHER_MARK.sub("", line, count=1)


def most_bytes_in(line: str) -> int | None:
    """Return the largest S that a run goes up to, if the line says that the GPU's memory limits it."""
    match = REDUCED.match(line)
    return int(match[1]) if match else None


def check_type(line: str) -> None:
    """Check that a line does not report an unknown type; the run would continue with another type.

    Raises:
        CollectiveError: it says so.
    """
    match = UNKNOWN_TYPE.search(line)
    if match:
        raise CollectiveError(
            f"nccl-tests does not know {match[1]} and would measure {match[2]}: it was built against an NCCL or CUDA "
            "without it; rebuild it, or ask for --precision fp16, which has as many bytes as bf16"
        )


def columns_of(line: str) -> list[str] | None:
    """Return the column names if the line is the header of the table."""
    words = line.lstrip("# ").split()
    return words if line.startswith("#") and words[:2] == ["size", "count"] and "time" in " ".join(words) else None


def _count_wrong(judged: Iterable[float | None]) -> int | None:
    counts = [round(value) for value in judged if value is not None]
    return sum(counts) if counts else None


def _values(words: Sequence[str], columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of a row by column name, from the first time on.

    Raises:
        ValueError: a word is missing.
    """
    first = columns.index("time") if "time" in columns else columns.index("cputime")
    names = [name for name in columns[first:] if name != TIMESTAMP]
    # « redop » alone is blank where there is none; beside « root » it says none.
    blank = "redop" in columns and "root" not in columns and _is_number(words[columns.index("redop") : first])
    begin = first - blank
    expected = begin + len(names) + 2 * (TIMESTAMP in columns)
    if len(words) < expected:
        raise ValueError(f"{len(words)} values for {expected} columns")
    values: dict[str, list[str]] = {}
    for name, word in zip(names, words[begin:], strict=False):
        values.setdefault(name, []).append(word)
    return values


def _is_number(words: Sequence[str]) -> bool:
    return bool(words) and words[0].replace(".", "").replace("e+", "").isdigit()


def _begins_row(line: str, words: Sequence[str]) -> bool:
    """Return whether a line is a row, or the beginning of one: sizes of 12 digits fill their column to the margin."""
    if not words or not words[0].isdigit():
        return False
    return line.startswith(" ") or (len(words) > 2 and words[1].isdigit() and words[2].isidentifier())


def row_of(line: str, columns: Sequence[str]) -> NcclRow | None:
    """Return a row of the table; None for any other line.

    Raises:
        CollectiveError: the line begins like a row but is torn or of another format.
    """
    words = line.split()
    if not _begins_row(line, words):
        return None
    try:
        values = _values(words, columns)
        time_us, bus = (float(values[name][0]) for name in ("time" if "time" in values else "cputime", "busbw"))
        wrong = _count_wrong(None if word == NOT_CHECKED else float(word) for word in values.get(COUNTED, ()))
        for word in values.get(NOT_COUNTED, ()):
            if word != NOT_CHECKED:
                float(word)
    except (ValueError, KeyError) as error:
        raise CollectiveError(f"nccl-tests printed a row that cannot be read ({error}): {line.strip()}") from None
    return NcclRow(int(words[0]), time_us, bus, wrong)


def concluded_in(line: str) -> bool:
    """Return whether a line is the summary of a run whose values were right.

    Raises:
        CollectiveError: it says that they were not.
    """
    match = CONCLUDED.match(line)
    if match and match[2] != "OK":
        raise _wrong_results(match[1])
    return match is not None


def _wrong_results(count: object) -> CollectiveError:
    return CollectiveError(f"nccl-tests found wrong elements in {count} of its results; its times mean nothing")


def check(row: NcclRow) -> NcclRow:
    """Return the row if its values were right.

    Raises:
        CollectiveError: an element was wrong, or the time is not positive.
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


def device_in(line: str) -> tuple[int, str] | None:
    """Return (rank, host) of a line that lists one."""
    match = DEVICE.match(line)
    return (int(match[1]), match[2]) if match else None


def _json_row(result: dict[str, Any]) -> NcclRow:
    timed = result["out_of_place"]
    samples = (result.get("out_of_place_per_iter") or {}).get("times_us", ())
    return NcclRow(
        int(result["size"]),
        float(timed["time"] if "time" in timed else timed["cpu_time"]),
        float(timed["bus_bw"]),
        _count_wrong([part["nwrong"] for part in (timed, result.get("in_place")) if part]),
        tuple(float(us) for us in samples),
    )


def parse_json(text: str) -> list[NcclRow]:
    """Return the rows of a document that -J wrote.

    Raises:
        CollectiveError: not JSON, truncated, without results, failed, or with wrong elements.
    """
    try:
        document = json.loads(text)
        if not document.get("results"):
            errors = document.get("errors") or ["it holds no results; without a GPU it never has any"]
            raise CollectiveError(f"nccl-tests failed: {last_lines(map(str, errors))}")
        rows = [check(_json_row(result)) for result in document["results"]]
        if "out_of_bounds" not in document:
            raise CollectiveError(f"nccl-tests ended before its summary, after {len(rows)} rows")
        if document["out_of_bounds"]["okay"] == "false":
            raise _wrong_results(document["out_of_bounds"]["count"])
    except CollectiveError:
        raise
    except (json.JSONDecodeError, AttributeError) as error:
        raise CollectiveError(f"nccl-tests wrote no whole JSON document ({error}); the run was cut off") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CollectiveError(
            f"nccl-tests wrote JSON of another format: {error!r} is missing or of the wrong kind"
        ) from None
    return rows
