"""Files of tools that are not read are refused by the tool's name, scripts without arguments by what they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import read_config
from predictor.formats import detect, read_any

ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --vocab-size 512 --tokenizer-type NullTokenizer"
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "work_group: x\nmodules: {}\n", "a.yaml is of Primus, which is not read"),
        ("a.yaml", "seed_everything: 1\nmodel: {}\noptimizer: {}\ntrain: {}\n", "is of Lightning"),
        ("a.yaml", "workload:\n  image: x\n  gpus: 8\n", "is of a GPU recipe's Helm chart"),
        ("a.sh", "NPROC_PER_NODE=2 \\\nmegatron rlhf --micro_batch_size 1\n", "is of ms-swift"),
        ("a.sh", "#!/bin/bash\nTP=2 bash examples/train.sh --x 1\n", "it starts examples/train.sh: read that"),
        ("a.sh", "export TP=2\nexport PP=4\n", "read the script that starts it"),
    ],
)
def test_refused_by_name(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        detect(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_configuration_says_which_tool_a_file_is_of(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("work_group: x\nmodules: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is of Primus"):
        read_config(path)
    path.write_text("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"another tool \(accelerate configuration\): predict --model train.yaml"):
        read_config(path)
    path.write_text("modle: llama3-8b\n", encoding="utf-8")  # a slip in one of our own stays one
    assert read_config(path)[0] == {"modle": "llama3-8b"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model:\n  _component_: torchtune.models.llama3\n", "torchtune YAML"),
        ("tokenizer:\n  _component_: torchtune.x\nmodel: {}\noptimizer: {lr: 1}\n", "torchtune YAML"),
        ("model: {}\ntokenizer: {}\noptimizer: {}\ntokens: {}\nparallelism: {dp: 2}\n", "nanotron YAML"),
        ("model_name: m\ntrain: {}\ndata:\n  class_path: litgpt.data.C4\n", "litgpt YAML"),
        ("train: {micro_batch_size: 1, global_batch_size: 8}\nout_dir: out\n", "litgpt YAML"),
        ("seed_everything: 1\ntrainer: {devices: 2}\nmodel: {}\noptimizer: {}\n", "Lightning YAML"),
        ("model: {d_model: 8, n_layers: 2}\nglobal_train_batch_size: 8\noptimizer: {}\n", "OLMo YAML"),
        ("model: {tensor_model_parallel_size: 2}\ntrain: {micro_batch_size: 1}\n", "Megatron-Bridge recipe"),
        ("model:\n  _target_: megatron.bridge.models.x\n", "Megatron-Bridge recipe"),
    ],
)
def test_sections_that_several_tools_have_do_not_tell_them(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert detect(path) == name


def test_sections_alone_are_of_no_tool(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("model: {width: 3}\ntrain: {epochs: 2}\noptimizer: {lr: 1}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="its format is not known"):
        detect(path)


@pytest.mark.parametrize("options", [[], ["--gpus", "8"], ["--system", "H100", "--set", "vocab_size=8"]])
def test_a_file_that_nobody_knows_is_refused_in_one_line(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yml"
    path.write_text("modle: llama3-8b\nsteps: 3\n", encoding="utf-8")
    assert main(["predict", str(path), *options]) == 2
    message = capsys.readouterr().err
    assert (
        "modle, steps: no key of a configuration, nor of a tool whose files are known. Did you mean model?" in message
    )
    assert message.count("\n") == 1


def test_a_file_that_builds_on_another_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yml"
    path.write_text("extends: base.yaml\nmethod: qlora\n", encoding="utf-8")
    assert main(["predict", str(path), "--system", "H100", "--gpus", "8"]) == 2
    assert "extends: base.yaml, on which this file builds, is not read" in capsys.readouterr().err


def test_script_that_is_sourced_is_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text(f"MODEL_ARGS=({ARGUMENTS})\n", encoding="utf-8")
    for written in ('"${HERE}/models/small.sh"', "$(dirname $0)/models/small.sh", "models/small.sh  # sizes"):
        path = tmp_path / "run.sh"
        run = "torchrun --nproc_per_node 4 pretrain_gpt.py ${MODEL_ARGS[@]}"
        path.write_text(f"#!/bin/bash\nsource {written}\n{run}\n", encoding="utf-8")
        content = read_any(path).content
        assert content["model"]["num_layers"] == 2
        assert content["parallelism"]["data_parallel_size"] == 4  # torchrun starts one node unless it is told


def test_missing_sourced_script_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"source env.sh\ntorchrun --nproc_per_node 2 --nnodes 2 pretrain_gpt.py {ARGUMENTS}\n", encoding="utf-8"
    )
    assert read_any(path).content["parallelism"]["data_parallel_size"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {model_name: m, kind: x}\ndata: {}\ntraining: {epochs: 1}\n", "the keys model, data, training"),
        ("training: {max_seq_length: 2048, batch_size: 2, num_epochs: 1}\n", "its format is not known; it is YAML"),
        (" \n", "is empty; estimate-train-time show-example"),
        ("defaults: [ppo_trainer, _self_]\n", "is put together by Hydra from ppo_trainer, _self_"),
    ],
)
def test_a_file_with_sections_of_the_same_names_is_not_taken_for_our_own(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["predict", str(path), "--system", "H100", "--gpus", "8"]) == 2
    assert message in capsys.readouterr().err


def test_a_slip_in_a_section_of_our_own_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("model: {preset: gpt2}\ntraining: {micro_batch: 1, precision: bf16}\n", encoding="utf-8")
    assert main(["predict", str(path), "--system", "H100", "--gpus", "8"]) == 2
    assert "Did you mean micro_batch_size?" in capsys.readouterr().err
