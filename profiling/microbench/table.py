"""The measurement table: one CSV per operator or collective, precision and worker, and its provenance beside it.

``<results>/{operator,collective}/<name>_<precision>.<worker>.csv``; the columns are the catalogue's dimensions, then
``COLUMNS``. Rows are only ever appended, the rows of one call in one write that is synced to the disk, so a killed run
leaves at most one torn call at the end. A resumed run removes it; no other reader accepts a torn table. A call
that failed is tried again by the next run; its new rows follow, and the last ones count.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import BinaryIO

from microbench.errors import TableError
from microbench.provenance import (
    Identity,
    Provenance,
    Session,
    difference,
    now,
    provenance_path,
    read_provenance,
    write_provenance,
)
from microbench.rows import COLUMNS, Measurement, Status, from_line, header, interquartile_range, to_line
from predictor.core.costs.operator import Shape

SYNC_S = 1.0  # between two waits for the disk, milliseconds each: a survey of nine minutes has 4,860 calls

__all__ = ["COLUMNS", "Measurement", "Status", "Table", "Writer", "read_table", "read_tables", "table_path"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that was read: its rows and how they were obtained."""

    path: Path
    provenance: Provenance
    rows: tuple[Measurement, ...]


def table_path(results: Path, kind: str, name: str, precision: str, worker: str) -> Path:
    """Return the path of a table below a results folder."""
    return results / kind / f"{name}_{precision}.{worker}.csv"


def _parse_all(path: Path, content: bytes, identity: Identity) -> list[Measurement]:
    """Read a whole table, header first.

    Raises:
        TableError: the header, a row or the number of times that a call occurs is wrong.
    """
    first = header(identity.dimensions)
    if not content.startswith(first):
        columns = content.split(b"\n", 1)[0].decode(errors="replace")
        raise TableError(f"{path}: columns are {columns[:120]!r}; expected {first.decode().strip()!r}")
    rows: list[Measurement] = []
    for number, line in enumerate(content[len(first) :].decode(errors="replace").splitlines(), start=2):
        try:
            rows.append(from_line(line, identity.dimensions))
        except (ValueError, TypeError, csv.Error) as error:
            raise TableError(f"{path}, line {number}: not a measurement: {error}") from None
    timed = [(row.shape, row.direction) for row in rows if row.status.is_timed]
    if len(set(timed)) != len(timed):
        raise TableError(f"{path}: a call is there twice; the table was put together from two runs")
    return rows


def _last_of_each(rows: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return the rows that count: of a call that was tried again, those of the last try."""
    return tuple({(row.shape, row.direction): row for row in rows}.values())


def read_table(path: Path) -> Table:
    """Read one table.

    Raises:
        TableError: no provenance, another schema, a damaged row, or a torn end (the run was killed, or still goes on).
    """
    provenance = read_provenance(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    if not content.endswith(b"\n"):
        raise TableError(f"{path}: the last row is half written; run the same measurement again, which completes it")
    return Table(path, provenance, _last_of_each(_parse_all(path, content, provenance.identity)))


def _whole_calls(path: Path, content: bytes, identity: Identity) -> tuple[list[Measurement], int]:
    """Return the rows of all whole calls, and the bytes that they and the header take.

    Raises:
        TableError: what stands before a torn end is damaged.
    """
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    rows = _parse_all(path, b"".join(lines), identity)
    torn = sum(row.shape == rows[-1].shape for row in rows) % len(identity.directions) if rows else 0
    return rows[: len(rows) - torn], sum(map(len, lines[: len(lines) - torn]))


def cut_torn(path: Path) -> None:
    """Cut off the call that a killed run left torn at a table's end, so that the table can be read.

    Raises:
        TableError: the table is damaged otherwise.
    """
    identity, content = read_provenance(path).identity, path.read_bytes()
    if header(identity.dimensions).startswith(content):
        path.write_bytes(header(identity.dimensions))
        return
    _, kept = _whole_calls(path, content, identity)
    if kept < len(content):
        os.truncate(path, kept)


def read_tables(results: Path, kind: str) -> list[Table]:
    """Read every table of one kind (operator or collective) below a results folder.

    Raises:
        TableError: one of them cannot be read.
    """
    return [read_table(path) for path in sorted((results / kind).glob("*.csv"))]


class Writer:
    """Appends to one table and holds its lock; use it in a ``with`` statement.

    >>> with Writer(table_path(...), identity, session) as table:            # doctest: +SKIP
    ...     for shape in shapes:
    ...         if not table.has(shape):                                 # measured, in all its directions
    ...             table.append([Measurement(...), ...])     # all directions of one call together
    """

    def __init__(self, path: Path, identity: Identity, session: Session) -> None:
        """Keep the table's path, identity and session; no file is touched before ``__enter__``."""
        self.path = path
        self._identity = identity
        self._session = session
        self._rows: dict[Shape, list[Measurement]] = {}
        self._stream: BinaryIO | None = None
        self._earlier: tuple[Session, ...] = ()
        self._synced = 0.0

    def __enter__(self) -> Writer:
        """Lock the table, cut off what a killed run left torn, and record the session.

        Raises:
            TableError: another process writes it, it is of another device or configuration, or it is not writable.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
            self._lock()
            self._resume()
            self._record(self._session)
        except OSError as error:
            self._close()
            raise TableError(f"{error.filename or self.path}: {error.strerror}") from None
        except TableError:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; a session that was not ``finish``ed stays without an end."""
        self._close()

    @property
    def rows(self) -> tuple[Measurement, ...]:
        """Return the content of the table."""
        return tuple(row for rows in self._rows.values() for row in rows)

    def has(self, shape: Shape) -> bool:
        """Return whether a call was measured already, in all its directions."""
        rows = self._rows.get(shape, ())
        return bool(rows) and all(row.status.is_timed for row in rows)

    def failed(self, shape: Shape) -> bool:
        """Return whether a call was tried before and has no time."""
        return shape in self._rows and not self.has(shape)

    def append(self, rows: Iterable[Measurement]) -> None:
        """Add the rows of one call, all directions together: the death of this process loses none of them.

        A call that fails as it did before is not written again. The disk is waited for once in ``SYNC_S``, so that the
        death of the machine costs no more than that.

        Raises:
            TableError: the disk is full or gone; everything appended before is kept.
        """
        assert self._stream is not None
        added = list(rows)
        shape = added[0].shape
        assert {row.direction for row in added} == set(self._identity.directions), "a call is one row per direction"
        assert not self.has(shape), f"{shape} is there already"
        if [(row.status, row.kernel) for row in self._rows.get(shape, ())] == [
            (row.status, row.kernel) for row in added
        ]:
            return
        content = "".join(map(to_line, added)).encode()
        end = self._stream.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(content):
                written += self._stream.write(content[written:])
            if time.monotonic() - self._synced > SYNC_S:
                self._sync()
        except OSError as error:
            self._stream.truncate(end)
            raise TableError(f"{self.path}: {error.strerror}; the {len(self.rows)} rows so far are kept") from None
        self._rows[shape] = added

    def note_reference(self, *us: float) -> None:
        """Add times of the reference kernel to the session; ``finish`` records them."""
        times = (*self._session.reference_us, *(round(each, 3) for each in us))
        self._session = self._session.model_copy(update={"reference_us": times})

    def finish(self, state_after: dict[str, str]) -> None:
        """Record that the session ended in order, in which state, and how noisy its rows are.

        Raises:
            TableError: the disk is full or gone; every row is kept.
        """
        spreads = [
            interquartile_range(row.best_samples_us) / median(row.best_samples_us)
            for row in self.rows
            if row.samples_us and median(row.best_samples_us) > 0.0
        ]
        update = {
            "finished": now(),
            "state_after": state_after,
            "relative_spread": round(median(spreads), 4) if spreads else None,
        }
        try:
            self._sync()
            self._record(self._session.model_copy(update=update))
        except OSError as error:
            raise TableError(f"{provenance_path(self.path)}: {error.strerror}; every row is kept") from None

    def _lock(self) -> None:
        import fcntl  # tables are written on Unix only, but read anywhere

        assert self._stream is not None
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableError(
                f"{self.path}: another run is writing it; wait for it, or give this one another shard"
            ) from None

    def _resume(self) -> None:
        """Read what is there, cut off a torn end, and write the header where there is none."""
        assert self._stream is not None
        content = self._stream.read()
        first = header(self._identity.dimensions)
        if first.startswith(content):  # nothing yet, or killed while the header was written
            self._stream.truncate(0)
            self._stream.seek(0)
            self._stream.write(first)
            os.fsync(self._stream.fileno())
            return
        provenance = read_provenance(self.path)
        changed = difference(provenance.identity, self._identity)
        if changed:
            raise TableError(f"{self.path}: {changed}; measure into another results folder")
        self._earlier = provenance.sessions
        rows, kept = _whole_calls(self.path, content, self._identity)
        self._rows = {}
        for row in _last_of_each(rows):
            self._rows.setdefault(row.shape, []).append(row)
        if kept < len(content):
            self._stream.truncate(kept)
            os.fsync(self._stream.fileno())

    def _sync(self) -> None:
        assert self._stream is not None
        os.fsync(self._stream.fileno())
        self._synced = time.monotonic()

    def _record(self, session: Session) -> None:
        write_provenance(self.path, Provenance(identity=self._identity, sessions=(*self._earlier, session)))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
