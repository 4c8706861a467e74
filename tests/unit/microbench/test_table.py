"""A measurement table survives kills, refuses a second writer, and is not read when it cannot be trusted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from microbench.errors import TableError
from microbench.provenance import Identity, Session, provenance_path, read_provenance
from microbench.rows import DeviceState
from microbench.table import Measurement, Status, Writer, read_table, read_tables, table_path
from predictor.core.costs.operator import BOTH, Direction

SESSION = Session(started="2026-01-01T00:00:00+00:00", host="here", commit="abc", state_before={"load": "0.1"})
SHAPES = [(64, 128), (128, 128), (256, 512)]


def identity(**changes: object) -> Identity:
    fields: dict[str, object] = {
        "kind": "operator",
        "name": "gelu",
        "precision": "fp32",
        "worker": "0of1",
        "dimensions": ("tokens", "width"),
        "directions": BOTH,
        "device": "TESTCPU",
        "device_kind": "cpu",
        "driver": None,
        "versions": {"python": "3"},
        "config_hash": "0" * 64,
    }
    return Identity.model_validate(fields | changes)


def pair(shape: tuple[int, ...], us: float = 10.0) -> list[Measurement]:
    return [
        Measurement(
            shape,
            direction,
            (us, us + 1.0, us + 5.0),
            'a, "quoted"\nkernel',
            kernel_samples_us=(us - 1.0,),
            host_us=us / 2.0,
            state=DeviceState(1980.0, None, 61.0),
        )
        for direction in BOTH
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return table_path(tmp_path, "operator", "gelu", "fp32", "0of1")


def write(path: Path, shapes: list[tuple[int, int]], who: Identity | None = None) -> None:
    with Writer(path, who or identity(), SESSION) as table:
        for shape in shapes:
            if not table.has(shape):
                table.append(pair(shape))
        table.finish({"load": "0.2"})


def test_what_is_written_is_read(path: Path) -> None:
    write(path, SHAPES)
    table = read_table(path)
    assert [row.shape for row in table.rows] == [shape for shape in SHAPES for _ in BOTH]
    row = table.rows[0]
    assert (row.samples_us, row.median_us, row.spread_us) == ((10.0, 11.0, 15.0), 11.0, 2.5)
    assert (row.kernel, row.best_samples_us) == ('a, "quoted" kernel', (9.0,))
    assert (row.host_us, row.state) == (5.0, DeviceState(1980.0, None, 61.0))
    session = table.provenance.sessions[0]
    assert (session.state_before, session.state_after) == ({"load": "0.1"}, {"load": "0.2"})
    assert session.finished
    assert read_tables(path.parent.parent, "operator") == [table]


def test_a_failed_call_is_a_row_without_a_time(path: Path) -> None:
    with Writer(path, identity(), SESSION) as table:
        table.append([Measurement((1, 2), d, (), "needs 900 GB", Status.OUT_OF_MEMORY) for d in BOTH])
    assert {row.status for row in read_table(path).rows} == {Status.OUT_OF_MEMORY}


def failed(shape: tuple[int, int], reason: str) -> list[Measurement]:
    return [Measurement(shape, direction, (), reason, Status.ERROR) for direction in BOTH]


def test_a_call_that_failed_is_not_measured_and_its_last_try_counts(path: Path) -> None:
    with Writer(path, identity(), SESSION) as table:
        table.append(failed(SHAPES[0], "no kernel"))
        assert (table.has(SHAPES[0]), table.failed(SHAPES[0]), table.failed(SHAPES[1])) == (False, True, False)
        before = path.read_bytes()
        table.append(failed(SHAPES[0], "no kernel"))
        assert path.read_bytes() == before
    with Writer(path, identity(), SESSION) as table:
        table.append(failed(SHAPES[0], "another reason"))
        table.append(pair(SHAPES[0]))
        assert table.has(SHAPES[0])
        assert len(table.rows) == 2
    assert [row.status for row in read_table(path).rows] == [Status.OK] * 2
    with Writer(path, identity(), SESSION) as table:
        assert table.has(SHAPES[0])


@pytest.mark.parametrize(("cut", "shapes"), [(cut, kept) for cut in range(1, 60, 7) for kept in (1, 3)])
def test_a_kill_at_any_byte_loses_no_finished_call_and_repeats_none(path: Path, cut: int, shapes: int) -> None:
    write(path, SHAPES[:shapes])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(TableError, match="half written"):
        read_table(path)
    write(path, SHAPES)
    rows = read_table(path).rows
    assert sorted((row.shape, row.direction) for row in rows) == sorted((s, d) for s in SHAPES for d in BOTH)
    assert len(read_provenance(path).sessions) == 2


def test_a_call_torn_between_its_rows_is_measured_again(path: Path) -> None:
    write(path, SHAPES[:2])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    write(path, SHAPES[:2])
    assert path.read_bytes() == b"".join(lines)


def test_a_kill_in_the_header_starts_over(path: Path) -> None:
    write(path, [])
    path.write_bytes(path.read_bytes()[:9])
    write(path, SHAPES)
    assert len(read_table(path).rows) == 2 * len(SHAPES)


KILLED = """
import os, sys
from pathlib import Path
from tests.unit.microbench.test_table import SHAPES, SESSION, identity, pair
from microbench.table import Writer
with Writer(Path(sys.argv[1]), identity(), SESSION) as table:
    table.append(pair(SHAPES[0]))
    print("measured", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_writer_keeps_its_rows_and_its_lock_ends_with_it(
    path: Path, root: Path, number: signal.Signals
) -> None:
    sources = os.pathsep.join(map(str, (root, root / "profiling", root / "training")))
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": sources},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"measured\n"
    with pytest.raises(TableError, match="another run is writing it"):
        write(path, SHAPES)
    process.send_signal(number)
    process.communicate()
    write(path, SHAPES)
    assert len(read_table(path).rows) == 2 * len(SHAPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "OTHERCPU"}, "device was TESTCPU, is OTHERCPU"),
        ({"config_hash": "1" * 64}, "config_hash was"),
        ({"versions": {"python": "4"}}, "versions was"),
    ],
)
def test_another_machine_or_configuration_adds_no_rows(path: Path, change: dict[str, object], message: str) -> None:
    write(path, SHAPES[:1])
    with pytest.raises(TableError, match=message):
        write(path, SHAPES, identity(**change))
    assert len(read_table(path).rows) == 2


def test_a_table_without_provenance_is_not_read(path: Path) -> None:
    write(path, SHAPES)
    provenance_path(path).unlink()
    with pytest.raises(TableError, match="does not say how it was made"):
        read_table(path)
    with pytest.raises(TableError, match="does not say how it was made"):
        write(path, SHAPES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"tokens,width", b"tokens,height", "columns are"),
        (b",11.000,", b",17.000,", "not a measurement: median_us is"),
        (b",forward,", b",sideways,", "not a measurement"),
        (b"64,128,forward", b"64,forward", "not a measurement: 15 values, expected 16"),
        (b"128,128,", b"64,128,", "a call is there twice"),
        (b'"format"', b'"form"', "not a provenance file"),
    ],
)
def test_a_damaged_table_is_not_read(path: Path, old: bytes, new: bytes, message: str) -> None:
    write(path, SHAPES)
    victim = provenance_path(path) if old == b'"format"' else path
    content = victim.read_bytes()
    assert old in content
    victim.write_bytes(content.replace(old, new))
    with pytest.raises(TableError, match=message):
        read_table(path)


class _FullDisk:
    """A file on a disk that takes some bytes more and no further one."""

    def __init__(self, stream: object) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, content: bytes) -> int:
        self._stream.write(content[:20])  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_what_is_measured(path: Path) -> None:
    with Writer(path, identity(), SESSION) as table:
        table.append(pair(SHAPES[0]))
        table._stream = _FullDisk(table._stream)  # type: ignore[assignment]
        with pytest.raises(TableError, match="No space left on device; the 2 rows so far are kept"):
            table.append(pair(SHAPES[1]))
    assert len(read_table(path).rows) == 2


def test_a_folder_that_nobody_may_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "operator").write_text("a file where the folder should be")
    with pytest.raises(TableError, match="operator: "):
        write(table_path(tmp_path, "operator", "gelu", "fp32", "0of1"), SHAPES)


def test_directions_are_the_catalogues() -> None:
    assert identity(directions=["forward"]).directions == (Direction.FORWARD,)
