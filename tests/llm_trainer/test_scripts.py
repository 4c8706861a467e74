"""The three scripts as they are started: from a checkout that is not installed, with the documented arguments."""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

if not all(find_spec(name) for name in ("torch", "lightning_fabric", "tokenizers", "safetensors")):
    pytest.skip("no torch here; make check-profile runs it", allow_module_level=True)

import torch

from llm_trainer.training.utils import setup_logging
from tests.llm_trainer import small

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "training" / "scripts"
CONFIG: dict[str, dict[str, Any]] = {
    "model": {"d_model": 32, "n_heads": 2, "n_layers": 1, "d_ff": 64, "max_seq_len": 32},
    "training": {"batch_size": 8, "learning_rate": "1e-3", "num_epochs": 1, "max_steps": 6, "warmup_steps": 2,
                 "save_steps": 3, "logging_steps": 2, "report_to": []},
    "data": {"train_file": "texts.txt", "validation_file": "texts.txt", "max_length": 32, "vocab_size": 300,
             "preprocessing_num_workers": 0, "dataloader_num_workers": 0},
}  # fmt: skip


def started(name: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a script as a user does, from a checkout that is not installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), *words],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def script(name: str, *words: str, folder: Path, status: int = 0, typed: str = "") -> tuple[str, str]:
    """Run a script in this process, and return what it printed: a start loads torch, which takes seconds."""
    torch.set_num_threads(1)  # as in started()
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(str(SCRIPTS))
        patch.setattr(sys, "stdin", io.StringIO(typed))
        patch.chdir(folder)
        main = runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"]
        assert importlib.import_module("checkout").run(main, words) == status, err.getvalue()
    setup_logging("warning")
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a configuration, its texts, and the model that train.py made of them."""
    made = tmp_path_factory.mktemp("scripts")
    (made / "texts.txt").write_text(small.TEXT)
    text = yaml.safe_dump(CONFIG, sort_keys=False).replace("'1e-3'", "1e-3")
    (made / "config.yaml").write_text(text)
    (made / "config.json").write_text(json.dumps(CONFIG | {"training": CONFIG["training"] | {"learning_rate": 1e-3}}))
    done = started("train", "--config", "config.yaml", "--output_dir", "output", folder=made)
    assert done.returncode == 0, done.stderr
    assert "train_loss" in done.stdout
    assert "model output" in done.stdout
    return made


def test_training_leaves_a_model_and_checkpoints(folder: Path) -> None:
    output = folder / "output"
    names = {path.name for path in output.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training_config.json", "checkpoints"}
    lines = [json.loads(line) for line in (output / "checkpoints" / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_resuming_and_json_and_the_log(folder: Path) -> None:
    (third,) = (folder / "output" / "checkpoints").glob("step-00000003-*")
    words = ["--config", "config.json", "--output_dir", "resumed", "--log_level", "info", "--force_retrain_tokenizer"]
    _, log = script("train", *words, "--resume_from_checkpoint", str(third), folder=folder)
    assert "resumed from" in log
    assert "trained a tokenizer of" in log
    whole, resumed = ((folder / name / "model.safetensors").read_bytes() for name in ("output", "resumed"))
    assert resumed == whole
    _, log = script("train", "--config", "config.json", "--output_dir", "resumed", folder=folder)
    assert "--force_retrain_tokenizer trains it again" in log


def test_evaluating(folder: Path) -> None:
    (folder / "eval.json").write_text(json.dumps(CONFIG["data"]))
    words = ["--model_path", "output", "--dataset_config", "eval.json"]
    printed, _ = script("evaluate", *words, "--output_path", "results/all.json", folder=folder)
    results = json.loads((folder / "results" / "all.json").read_text())
    assert json.loads(printed) == results
    assert results["val_perplexity"] > 1.0
    few, _ = script("evaluate", *words, "--max_batches", "1", folder=folder)
    assert json.loads(few)["val_loss"] != results["val_loss"]


def test_generating(folder: Path) -> None:
    words = ["--model_path", "output", "--prompts", "12 squared", "7", "--max_length", "12"]
    printed, _ = script("generate", *words, "--temperature", "0", folder=folder)
    assert "12 squared" in printed
    assert printed == script("generate", *words, "--temperature", "0", folder=folder)[0]
    sampled = [
        script("generate", *words, "--top_k", "5", "--top_p", "0.9", "--seed", seed, folder=folder)[0]
        for seed in ("1", "1")
    ]
    assert sampled[0] == sampled[1]
    script("generate", "--model_path", "output", "--interactive", folder=folder, typed="12\n")


@pytest.mark.parametrize(
    ("name", "words", "status", "message"),
    [
        ("train", ["--config", "none.yaml"], 2, "none.yaml"),
        ("train", ["--config", "config.yaml", "--output_dir", "texts.txt"], 2, "texts.txt"),
        ("train", ["--config", "config.yaml", "--output_dir", "output", "--resume_from_checkpoint", "no"], 1, "no"),
        ("train", ["--config", "config.yaml", "--log_level", "loud"], 1, "level is 'loud'"),
        ("generate", ["--model_path", "output"], 2, "there is no prompt"),
        ("generate", ["--model_path", "none", "--prompts", "a"], 2, "none"),
        ("evaluate", ["--model_path", "output", "--dataset_config", "none.json"], 2, "none.json"),
        (
            "evaluate",
            ["--model_path", "output", "--dataset_config", "config.json", "--max_batches", "0"],
            2,
            "at least",
        ),
        ("evaluate", ["--model_path", "none", "--dataset_config", "config.json"], 2, "none"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    folder: Path, name: str, words: list[str], status: int, message: str
) -> None:
    printed, errors = script(name, *words, folder=folder, status=status)
    assert not printed
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in errors


def test_texts_of_the_standard_library(folder: Path) -> None:
    script("stdlib_texts", "texts", "--max_characters", "400000", folder=folder)
    rows = [json.loads(line) for line in (folder / "texts" / "train.jsonl").read_text().splitlines()]
    assert all(row["text"] or row["text"] == "" for row in rows)
    assert len(rows) > 10


@pytest.mark.parametrize("path", sorted((ROOT / "training" / "configs").iterdir()), ids=lambda path: path.name)
def test_configurations_of_the_folder_are_valid(path: Path) -> None:
    from llm_trainer.config import read_config
    from llm_trainer.training.datasets import read_data_config

    if path.name.startswith("eval"):
        assert read_data_config(path).max_length > 0
    else:
        assert read_config(path).training.batch_size > 0
