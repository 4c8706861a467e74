"""A script of Megatron-LM given to the commands as it is: what it leaves open comes from options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import predict
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.schema.finding import DIFFERS, find_folder, others_with, usual_notes
from predictor.core.schema.settings import parse_setting

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --num-layers 8 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 \\
  --global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --use-flash-attn \\
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/tokenizer
"""
ON_H100 = ["--system", "H100", "--vocab-size", "50257"]

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return the path of a script that leaves the vocabulary to its tokenizer."""
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def told(arguments: list[str], capsys: Capture) -> str:
    """Return what a command that succeeds prints."""
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("before", [[], ["predict"], ["predict", "--model"], ["predict", "--config"]])
def test_script_is_predicted_as_it_is(before: list[str], script: str, capsys: Capture) -> None:
    text = told([*before, script, *ON_H100], capsys)
    assert "16 GPUs = 1 pipeline × 2 tensor × 8 data parallel" in text
    assert "vocabulary 50257" in text


def test_other_commands_take_it_too(script: str, tmp_path: Path, capsys: Capture) -> None:
    assert "recompute=full" in told(["whatif", script, *ON_H100, "--set", "recompute=full"], capsys)
    assert "wrote" in told(["timeline", script, *ON_H100, "--svg", str(tmp_path / "step.svg")], capsys)


def test_it_is_compared_on_the_systems_that_are_named(script: str, capsys: Capture) -> None:
    asked = ["compare", script, "--set", "vocab_size=50257"]
    text = told([*asked, "--system", "H100", "--system", "H200"], capsys)
    assert "H100" in text
    assert "H200" in text
    assert main(asked) == 2
    assert "is of another tool and says no system; name some, with --system NAME" in capsys.readouterr().err


def test_what_it_leaves_open_is_named_with_the_way_to_set_it(script: str, capsys: Capture) -> None:
    assert main([script, "--system", "H100"]) == 2
    assert "no vocabulary size: set model.vocab_size (in a configuration, or with --set)" in capsys.readouterr().err


def test_set_says_what_a_file_leaves_open(script: str, tmp_path: Path, capsys: Capture) -> None:
    asked = ["--model", script, "--system", "H100", "--set", "vocab_size=50257"]
    assert "vocabulary 50257" in told(["predict", *asked], capsys)
    assert "16 GPUs of H100" in told(["search", *asked, "--gpus", "16", "--global-batch-size", "64"], capsys)
    (tmp_path / "run.yml").write_text("system: H100\nfrom: launch.sh\n", encoding="utf-8")
    assert "vocabulary 50257" in told([str(tmp_path / "run.yml"), "--set", "vocab_size=50257"], capsys)


def test_key_of_a_section_goes_before_a_key_inside_it() -> None:
    assert parse_setting("num_layers=4").path == ("model", "num_layers")
    assert parse_setting("model.vision.num_layers=4").path[1] == "vision"
    with pytest.raises(ConfigError, match="is no key"):
        parse_setting("chunk_size=4")  # of two parts of the model


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("our-A100", "GPU of A100_40, A100_SXM, Perlmutter and Selene: name one"),
        ("A100-PG509", "GPU of A100_40, A100_SXM, Perlmutter and Selene"),
        ("DGX-H100", "GPU of H100, H100_HBM2e and H100_PCIe: name one"),
        ("our-GH200", "GPU of GH200_QUAD and Vista: name one"),
    ],
)
def test_gpu_names_the_systems_that_have_it(name: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=meant):
        find_folder(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "system"), [("A100", "A100_SXM"), ("a100-80gb", "A100_SXM"), ("DGX A100", "A100_SXM"), ("GH200", "Vista")]
)
def test_a_gpu_of_several_systems_stands_for_one_of_them(name: str, system: str, tmp_path: Path) -> None:
    assert find_folder(name, tmp_path).name == system
    (note,) = usual_notes(name)
    assert note.startswith(f"{name} is read as {system}; with the same GPU: ")
    assert usual_notes(system) == ()


def test_every_answer_says_what_a_gpu_stands_for(capsys: Capture) -> None:
    asked = ["--model", "llama3-8b", "--system", "A100", "--global-batch-size", "64", "--gpus", "8"]
    said = "A100 is read as A100_SXM; with the same GPU: Perlmutter ("
    for command in (["predict", *asked, "--json"], ["search", *asked, "--top", "1", "--json"]):
        notes = json.loads(told(command, capsys))["notes"]
        assert len([note for note in notes if note.startswith(said)]) == 1


def test_systems_of_one_gpu_say_how_they_differ(capsys: Capture) -> None:
    lines = {line.split()[0]: line for line in told(["list-systems"], capsys).splitlines()}
    assert "(what A100 alone means: " in lines["A100_SXM"]
    assert all(lines[name].endswith(")") for name in DIFFERS)
    same = {name for name in lines if len(others_with(lines[name].split()[1], name))}
    assert same <= DIFFERS.keys()


@pytest.mark.parametrize("name", ["GTX1080", "TPUv5"])
def test_other_gpu_is_taken_for_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_folder(name, tmp_path)
    assert "GPU of" not in str(caught.value)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"])
def test_id_of_a_hub_names_the_preset_and_the_hub(name: str, capsys: Capture) -> None:
    assert main(["predict", "--model", name, "--system", "H100", "--gpus", "8"]) == 2
    line = capsys.readouterr().err
    assert f"Did you mean {name.split('/')[1].lower().replace('llama-', 'llama')}?" in line
    assert f"hf:{name}" in line


NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model: {mcore_gpt: true, micro_batch_size: 1, global_batch_size: 128, tensor_model_parallel_size: 2, num_layers: 8,
        hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, encoder_seq_length: 1024,
        max_position_embeddings: 1024, megatron_amp_O2: true, optim: {name: distributed_fused_adam}}
"""
NO_SYSTEM = """
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, sequence_length: 512}
training: {micro_batch_size: 1, num_micro_batches: 2}
"""


@pytest.mark.parametrize("before", [[], ["predict", "--model"]])
def test_yaml_of_another_tool_is_predicted_as_it_is(before: list[str], tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO, encoding="utf-8")
    assert "16 GPUs = 1 pipeline × 2 tensor × 8 data" in told([*before, str(path), *ON_H100], capsys)


def test_system_option_completes_a_configuration_without_one(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "config.yml"
    path.write_text(NO_SYSTEM, encoding="utf-8")
    assert "System     H100" in told([str(path), "--system", "H100"], capsys)
    assert main([str(path)]) == 2
    assert "system (operator_data_folder) is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["predct", "x"], "predct is neither a command nor a file. Did you mean predict?"),
        (["llama3-8b"], "llama3-8b is neither a command nor a file. It is a model"),
        (["--model", "gpt2", "--gpu", "8"], "predict has no option --gpu. Did you mean --gpus?"),
        (["--no-color"], "nothing to do"),
    ],
)
def test_what_was_mistyped_is_named(arguments: list[str], expected: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_check_says_of_a_run_that_may_not_fit_that_it_may_not(script: str, tmp_path: Path, capsys: Capture) -> None:
    text = "system: {like}\nfrom: launch.sh\nmodel: {{vocab_size: 50257}}\n"
    own = tmp_path / "small.yml"
    (tmp_path / "run.yml").write_text(text.format(like="H100"), encoding="utf-8")
    needs = predict(str(tmp_path / "run.yml")).memory_gib
    own.write_text(f"like: H100\ngpu: {{memory_gib: {needs * 0.98:.3f}}}\n", encoding="utf-8")
    (tmp_path / "run.yml").write_text(text.format(like="small.yml"), encoding="utf-8")
    assert "may not fit, within 8 % of the limit" in told(
        ["check", str(tmp_path / "run.yml"), "--max-step-s", "99"], capsys
    )


def test_a_calibrated_system_is_listed_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    runs = Path(__file__).resolve().parents[3] / "docs" / "gallery" / "runs.csv"
    told(["calibrate", str(runs), "--system", "H100", "--out", str(tmp_path / "ours")], capsys)
    monkeypatch.setattr("predictor.core.base.bundled.REGRESSORS_FOLDER", tmp_path)
    monkeypatch.setattr("predictor.core.base.bundled.systems", lambda: ("ours",))
    assert told(["list-systems"], capsys).rstrip().endswith("H100, calibrated with measured steps")
