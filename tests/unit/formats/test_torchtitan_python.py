"""Configurations of torchtitan in Python: functions of a registry, evaluated from their syntax trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

HEAD = """
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.optimizer import OptimizersInBackwardContainer
from torchtitan.components.quantization import Float8LinearConverter, NVFP4LinearConverter
from torchtitan.components.quantization.nvfp4 import nvfp4_bf16_tail_fqns
from torchtitan.config import ActivationCheckpointConfig
from torchtitan.protocols.model_converter import ModelConvertersContainer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def llama3_8b() -> Trainer.Config:
    config = Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=4, data_parallel_shard_degree=8),
        activation_checkpoint=SelectiveAC.Config(),
    )
"""


def found(tmp_path: Path, body: str = "") -> Read:
    path = tmp_path / "config_registry.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"{HEAD}{lines}    return config\n", encoding="utf-8")
    assert detect(path) == "torchtitan configuration in Python"
    return read_any(path)


def test_function_of_a_registry(tmp_path: Path) -> None:
    read = found(tmp_path)
    assert read.content["model"] == {
        "preset": "llama3.1-8b",
        "sequence_length": 8192,
        "loss": "vocabulary_parallel",
    }
    parallelism, training = read.content["parallelism"], read.content["training"]
    assert (parallelism["tensor_parallel_size"], parallelism["data_parallel_size"]) == (4, 8)
    assert (parallelism["zero_stage"], parallelism["fp32_parameters"]) == (3, True)
    assert (training["micro_batch_size"], training["recompute"]) == (2, "per_op")
    assert (training["precision"], training["framework"]) == ("bf16", "torchtitan")
    assert "compiled" not in training


@pytest.mark.parametrize(
    ("body", "section", "key", "value"),
    [
        ("config.activation_checkpoint = FullAC.Config()", "training", "recompute", "full"),
        ("config.activation_checkpoint = None", "training", "recompute", "none"),
        ("config.compile = CompileConfig(enable=True, components=['model'])", "training", "compiled", True),
        (
            "config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True)",
            "parallelism",
            "overlap_linear_traffic",
            True,
        ),
        (
            "config.model_spec = model_registry('8B', converters=[Float8LinearConverter.Config()])",
            "training",
            "gemm_recipe",
            "fp8_rowwise",
        ),
        (
            "config.model_spec = model_registry('8B', converters=[NVFP4LinearConverter.Config(fqns=['layers'])])",
            "training",
            "gemm_recipe",
            "nvfp4",
        ),
        (
            "config.model_spec = model_registry('8B', tp_gemm_backend='dist_gemm')",
            "parallelism",
            "overlap_linear_traffic",
            True,
        ),
        ("config.model_spec = model_registry('8B', num_mtp_layers=2)", "model", "num_mtp_layers", 2),
        ("config.parallelism.enable_sequence_parallel = False", "parallelism", "sequence_parallel", False),
        ("config.training.disable_cuda_graphs = False", "training", "cuda_graphs", True),
        ("config.loss = ChunkedLossWrapper.Config()", "training", "cuda_graphs", True),
    ],
)
def test_settings_of_a_configuration(body: str, section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, body).content[section][key] == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("config.optimizer = OptimizersInBackwardContainer.Config()", "an optimizer inside the backward pass"),
        ("from elsewhere import sizes\nconfig.training.local_batch_size = sizes()", "local_batch_size cannot be read"),
        (
            "config.model_spec = model_registry('8B', converters=[NVFP4LinearConverter.Config(fqns=FullAC.x(3))])",
            "fqns cannot be read",
        ),
        ("from torchtitan.rl import Controller\nconfig = Controller.Config()", r"returns a .*Controller\.Config"),
        ("config.optimizer = 3\nconfig.training.dtype = 'float16'", r"training\.dtype is 'float16'"),
        ("config.training.size_unheard_of = 3", r"training\.size_unheard_of is 3; of torchtitan it is not known here"),
    ],
)
def test_what_cannot_be_predicted_is_refused(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, body)


def test_converters_of_the_built_model_are_of_early_releases(tmp_path: Path) -> None:
    read = found(
        tmp_path,
        "config.model_converters = ModelConvertersContainer.Config(\n"
        "    converters=[Float8LinearConverter.Config(enable_fsdp_float8_all_gather=True)]\n"
        ")\nconfig.activation_checkpoint = ActivationCheckpointConfig(mode='selective')",
    ).content
    assert (read["training"]["gemm_recipe"], read["training"]["recompute"]) == ("fp8_tensorwise", "per_op")
    assert read["parallelism"]["gather_precision"] == "fp8"


def test_job_config_of_earlier_releases(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        """
from torchtitan.config import ActivationCheckpoint, JobConfig, Model, Parallelism, Training

def job():
    return JobConfig(
        model=Model(name="qwen3", flavor="14B"),
        training=Training(local_batch_size=4, seq_len=4096),
        parallelism=Parallelism(data_parallel_shard_degree=16),
        activation_checkpoint=ActivationCheckpoint(mode="full"),
    )
""",
        encoding="utf-8",
    )
    read = read_any(Path(f"{path}:job"))
    assert read.content["model"]["preset"] == "qwen3-14b"
    assert (read.content["training"]["recompute"], read.content["parallelism"]["data_parallel_size"]) == ("full", 16)


def test_last_part_of_the_layers_in_16_bits(tmp_path: Path) -> None:
    read = found(
        tmp_path,
        "layers = len(cast(Model.Config, config.model_spec.model).layers)\n"
        "fqns = nvfp4_bf16_tail_fqns(layers, 0.15)\n"
        "config.model_spec = model_registry('8B', converters=[NVFP4LinearConverter.Config(fqns=fqns)])",
    )
    assert read.content["training"]["gemm_recipe"] == "nvfp4"
    assert read.content["training"]["layers_in_16_bits_at_end"] == 5  # of 32, rounded up


def test_exchange_of_tokens_between_experts(tmp_path: Path) -> None:
    changed = (
        'config.model_spec = model_registry("16B", moe_comm_backend="hybridep", non_blocking_capacity_factor=1.0)\n'
        "config.parallelism = ParallelismConfig(data_parallel_shard_degree=8, expert_parallel_degree=8)\n"
        "config.training.disable_cuda_graphs = False"
    )
    path = tmp_path / "config_registry.py"
    lines = "".join(f"    {line}\n" for line in changed.splitlines())
    head = HEAD.replace("llama3", "deepseek_v3")
    path.write_text(f"{head}{lines}    return config\n", encoding="utf-8")
    content = read_any(path).content
    assert content["model"]["preset"] == "deepseek-v2-lite"
    assert content["parallelism"]["expert_dispatcher"] == "hybridep"
    assert content["training"]["cuda_graphs"] is True
