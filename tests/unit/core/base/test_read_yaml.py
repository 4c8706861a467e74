"""Whatever is wrong with a YAML file is one line of the reader's own kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_valid


class Sizes(BaseModel):
    model_config = ConfigDict(extra="forbid")

    smallest: float = Field(gt=0)


class SizesError(ValueError):
    """Of this test alone."""


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"),
        ("", "is empty; expected keys and values"),
        ("[1]", "holds a list; expected keys and values"),
        ("a: [", "not YAML"),
        ("smallest: 1\nsmallest: 2", "smallest is given twice"),
        ("smallest: 0", "sizes.yaml: smallest is 0: input should be greater than 0"),
        ("largest: 1", "sizes.yaml: largest is not a known key"),
        ("{}", "sizes.yaml: smallest is missing; it is required"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "sizes.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(SizesError) as caught:
        read_valid(path, Sizes, SizesError)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_becomes_a_model(tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    path.write_text("smallest: 1e-4\n", encoding="utf-8")
    assert read_valid(path, Sizes, SizesError).smallest == 1e-4
