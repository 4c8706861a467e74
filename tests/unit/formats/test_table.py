"""Every format that is read has an example, which is told by its own way alone and read."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import pytest

from predictor.formats import read_any
from predictor.formats.source import Source
from predictor.formats.table import EXAMPLES, TABLE, format_of

SHOWN = {known.name: known.example for known in TABLE if known.example}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_of_its_format_and_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / SHOWN[name].removesuffix(".txt")
    copyfile(EXAMPLES / SHOWN[name], path)
    told = format_of(Source(path))
    assert told is not None
    assert told.name == name
    read = read_any(path)
    assert read.format == name
    assert read.content


def test_every_example_belongs_to_a_format() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(SHOWN.values())


def test_every_reader_is_described() -> None:
    for known in TABLE:
        assert not known.module or (known.versions and known.documented), known.name
    assert len({known.name for known in TABLE}) == len(TABLE)
