"""The files of a command are checked before its work, and none is written where another cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.core.base.errors import ConfigError
from tests.unit.examples import full_form, write


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([("--csv", "a"), ("--write", "./a")], "--write ./a: the same command reads or writes it"),
        ([("--csv", "read.yml")], "--csv read.yml: the same command reads or writes it"),
        ([("--csv", "")], "--csv '': expected a file"),
        ([("--csv", ".")], "expected a file, not a folder"),
        ([("--csv", "absent/a")], "there is no folder"),
    ],
)
def test_files_that_cannot_be_are_refused(
    named: list[tuple[str, str | None]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_outputs(named, ["read.yml", None])
    assert said in str(caught.value)


def test_no_file_is_written_where_another_has_no_content(tmp_path: Path) -> None:
    def nothing() -> str:
        raise ConfigError("there are no arguments for this")

    first = tmp_path / "a"
    with pytest.raises(ConfigError, match="no arguments"):
        write_outputs([Output("--csv", str(first), lambda: "1"), Output("--write", str(tmp_path / "b"), nothing)])
    assert list(tmp_path.iterdir()) == []
    assert write_outputs([Output("--csv", str(first), lambda: "1"), Output("--write", None, nothing)]) == [
        f"wrote {first}, 1 bytes"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["timeline", "{config}", "--trace", "{out}", "--svg", "{out}"],
        ["search", "--model", "{config}", "--gpus", "8", "--csv", "{out}", "--write-job", "{out}.yml"],
        ["search", "--model", "{config}", "--gpus", "8", "--csv", "{out}", "--write-arguments", "{out}.sh"],
        ["report", "{config}", "--out", "{config}"],
    ],
)
def test_a_command_that_is_refused_leaves_nothing_behind(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(full_form(), tmp_path / "c.yml")
    before = config.read_bytes()
    assert main([text.format(config=config, out=tmp_path / "out") for text in arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [config]
    assert config.read_bytes() == before
