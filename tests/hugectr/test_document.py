"""Every block and every command line of docs/hugectr.md runs as written, one after another in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hugectr.__main__ import main
from predictor.__main__ import main as predict

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "hugectr.md").read_text(encoding="utf-8")
JSON = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PREDICTOR = re.findall(r"^    python -m predictor (.*)$", TEXT, re.MULTILINE)
SHELL = re.findall(r"^    python -m hugectr (.*)$", TEXT, re.MULTILINE)
NUMBER = re.compile(r"\d+\.\d+")


def run(block: str) -> None:
    exec(compile(block, "hugectr.md", "exec", dont_inherit=True), {"__name__": "block"})


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (configuration,) = JSON
    Path("dcn.json").write_text(configuration)
    assert [line.split()[0] for line in SHELL] == ["generate", "train"]
    assert main(shlex.split(SHELL[0])) == 0
    best = float(NUMBER.findall(capsys.readouterr().out)[-1])
    assert main(shlex.split(SHELL[1])) == 0
    assert "200 iterations" in capsys.readouterr().out
    training, inference, memory = PYTHON
    run(training)
    lines = [line for line in capsys.readouterr().out.splitlines() if "AUC" in line]
    aucs = [float(NUMBER.findall(line)[-1]) for line in lines]
    assert len(aucs) == 2
    assert best > aucs[-1] > 0.7
    run(inference)
    answers = capsys.readouterr().out.splitlines()
    assert [float(NUMBER.findall(line)[-1]) for line in answers] == pytest.approx([0.0, 0.5, 2 / 3])
    assert len({line.partition("]")[0] for line in answers}) == 1, "the cache changes no prediction"
    run(memory)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1%", "5%", "20%", "50%", "100%"]
    assert rows[-1][1:] == ["100.0%", "100.0%", "0", "0.00"]
    for command in PREDICTOR:
        assert predict(shlex.split(command)) == 0, command
    assert "Against HugeCTR's placement" in capsys.readouterr().out
    (command,) = re.findall(r"`python -m predictor (dcn.json --system .*--cached-share.*?)`", TEXT)
    assert predict(shlex.split(command)) == 0
    assert "most frequent 0.1 of every table's rows" in " ".join(capsys.readouterr().out.split())


def test_commands_and_documents_that_it_names_are_there() -> None:
    for name in re.findall(r"\]\((\w[\w/-]*\.md)\)", TEXT):
        assert (ROOT / "docs" / name).is_file(), name
    benches = [name.rpartition(".")[2] for name in re.findall(r"`(?:python -m tests\.hugectr\.)?(bench_\w+)[` ]", TEXT)]
    assert len(benches) == 4
    for name in benches:
        assert (ROOT / "tests" / "hugectr" / f"{name}.py").is_file(), name
