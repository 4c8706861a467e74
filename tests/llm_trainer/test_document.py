"""Every block and every command line of docs/llm-trainer.md runs as written, with fewer steps."""

from __future__ import annotations

import importlib
import io
import json
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

if not all(find_spec(name) for name in ("torch", "lightning_fabric", "tokenizers", "safetensors", "tensorboard")):
    pytest.skip("no torch here; make check-profile runs it", allow_module_level=True)

import torch

from llm_trainer.config import read_config
from llm_trainer.training.utils import setup_logging

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "llm-trainer.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
SHELL = re.findall(r"^    python (scripts/\S+\.py.*)$", TEXT, re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the reader's folder, which holds the configurations with fewer steps."""
    (tmp_path / "configs").mkdir()
    for path in (ROOT / "training" / "configs").iterdir():
        text = path.read_text(encoding="utf-8").replace("max_steps: 150", "max_steps: 3")
        (tmp_path / "configs" / path.name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return tmp_path


def test_python_block(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = PYTHON
    exec(compile(block, "llm-trainer.md", "exec", dont_inherit=True), {"__name__": "block"})
    written, loss = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert written.startswith("12 squared is")
    assert float(loss.split()[0]) < 4.0, "untrained it is ln 300, 5.7"
    assert (folder / "model" / "model.safetensors").is_file()


def test_command_lines(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "training" / "scripts"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    run = importlib.import_module("checkout").run
    assert [line.split()[0] for line in SHELL] == [
        f"scripts/{name}.py" for name in ("stdlib_texts", "train", "generate", "evaluate")
    ]
    for line in SHELL:
        script, *words = shlex.split(line)
        words += ["--max_characters", "300000"] if script.endswith("stdlib_texts.py") else []
        words += ["--max_batches", "2"] if script.endswith("evaluate.py") else []
        assert run(runpy.run_path(str(ROOT / "training" / script))["main"], words) == 0, capsys.readouterr().err
    setup_logging("warning")
    assert json.loads((folder / "results.json").read_text())["val_loss"] > 0.0
    shown = re.findall(r"^    output/(\S+?)(?:,| )", TEXT, re.MULTILINE)
    assert len(shown) == 8
    for name in shown:
        assert list((folder / "output").glob(name.replace("…", "*"))), name


def test_the_configuration_is_the_folder_s_one_with_words(folder: Path) -> None:
    (block,) = YAML
    (folder / "shown.yaml").write_text(block)
    shown, small = read_config(folder / "shown.yaml"), read_config(ROOT / "training" / "configs" / "stdlib_small.yaml")
    differing = {key for key, value in shown.model.to_dict().items() if value != small.model.to_dict()[key]}
    assert differing == {"dropout", "attention_dropout"}
    assert shown.training.learning_rate == small.training.learning_rate
    assert shown.data.max_length == small.data.max_length
    for key, alternatives in re.findall(r'^  (\w+): "\w+" +# (.*)$', block, re.MULTILINE):
        section = "model" if key in yaml.safe_load(block)["model"] else "training"
        for word in alternatives.split(", ") if key != "dataset_name" else ():
            content = yaml.safe_load(block)
            content[section][key] = word
            (folder / "other.yaml").write_text(yaml.safe_dump(content).replace("'2e-3'", "2e-3"))
            assert getattr(getattr(read_config(folder / "other.yaml"), section), key) == word
