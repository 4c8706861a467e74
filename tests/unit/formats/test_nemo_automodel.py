"""YAML of NeMo AutoModel: a model of the hub and how it is sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.read import Read
from predictor.formats import read_any

BASE: dict[str, Any] = {
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 2, "max_steps": 10},
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": "Qwen/Qwen3-8B",
        "torch_dtype": "bf16",
    },
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 2, "sequence_parallel": True},
    "dataset": {"seq_length": 2048},
    "optimizer": {"_target_": "torch.optim.Adam"},
}


def found(tmp_path: Path, changes: dict[str, Any] | None = None, gpus: int | None = 16) -> Read:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(merged(BASE, changes or {})), encoding="utf-8")
    return read_any(path, gpus)


def test_base(tmp_path: Path) -> None:
    read = found(tmp_path)
    layout, training = read.content["parallelism"], read.content["training"]
    assert read.content["model"] == {"preset": "qwen3-8b", "sequence_length": 2048, "loss": "vocabulary_parallel"}
    assert (layout["data_parallel_size"], layout["zero_stage"], layout["sequence_parallel"]) == (8, 3, True)
    assert (layout["fp32_parameters"], layout["fp32_gradients"]) == (False, True)
    assert (training["micro_batch_size"], training["global_batch_size"], training["recompute"]) == (2, 64, "none")
    assert any("mean_sequence_length" in note for note in read.notes)
    assert list(found(tmp_path, gpus=None).unsaid) == ["parallelism.data_parallel_size"]


@pytest.mark.parametrize(
    ("changes", "section", "key", "value"),
    [
        ({"distributed": {"activation_checkpointing": "selective"}}, "training", "recompute", "per_op"),
        ({"distributed": {"strategy": "ddp"}}, "parallelism", "zero_stage", 0),
        ({"distributed": {"dp_replicate_size": 2}}, "parallelism", "zero_group_size", 4),
        ({"distributed": {"reshard_after_forward": False}}, "parallelism", "reshard_after_forward", False),
        ({"model": {"torch_dtype": "float32"}}, "parallelism", "fp32_parameters", True),
        ({"packed_sequence": {"packed_sequence_size": 8192}}, "model", "sequence_length", 8192),
        ({"fp8": {"enabled": True, "recipe_name": "rowwise"}}, "training", "gemm_recipe", "fp8_rowwise"),
        ({"fp8": {"enabled": True, "enable_fsdp_float8_all_gather": True}}, "parallelism", "gather_precision", "fp8"),
        ({"compile": {"enabled": True}}, "training", "compiled", True),
        (
            {"peft": {"dim": 4, "target_modules": ["*.q_proj", "*.v_proj"]}},
            "training",
            "lora",
            {"rank": 4, "targets": ["q", "v"]},
        ),
        (
            {"peft": {"dim": 4, "target_modules": ["*.q_proj"], "use_dora": True}},
            "training",
            "lora",
            {"rank": 4, "targets": ["q"], "dora": True},
        ),
        (
            {
                "model": {"pretrained_model_name_or_path": "Qwen/Qwen3-30B-A3B", "backend": {"dispatcher": "deepep"}},
                "distributed": {"tp_size": 1, "ep_size": 8},
            },
            "parallelism",
            "expert_dispatcher",
            "deepep",
        ),
    ],
)
def test_settings(changes: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, changes).content[section][key] == value


def test_round_of_a_pipeline(tmp_path: Path) -> None:
    pipeline = {"pp_schedule": "interleaved1f1b", "pp_microbatch_size": 1, "layers_per_stage": 9}
    changes = {"distributed": {"pp_size": 2, "pipeline": pipeline}, "step_scheduler": {"global_batch_size": 8}}
    read = found(tmp_path, changes)
    layout, training = read.content["parallelism"], read.content["training"]
    assert (layout["schedule"], layout["virtual_pipeline_parallel_size"]) == ("interleaved_1f1b", 2)
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (1, 2)
    with pytest.raises(ConfigError, match=r"global_batch_size is 64; the pipeline is drained between rounds of 2 × 4"):
        found(tmp_path, {"distributed": {"pp_size": 2, "pipeline": pipeline}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"_target_": "dion.Muon"}}, "only Adam and AdamW are modelled"),
        ({"model": {"_target_": "nemo_automodel.NeMoAutoModelForImageTextToText"}}, "a model with a vision tower"),
        ({"flow_matching": {"a": 1}}, "of a diffusion model"),
        ({"quantization": {"load_in_4bit": True}}, "base weights in four or eight bits"),
        ({"peft": {"dim": 8, "target_modules": ["router"]}}, "adapters are at router; known"),
        ({"distributed": {"num_unheard_of_ranks": 2}}, r"distributed\.num_unheard_of_ranks is 2; of NeMo AutoModel"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, changes)


def test_section_of_the_parallelizer(tmp_path: Path) -> None:
    read = found(tmp_path, {"parallelizer": {"reshard_after_forward": False, "wrap_outer_model": True}})
    assert read.content["parallelism"]["reshard_after_forward"] is False
    assert not any("wrap_outer_model" in note for note in read.notes)


def test_model_without_a_preset_is_asked_for(tmp_path: Path) -> None:
    read = found(tmp_path, {"model": {"pretrained_model_name_or_path": "someone/else-7b"}})
    assert "model.num_layers" in read.unsaid
