"""Command lines of torchtitan: a job's file or a function of a registry, with keys that the command changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any

JOB = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[compile]
enable = true
"""
REGISTRY = """
from torchtitan.trainer import Trainer
from torchtitan.config import TrainingConfig
from . import model_registry


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=2, seq_len=8192))
"""


def found(tmp_path: Path, command: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "scripts" / "run.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / "llama.toml").write_text(JOB, encoding="utf-8")
    registry = tmp_path / "torchtitan" / "models" / "llama3" / "config_registry.py"
    registry.parent.mkdir(parents=True, exist_ok=True)
    registry.write_text(REGISTRY, encoding="utf-8")
    return read_any(path, num_gpus)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file jobs/llama.toml {}",
        "CONFIG_FILE=jobs/llama.toml NGPU=8 ./run_train.sh {}",
        (
            'NGPU=8\nCONFIG_FILE=${{CONFIG_FILE:-"./jobs/llama.toml"}}\n'
            "torchrun --nproc_per_node=$NGPU -m torchtitan.train --job.config_file $CONFIG_FILE {}"
        ),
    ],
)
def test_a_job_with_changed_keys(command: str, tmp_path: Path) -> None:
    changes = (
        "--training.local_batch_size=4 --parallelism.tensor-parallel-degree 2 --compile.no_enable "
        "--model.converters float8 --float8.recipe_name rowwise"
    )
    content = found(tmp_path, command.format(changes)).content
    assert (content["model"]["preset"], content["model"]["sequence_length"]) == ("llama3.1-8b", 4096)
    assert (content["parallelism"]["tensor_parallel_size"], content["parallelism"]["data_parallel_size"]) == (2, 4)
    assert (content["training"]["micro_batch_size"], content["training"]["gemm_recipe"]) == (4, "fp8_rowwise")
    assert "compiled" not in content["training"]


def test_several_values_are_a_list(tmp_path: Path) -> None:
    command = "CONFIG_FILE=jobs/llama.toml ./run_train.sh --compile.components model loss --training.steps 3"
    read = found(tmp_path, command)
    assert (read.content["training"]["compiled"], read.notes) == (True, ())


@pytest.mark.parametrize(
    "command",
    [
        "MODULE=llama3 CONFIG=llama3_8b NGPU=4 ./run_train.sh --training.steps 3",
        "./run_train.sh --module llama3 --config llama3_8b",
    ],
)
def test_a_function_of_a_registry(command: str, tmp_path: Path) -> None:
    content = found(tmp_path, command, 4).content
    assert (content["training"]["micro_batch_size"], content["parallelism"]["data_parallel_size"]) == (2, 4)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("CONFIG_FILE=other.toml ./run_train.sh", "run.sh takes other.toml, which is not beside it"),
        (
            "./run_train.sh --module qwen3 --config qwen3_8b",
            "of the module qwen3, whose config_registry.py is not beside",
        ),
        (
            "CONFIG_FILE=jobs/llama.toml ./run_train.sh --training.seq_len $1",
            r"--training.seq_len is \$1; write its value",
        ),
        (
            "CONFIG_FILE=jobs/llama.toml ./run_train.sh --training.batch_sizes 3",
            "training.batch_sizes is 3; of torchtitan",
        ),
    ],
)
def test_refused(command: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, command)
