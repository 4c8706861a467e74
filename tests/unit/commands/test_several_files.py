"""A run is predicted from several files, or from its folder; a network is given as people write it."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.formats.folder import files_in
from predictor.formats.table import EXAMPLES

RUN = ["--system", "H100", "--gpus", "8", "--sequence-length", "4096", "--recompute", "full"]


def _predicted(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["predict", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "deepspeed.json"):
        copyfile(EXAMPLES / name, folder / name)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}', encoding="utf-8")
    (folder / "notes.txt").write_text("--num-layers", encoding="utf-8")
    return folder


def test_a_folder_is_its_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(run / "config.json"), str(run / "deepspeed.json")]
    alone, folder = _predicted([*files, *RUN], capsys), _predicted([str(run), *RUN], capsys)
    assert folder["step"] == alone["step"]
    said = "Of the folder run these files are read: config.json (Hugging Face config.json), deepspeed.json (DeepSpeed"
    assert any(note.startswith(said) for note in folder["notes"])


def test_a_configuration_of_a_folder_counts_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = run / "run.yml"
    keys = "model: {preset: gpt2}\ntraining: {micro_batch_size: 4, num_micro_batches: 1}\n"
    own.write_text(f"system: H100\n{keys}", encoding="utf-8")
    assert _predicted([str(run)], capsys)["step"] == _predicted([str(own)], capsys)["step"]


def test_own_keys_count_before_those_of_files_beside(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = run / "own.yml"
    own.write_text("system: H100\nmodel: {sequence_length: 4096}\ntraining: {recompute: full}\n", encoding="utf-8")
    files = [str(own), str(run / "config.json"), str(run / "deepspeed.json"), "--gpus", "8"]
    expected = _predicted([str(run / "config.json"), str(run / "deepspeed.json"), *RUN], capsys)
    assert _predicted(files, capsys)["step"] == expected["step"]
    assert "are both configurations" in _told(["predict", str(own), str(own)], capsys)


def test_a_script_of_no_known_format_is_told(run: Path) -> None:
    (run / "go.sh").write_text("torchrun train.py --config a.yaml --gradient_accumulation_steps 8\n", encoding="utf-8")
    assert "Not read, as of no known format: go.sh; its arguments" in files_in(run)[1]


def test_of_several_files_of_a_format_the_training_decides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copyfile(run / "deepspeed.json", run / "zero3.json")
    told = _told(["predict", str(run), *RUN], capsys)
    assert "has several files that may be meant: deepspeed.json, zero3.json; name those of the run one by one" in told
    (run / "empty").mkdir()
    assert "is a folder without a file of a known format" in _told(["predict", str(run / "empty")], capsys)
    (run / "empty" / "a.yaml").write_text("work_group: x\nmodules: {}\n", encoding="utf-8")
    assert "a.yaml is of Primus, which is not read" in _told(["predict", str(run / "empty")], capsys)


@pytest.mark.parametrize("command", [["check", "--max-step-s", "100"], ["whatif", "--set", "memory_gib=x2"]])
def test_other_commands_take_the_same_files(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    name, *options = command
    assert main([name, str(EXAMPLES / "megatron_lm.sh"), "--system", "H100", *options]) == 0
    assert "megatron_lm.sh" in capsys.readouterr().out or name == "whatif"


def test_a_network_as_people_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = [str(EXAMPLES / "megatron_lm.sh"), "--system", "H100"]
    told = _predicted([*run, "--network", "4x100Gb"], capsys)
    assert told["step"] == _predicted([*run, "--set", "inter_node_gb_per_s=6.25"], capsys)["step"]
    said = "of a node, which 8 GPUs share: 6.25 GB/s per GPU and direction."
    assert any(said in note for note in told["notes"])
    assert "twice" in _told(["predict", *run, "--network", "4x100Gb", "--set", "inter_node_gb_per_s=3"], capsys)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--lora", "--set training.lora="), ("--num-gpus", "--gpus"), ("--zero", "--set parallelism.zero_stage=")],
)
def test_an_unknown_option_names_the_key(option: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean {meant}" in _told(["predict", "a.yml", option, "3"], capsys)


def test_v100_names_its_precision(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--model", "gpt2", "--system", "V100", "--gpus", "8", "--global-batch-size", "8", "--precision", "bf16"]
    assert "V100 was measured in fp16: --precision fp16" in _told(["predict", *run], capsys)


def test_a_model_alone_is_asked_for_its_length_as_for_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    told = _told(["predict", str(EXAMPLES / "config.json")], capsys)
    assert "--sequence-length is missing: how many tokens does a sample have?" in told
    assert "--gpus is missing" in told
    assert "--sequence-length" not in _told(["predict", "--model", "gpt2", "--sequence-length", "512"], capsys)
