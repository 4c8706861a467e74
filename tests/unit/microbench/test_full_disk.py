"""A real file system that is full or read-only: one line, nothing measured lost, and the same command goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from microbench.errors import MeasureError, TableError
from microbench.provenance import read_provenance
from microbench.rows import Measurement
from microbench.system import write_system
from microbench.table import Writer, read_table, table_path
from tests.unit.microbench.test_table import SESSION, identity, pair

SMALL, LARGE = "64k", "4m"
CALLS = 2000


def mount(*words: str) -> None:
    """Run mount; skip the test without the permission to."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount {' '.join(words[:2])} is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 64 KiB."""
    if shutil.which("mount") is None or os.geteuid():
        pytest.skip("needs root and mount, for a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path, calls: int) -> None:
    """Measure what a table lacks, as a run does."""
    with Writer(path, identity(), SESSION) as table:
        for number in range(calls):
            if not table.has((number, 1)):
                table.append(pair((number, 1)))
        table.finish({"load": "0.2"})


def shapes(rows: tuple[Measurement, ...]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(row.shape for row in rows))


def test_a_full_disk_keeps_every_row_and_the_same_command_goes_on(small_disk: Path) -> None:
    path = table_path(small_disk, "operator", "gelu", "fp32", "0of1")
    with pytest.raises(TableError, match=r"No space left on device; the \d+ rows so far are kept"):
        fill(path, CALLS)
    kept = shapes(read_table(path).rows)
    assert 10 < len(kept) < CALLS
    with pytest.raises(TableError, match="No space left on device"):
        fill(path, CALLS)  # nor does trying again harm what is there
    assert shapes(read_table(path).rows)[: len(kept)] == kept
    mount("-o", f"remount,size={LARGE}", str(small_disk))
    fill(path, CALLS)
    assert shapes(read_table(path).rows) == [(number, 1) for number in range(CALLS)]
    assert read_provenance(path).sessions[-1].finished


def test_a_read_only_disk_is_one_line_and_what_is_there_stays_readable(small_disk: Path) -> None:
    path = table_path(small_disk, "operator", "gelu", "fp32", "0of1")
    fill(path, 5)
    mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(TableError, match="Read-only file system"):
        fill(path, 10)
    with pytest.raises(MeasureError, match=r"system\.yaml: Read-only file system"):
        write_system(small_disk, {"hardware": {}})
    assert len(shapes(read_table(path).rows)) == 5


def test_a_full_disk_takes_no_system_file_half(small_disk: Path) -> None:
    write_system(small_disk, {"hardware": {"name": "before"}})
    with pytest.raises(MeasureError, match=r"system\.yaml: No space left on device"):
        write_system(small_disk, {"hardware": {"name": "x" * 200_000}})
    assert "before" in (small_disk / "system.yaml").read_text()
