"""Files of other tools are told apart by their content, and become parts of a configuration of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import load
from predictor.core.plan.to_run import to_run
from predictor.core.schema.inherited_keys import completed
from predictor.core.schema.merging import merged
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.presets import preset
from predictor.core.schema.sections import TrainingSection, validate
from predictor.core.workload.run import TrainingRun
from predictor.formats import FORMATS, Read, detect, read_any
from predictor.formats.known_keys import FOLDER, known_keys
from tests.unit.examples import model_of

DATA = Path(__file__).resolve().parents[2] / "data" / "readers"
FILES = {
    "hugging_face/llama3.1-8b.json": "Hugging Face config.json",
    "megatron/gpt3_175b.sh": "Megatron-LM arguments",
    "megatron/llama3_8b.args": "Megatron-LM arguments",
    "megatron/mixtral_8x7b.yaml": "Megatron-LM arguments",
    "deepspeed/zero1.json": "DeepSpeed JSON",
    "deepspeed/zero3.json": "DeepSpeed JSON",
    "deepspeed/trainer.json": "DeepSpeed JSON",
    "torchtitan/llama3_70b.toml": "torchtitan TOML",
    "torchtitan/qwen3_pipeline.toml": "torchtitan TOML",
}


def run_of(own: dict[str, Any], *reads: Read) -> TrainingRun:
    """The run of a configuration that takes from files, its own keys on top."""
    content: dict[str, Any] = {}
    for read in reads:
        content = merged(content, read.content)
    model = content.get("model", {})
    if "preset" in model:
        content["model"] = preset(model["preset"]) | {key: value for key, value in model.items() if key != "preset"}
    return to_run(validate(merged({"system": "Perlmutter", **content}, own)), gpus_per_node=8)


@pytest.mark.parametrize("name", FILES)
def test_format_is_told_by_the_content(name: str, tmp_path: Path) -> None:
    assert detect(DATA / name) == FILES[name]
    unnamed = tmp_path / "file"
    unnamed.write_bytes((DATA / name).read_bytes())
    assert detect(unnamed) == FILES[name]


@pytest.mark.parametrize("name", [name for name in FILES if "trainer" not in name])
def test_only_keys_of_a_configuration_come_back(name: str) -> None:
    sections: dict[str, type[BaseModel]] = {
        "model": ModelSection,
        "parallelism": ParallelismSection,
        "training": TrainingSection,
    }
    for section, values in read_any(DATA / name).content.items():
        known = {*sections[section].model_fields, *(["preset"] if section == "model" else [])}
        assert values.keys() <= known


@pytest.mark.parametrize(
    "text",
    ["{}", '{"hello": 1}', "[1, 2]", "system: Perlmutter\nmodel:\n  num_layers: 3\n", "x = 1\n", "just words\n"],
)
def test_the_error_about_an_unknown_format_lists_the_known_formats(text: str, tmp_path: Path) -> None:
    path = tmp_path / "what.cfg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="its format is not known; it is ") as caught:
        read_any(path)
    assert all(name in str(caught.value) for name in FORMATS)


def test_missing_file_folder_and_binary_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_any(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"is a folder; expected a file such as its config\.json"):
        read_any(tmp_path)
    binary = tmp_path / "weights"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match="is no text"):
        read_any(binary)


def test_too_large_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.formats.source.LARGEST_BYTES", 10)
    path = tmp_path / "big.json"
    path.write_text("{" + " " * 20 + "}", encoding="utf-8")
    with pytest.raises(ConfigError, match="has 22 bytes; expected a configuration, of at most 10"):
        read_any(path)


def test_a_model_and_a_deepspeed_file_make_a_run() -> None:
    model, batch = read_any(DATA / "hugging_face/llama3.1-8b.json"), read_any(DATA / "deepspeed/zero1.json")
    run = run_of({"model": {"sequence_length": 4096}, "parallelism": {"tensor_parallel_size": 4}}, model, batch)
    assert (run.micro_batch_size, run.num_micro_batches, run.global_batch_size) == (4, 8, 256)
    assert (run.layout.data_parallel_size, run.zero_stage) == (8, 1)
    assert run.model == model_of(preset("llama3.1-8b") | {"sequence_length": 4096})


def test_keys_that_a_file_leaves_open_are_required_until_given() -> None:
    read = read_any(DATA / "deepspeed/zero3.json")
    content: dict[str, Any] = {"parallelism": {"data_parallel_size": 64}, "training": {"recompute": "full"}}
    assert list(read.still_unsaid({})) == list(read.unsaid)
    ((key, sentence),) = read.still_unsaid(content).items()
    assert key == "training.micro_batch_size"
    assert sentence.startswith("zero3.json: train_micro_batch_size_per_gpu is train_batch_size / ")
    assert sentence.endswith(": set training.micro_batch_size (in a configuration, or with --set)")


def test_problems_of_all_files_come_together(tmp_path: Path) -> None:
    first, second = tmp_path / "ds.json", tmp_path / "launch.sh"
    first.write_text('{"train_batch_size": 8, "optimizer": {"type": "Lion"}}', encoding="utf-8")
    second.write_text("--num-layers x --hidden-size 64 --num-attention-heads 4 --fp16 --bf16", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        completed({"from": [str(first), str(second)]}, tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 problems:"
    assert [line.split()[0] for line in lines[1:]] == ["ds.json:1:", "launch.sh:1:", "launch.sh:", *["launch.sh:"] * 2]
    for key in ("--num-layers is x", "--seq-length is missing", "--micro-batch-size is missing", "--fp16 and --bf16"):
        assert any(key in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "key"), [("--vocab-size 100", "data_parallel_size"), ("--world-size 8", "model.vocab_size")]
)
def test_no_guess_stands_for_gpus_or_the_vocabulary(arguments: str, key: str, tmp_path: Path) -> None:
    launch, config = tmp_path / "launch.sh", tmp_path / "run.yaml"
    launch.write_text(
        "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1 " + arguments,
        encoding="utf-8",
    )
    config.write_text("system: Perlmutter\nfrom: launch.sh\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"set .*{key}"):
        load(config)


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.yaml"))])
def test_a_key_has_one_fate(name: str) -> None:
    known = known_keys(name)
    groups = [set(known.irrelevant), set(known.refused), set(known.noted), set(known.noted_off)]
    assert sum(len(group) for group in groups) == len(set.union(*groups))
    assert not [key for key in known.noted if key in known.irrelevant]
    assert all(reason.strip() and "\n" not in reason for reason in (*known.refused.values(), *known.noted.values()))


def test_text_in_other_encodings_and_pipes_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("per_device_train_batch_size: 1\n", encoding="utf-16")
    with pytest.raises(ConfigError, match=r"is text in UTF-16; write it in UTF-8: iconv"):
        detect(path)
    with pytest.raises(ConfigError, match=r"train.yaml is text in UTF-16"):
        load(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is a pipe, which can be read once only"):
        detect(pipe)
