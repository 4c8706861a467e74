"""Scripts that start a tool with a configuration beside them, and SkyPilot's tasks that do."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any
from predictor.formats.shell.starts import WAY_OUT
from predictor.formats.table import EXAMPLES


def found(tmp_path: Path, command: str, *files: str, num_gpus: int | None = None, name: str = "run.sh") -> Read:
    for file in files:
        copyfile(EXAMPLES / file, tmp_path / file)
    path = tmp_path / name
    path.write_text(command, encoding="utf-8")
    return read_any(path, num_gpus)


def test_a_command_with_a_file_and_changes(tmp_path: Path) -> None:
    command = "tune run --nproc_per_node 4 full_finetune_distributed --config torchtune.yaml batch_size=3\n"
    read = found(tmp_path, command, "torchtune.yaml")
    assert detect(tmp_path / "run.sh") == "training command"
    assert read.content["training"]["micro_batch_size"] == 3
    assert read.content["parallelism"]["data_parallel_size"] == 4
    assert read.notes[0] == "run.sh names torchtune.yaml (torchtune YAML), which is read with its batch_size"


def test_changes_in_sections(tmp_path: Path) -> None:
    command = (
        "oumi distributed torchrun --nproc_per_node=8 -m oumi train -c oumi.yaml "
        "--training.per_device_train_batch_size=8 --model.model_max_length 2048\n"
    )
    content = found(tmp_path, command, "oumi.yaml").content
    assert content["training"]["micro_batch_size"] == 8
    assert content["model"]["sequence_length"] == 2048
    assert content["parallelism"]["data_parallel_size"] == 8


def test_a_change_that_is_not_modelled_is_refused(tmp_path: Path) -> None:
    command = "oumi train -c oumi.yaml --training.trainer_type TRL_GRPO\n"
    with pytest.raises(ConfigError, match=r"training.trainer_type is 'TRL_GRPO'"):
        found(tmp_path, command, "oumi.yaml", num_gpus=1)


def test_a_change_that_comes_from_outside_is_asked_for(tmp_path: Path) -> None:
    command = "oumi train -c oumi.yaml --training.per_device_train_batch_size $BATCH --training.run_name $NAME\n"
    with pytest.raises(ConfigError, match=r"run.sh:1: --training.per_device_train_batch_size is \$BATCH, which comes"):
        found(tmp_path, command, "oumi.yaml", num_gpus=1)


def test_gpus_that_are_asked_for_count(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node=8 run_train.py --config-file nanotron.yaml\n"
    read = found(tmp_path, command, "nanotron.yaml", num_gpus=16)
    assert read.content["parallelism"]["data_parallel_size"] == 8  # of two tensor-parallel ranks each
    assert "run.sh: it says 8 GPUs; 16 are asked for, which count" in read.notes


def test_the_last_of_several_commands_counts(tmp_path: Path) -> None:
    command = "oumi train -c oumi.yaml\ntune run full_finetune_single_device --config torchtune.yaml\n"
    read = found(tmp_path, command, "oumi.yaml", "torchtune.yaml", num_gpus=1)
    assert "names torchtune.yaml" in read.notes[0]


def test_a_task_of_skypilot(tmp_path: Path) -> None:
    task = "resources:\n  accelerators: {H100: 8}\nnum_nodes: 2\nrun: |\n  cd x\n  oumi train -c oumi.yaml\n"
    read = found(tmp_path, task, "oumi.yaml", name="task.yaml")
    assert detect(tmp_path / "task.yaml") == "SkyPilot task"
    assert read.content["parallelism"]["data_parallel_size"] == 16
    assert found(tmp_path, task, num_gpus=8, name="task.yaml").content["parallelism"]["data_parallel_size"] == 8


def test_a_task_that_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it starts no Trainer of a language model"):
        found(tmp_path, "resources: {}\nrun: echo hello\n", name="task.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--lr 1e-4 --n_layer 12",
            "train.py, a program of its own whose arguments (--lr, --n_layer) are not known here",
        ),
        (
            "--config own.yaml",
            "train.py with own.yaml: read that file, if it is of a tool that list-formats shows; otherwise",
        ),
    ],
)
def test_a_program_of_one_s_own_says_what_to_give(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, f"torchrun --nproc_per_node 8 train.py {arguments}\n")
    assert str(caught.value).removesuffix(WAY_OUT).rstrip("; ") == f"run.sh starts {message}"
