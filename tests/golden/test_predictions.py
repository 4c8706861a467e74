"""Published systems predict the stored numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import predictions as golden
from tests.golden.configurations import PREDICT, Configuration, configurations
from tests.golden.differences import changes, first_differences, table
from tests.golden.documents import Sections

STEP: Sections = {
    "step": {"time_us": 1e6, "source": "interpolated", "notes": 2},
    "stages": {"waiting_us": [0.25, 7.0]},
    "trace streams": {"compute": [3, 100.0]},
}


def test_predictions_equal_the_stored_predictions() -> None:
    stored = golden.stored()
    now, refused = golden.predictions(configurations())
    assert not refused, "\n".join(f"{name}: {reason}" for name, reason in refused.items())
    lines = ["", *table(stored, now), *first_differences(stored, now)]
    lines.append("if that was meant: python -m tests.golden.predictions")
    assert len(lines) == 2, "\n".join(lines)


def test_every_configuration_has_a_file_as_it_is_written() -> None:
    stored = golden.stored()
    assert {golden.file_of(name) for name in stored} == set(golden.STORED.iterdir())
    for name, sections in stored.items():
        assert golden.file_of(name).read_text(encoding="utf-8") == golden.as_text(name, sections)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("step", "time_us", 1e6 * (1 + 2e-9)),
        ("step", "source", "extrapolated"),
        ("step", "notes", 3),
        ("step", "notes", "2"),
        ("step", "fits", True),
        ("stages", "waiting_us", [0.25]),
        ("stages", "waiting_us", [0.25 * (1 + 1e-5), 7.0]),
        ("stages", "host_us", [0.0, 1e-3]),
        ("trace streams", "compute", [3, 100.01]),
        ("trace streams", "compute", [4, 100.0]),
    ],
)
def test_a_difference_is_reported(section: str, key: str, value: object) -> None:
    new = STEP | {section: STEP[section] | {key: value}}
    ((path, before, after),) = changes(STEP, new)
    assert path.startswith(f"{section} › {key}")
    assert before != after
    (line,) = table({"a run": STEP}, {"a run": new})
    assert line.startswith("a run ")
    assert line.endswith("   1 values differ")
    assert first_differences({"a run": STEP}, {"a run": new})[0].startswith(f"a run: {path}: ")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("step", "time_us", 1e6 * (1 + 5e-10)),
        ("stages", "waiting_us", [0.25 + 5e-7, 7.0]),
        ("stages", "host_us", [0.0, 0.0]),
        ("trace streams", "compute", [3, 100.0005]),
    ],
)
def test_rounding_is_no_difference(section: str, key: str, value: object) -> None:
    new = STEP | {section: STEP[section] | {key: value}}
    assert changes(STEP, new) == []
    assert table({"a run": STEP}, {"a run": new}) == []


def test_storing_shows_what_moved_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = STEP | {"step": STEP["step"] | {"time_us": 1.1e6}}
    monkeypatch.setattr(golden, "STORED", tmp_path)
    rounded = STEP | {"step": STEP["step"] | {"time_us": 1e6 * (1 + 5e-10)}}
    for name, sections in {"same": rounded, "moved": STEP, "gone": STEP}.items():
        golden.file_of(name).write_text(golden.as_text(name, sections), encoding="utf-8")
    monkeypatch.setattr(golden, "predictions", lambda _: ({"same": STEP, "moved": slower, "new": STEP}, {}))
    assert golden.store() == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["moved", "new", "gone", "moved:", "3"]
    assert printed[0].split()[1:7] == ["1.000000", "s", "->", "1.100000", "s", "+10.0000%"]
    assert golden.stored() == {"same": rounded, "moved": slower, "new": STEP}, "rounding is not written"
    golden.file_of("same").write_text("<<<<<<< ours", encoding="utf-8")
    assert golden.store() == 0
    assert "every configuration counts as new" in capsys.readouterr().err


def test_nothing_is_stored_where_a_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golden, "STORED", tmp_path / "stored")
    refused = [Configuration("odd", PREDICT, {"system": "Perlmutter", "modle": {}})]
    monkeypatch.setattr(golden, "configurations", lambda: refused)
    assert golden.store() == 1
    assert "odd: estimate-train-time: " in capsys.readouterr().err
    assert not golden.STORED.exists()
