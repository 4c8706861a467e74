"""Trainers of LightningCLI configurations, whose models are classes of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any

TEXT = """
seed_everything: 1
trainer:
  accelerator: gpu
  devices: 4
  num_nodes: 2
  precision: bf16-mixed
  strategy: ddp
  accumulate_grad_batches: 2
  max_steps: 100
model: {class_path: my.Model, init_args: {width: 3}}
data: {class_path: my.Data, init_args: {batch_size: 8}}
"""


def found(tmp_path: Path, text: str = TEXT, num_gpus: int | None = None) -> Read:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_layout_and_batch(tmp_path: Path) -> None:
    read = found(tmp_path)
    parallelism, training = read.content["parallelism"], read.content["training"]
    assert (parallelism["data_parallel_size"], parallelism["zero_stage"], parallelism["fp32_parameters"]) == (
        8,
        0,
        True,
    )
    assert (training["micro_batch_size"], training["num_micro_batches"], training["precision"]) == (8, 2, "bf16")
    assert set(read.unsaid) == {"model.num_layers", "model.sequence_length"}


@pytest.mark.parametrize(
    ("old", "new", "section", "key", "value"),
    [
        ("strategy: ddp", "strategy: fsdp", "parallelism", "zero_stage", 3),
        ("strategy: ddp", "strategy: deepspeed_stage_2", "parallelism", "zero_stage", 2),
        (
            "strategy: ddp",
            "strategy: {class_path: lightning.pytorch.strategies.DeepSpeedStrategy, init_args: {stage: 3}}",
            "parallelism",
            "zero_stage",
            3,
        ),
        ("devices: 4", "devices: [0, 1]", "parallelism", "data_parallel_size", 4),
        ("bf16-mixed", "bf16-true", "training", "optimizer_state_bytes", 4),
        ("precision: bf16-mixed", "precision: null", "training", "precision", "fp32"),
        ("width: 3", "model_name_or_path: meta-llama/Llama-3.1-8B", "model", "num_layers", 32),
    ],
)
def test_keys(old: str, new: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert old in TEXT
    assert found(tmp_path, TEXT.replace(old, new)).content[section][key] == value


DEEPSPEED = {"offload_optimizer": 1.0, "pinned_offload": False}
WEIGHTS = {"offload_parameters": True, "framework": "deepspeed"}


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("deepspeed_stage_2_offload", DEEPSPEED | {"framework": "lightning"}),
        ("deepspeed_stage_3_offload", DEEPSPEED | WEIGHTS),
        ("fsdp_cpu_offload", {"offload_parameters": True, "offload_optimizer": 1.0, "framework": "lightning"}),
        ("{class_path: a.FSDPStrategy, init_args: {cpu_offload: true}}", {"offload_parameters": True}),
        ("{class_path: a.FSDPStrategy, init_args: {cpu_offload: false}}", {"framework": "lightning"}),
        (
            "{class_path: a.DeepSpeedStrategy, init_args: {stage: 3, offload_parameters: true, pin_memory: true}}",
            WEIGHTS | {"pinned_offload": True},
        ),
    ],
)
def test_states_on_the_host(strategy: str, keys: dict[str, Any], tmp_path: Path) -> None:
    training = found(tmp_path, TEXT.replace("strategy: ddp", f"strategy: {strategy}")).content["training"]
    names = ("offload_parameters", "offload_optimizer", "pinned_offload", "framework")
    assert {key: training.get(key) for key in keys} == keys
    assert {*names} & training.keys() <= {*keys, "offload_optimizer", "framework"}


def test_all_devices_of_a_node(tmp_path: Path) -> None:
    text = TEXT.replace("devices: 4", "devices: auto")
    assert "parallelism.data_parallel_size" in found(tmp_path, text).unsaid
    assert found(tmp_path, text, 16).content["parallelism"]["data_parallel_size"] == 16


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("strategy: ddp", "strategy: deepspeed_stage_3_offload_nvme", "states on NVMe are not modelled"),
        ("strategy: ddp", "strategy: xla", "modelled: auto, ddp"),
        ("bf16-mixed", "transformer-engine", "trainer.precision is 'transformer-engine'; expected"),
        ("max_steps: 100", "plugins: [x]", "plugins change what is run"),
    ],
)
def test_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, TEXT.replace(old, new))
