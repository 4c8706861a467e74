"""docs/qsync-procedure.md: every command in it runs, on the sample traces, without torch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from predictor.replay.precision.operator_config import read_operators
from predictor.replay.procedure.folders import SAMPLES, Folders

ROOT = Path(__file__).resolve().parents[4]
TEXT = (ROOT / "docs" / "qsync-procedure.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in re.findall(r"^    ((?:python|bash) .*)$", TEXT, re.MULTILINE)]
SAMPLES_MAX_BYTES = 2_000_000  # smaller models take so little time that noise hides what a precision changes
MODELS = ("bert", "resnet50", "roberta", "vgg16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands find the package as in a checkout."""
    place = tmp_path_factory.mktemp("procedure")
    (place / "predictor").symlink_to(ROOT / "predictor", target_is_directory=True)
    return place


def module_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the module that a command line of Python runs, and its arguments."""
    if words[1] == "-m":
        return words[2], words[3:]
    return words[1].removesuffix(".py").replace("/", "."), words[2:]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_document_runs(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    if words[0] == "bash":
        environment = os.environ | {"PYTHON": sys.executable}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        return
    monkeypatch.chdir(folder)
    name, arguments = module_of(words)
    module = import_module(name)
    answer, parser = (
        (module.greedy_answer, module.greedy_parser) if name.endswith("algos") else (module.answer, module.parser)
    )
    assert module.run(parser(), answer, arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


def test_the_document_has_every_module_and_its_own_kernel() -> None:
    modules = {module_of(shlex.split(line))[0].rpartition(".")[2] for line in COMMANDS if line.startswith("python")}
    assert modules >= {"fwd_gen", "analyse", "cross_node_predict", "fastest_plan", "algos", "test", "config"}
    assert "casting_cost" in TEXT  # which needs torch
    block = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    assert "qsync::linear_fp32" in block[1]


def test_the_kernel_of_the_document_is_complete(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    own = tmp_path / "config.yaml"
    own.write_text(block[1])
    config = read_operators(own)
    assert config.is_changeable("qsync::linear_fp32")
    assert config.of(config.aten_op_to_bwd_mapper, "qsync::linear_fp32") == ("linearfp32backward",)


def test_the_samples_are_all_there_and_small(tmp_path: Path) -> None:
    here = Folders(tmp_path)
    assert tuple(here.models()) == MODELS
    for model in MODELS:
        assert here.trace_names(model) == ["bf16", "fp32"]
        assert [len(here.traces(model, name)) for name in ("bf16", "fp32")] == [2, 2]
        assert here.execution_trace(model) is not None
    files = [path for kind in ("traces", "input_data", "casting_cost") for path in (SAMPLES / kind).rglob("*")]
    size = sum(path.stat().st_size for path in files if path.is_file())
    assert size < SAMPLES_MAX_BYTES, f"samples take {size:,} bytes; record smaller models"
