"""A problem names the line of the file where its key stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.formats import read_any
from predictor.formats.file_lines import line_of

YAML = "a:\n  size: 1\nb:\n  # size of b\n  size: 2\n  c-d: 3\n"


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        (YAML, "a.size", 2),
        (YAML, "b.size", 5),
        (YAML, "b.c_d", 6),
        (YAML, "b.other", None),
        ('{\n "x": 1,\n "y": {"z":\n 2}}', "y.z", 3),
        ("[model]\nname = 1\n[training]\nname = 2\n", "training.name", 4),
        ("python a.py \\\n  --num_layers 2 \\\n  --num-layers-x 3", "--num-layers", 2),
        ("x --a-b", "--a", None),
    ],
)
def test_line_of_a_key(text: str, key: str, line: int | None) -> None:
    assert line_of(text, key) == line


def test_every_problem_has_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{\n"train_batch_size": "x",\n"zero_optimization": {\n "stage": 7}}', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_any(path)
    told = str(caught.value)
    assert "ds.json:2: train_batch_size is 'x'; " in told
    assert "ds.json:4: zero_optimization.stage is 7; " in told
