"""Training files of LLM Foundry: MPT models and those of the hub, batch, precision, FSDP and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any
from tests.unit.examples import model_of

BASE: dict[str, Any] = {
    "variables": {"length": 2048, "hub": "meta-llama/Meta-Llama-3.1-8B"},
    "max_seq_len": "${variables.length}",
    "model": {
        "name": "mpt_causal_lm",
        "d_model": 4096,
        "n_heads": 32,
        "n_layers": 32,
        "expansion_ratio": 4,
        "max_seq_len": "${max_seq_len}",
        "vocab_size": 50432,
        "no_bias": True,
        "attn_config": {"attn_impl": "flash", "alibi": True},
    },
    "train_loader": {"name": "text", "dataset": {"max_seq_len": "${max_seq_len}", "remote": "${oc.env:DATA}"}},
    "optimizer": {"name": "decoupled_adamw"},
    "global_train_batch_size": 1024,
    "device_train_microbatch_size": 8,
    "precision": "amp_bf16",
    "fsdp_config": {
        "sharding_strategy": "FULL_SHARD",
        "mixed_precision": "PURE",
        "activation_checkpointing": True,
        "activation_checkpointing_reentrant": False,
    },
}


def found(tmp_path: Path, changes: dict[str, Any] | None = None) -> Read:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(merged(BASE, changes or {})), encoding="utf-8")
    assert detect(path) == "LLM Foundry YAML"
    return read_any(path)


def test_mpt_7b(tmp_path: Path) -> None:
    read = found(tmp_path)
    model = read.content["model"]
    assert (model["num_layers"], model["ffn_hidden_size"], model["sequence_length"]) == (32, 16384, 2048)
    assert (model["positions"], model["tied_embeddings"], model["biases"], model["loss"]) == (
        "alibi",
        True,
        False,
        "fused",
    )
    assert read.content["parallelism"] == {
        "zero_stage": 3,
        "overlap_gradient_reduction": True,
        "fp32_gradients": False,
        "gradient_reduction": "reduce_scatter",
        "overlap_parameter_gather": True,
        "fp32_parameters": True,
    }
    assert read.content["training"] == {
        "micro_batch_size": 8,
        "global_batch_size": 1024,
        "precision": "bf16",
        "recompute": "full",
        "recompute_stops_early": True,
        "framework": "llm-foundry",
    }
    assert list(read.unsaid) == ["parallelism.data_parallel_size"]


def test_parameters_of_mpt_7b(tmp_path: Path) -> None:
    model = found(tmp_path, {"model": {"attn_config": {"alibi": False, "rope": True}}}).content["model"]
    # As in the config.json of mosaicml/mpt-7b, whose norms have no biases.
    assert model_of(model).num_parameters() == 6_649_286_656 + 65 * 4096


def test_model_of_the_hub(tmp_path: Path) -> None:
    peft = {
        "r": 16,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "peft_type": "LORA",
        "lora_dropout": 0.05,
    }
    model = {"name": "hf_causal_lm", "pretrained_model_name_or_path": "${variables.hub}", "peft_config": peft}
    read = found(tmp_path, {"model": dict.fromkeys(BASE["model"]) | model})
    assert read.content["model"]["preset"] == "llama3.1-8b"
    assert read.content["training"]["lora"] == {
        "rank": 16,
        "targets": ["q", "k", "v", "attention_output"],
        "dropout": 0.05,
    }
    other = model | {"pretrained_model_name_or_path": "someone/else"}
    read = found(tmp_path, {"model": dict.fromkeys(BASE["model"]) | other})
    assert "someone/else" in read.unsaid["model.num_layers"]


@pytest.mark.parametrize(
    ("changes", "section", "key", "value"),
    [
        ({"fsdp_config": {"sharding_strategy": "SHARD_GRAD_OP"}}, "parallelism", "reshard_after_forward", False),
        ({"fsdp_config": {"device_mesh": [2, 4]}}, "parallelism", "zero_group_size", 4),
        ({"fsdp_config": {"mixed_precision": "DEFAULT"}}, "parallelism", "fp32_gradients", True),
        ({"fsdp_config": {"activation_cpu_offload": True}}, "training", "overlap_activation_offload", False),
        ({"fsdp_config": {"cpu_offload": True}}, "training", "offload_parameters", True),
        ({"precision": "amp_fp8"}, "training", "gemm_recipe", "fp8_delayed"),
        ({"model": {"attn_config": {"alibi": False, "rope": True}}}, "model", "rotary_fraction", 1.0),
        (
            {"model": {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}},
            "model",
            "num_key_value_heads",
            8,
        ),
        (
            {"model": {"ffn_config": {"ffn_type": "mb_dmoe", "moe_num_experts": 16, "moe_top_k": 4}}},
            "model",
            "moe",
            {"num_experts": 16, "experts_per_token": 4, "expert_ffn_hidden_size": 16384},
        ),
        ({"model": {"loss_fn": "torch_crossentropy"}}, "model", "loss", "torch"),
    ],
)
def test_settings(changes: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, changes).content[section][key] == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "hf_t5"}}, "only decoders are read"),
        ({"optimizer": {"name": "decoupled_lionw"}}, "only Adam is modelled"),
        ({"model": {"unheard_of_size": 1}}, r"model\.unheard_of_size is 1; of LLM Foundry it is not known here"),
        ({"model": {"d_model": "${oc.env:WIDTH}"}}, r"model\.d_model is .* which comes from outside"),
        ({"global_train_batch_size": None}, "global_train_batch_size is missing"),
        ({"tp_config": {"strategy": "ffn"}}, r"parallelism\.tensor_parallel_size"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, changes)


def test_automatic_micro_batch_is_left_open(tmp_path: Path) -> None:
    read = found(tmp_path, {"device_train_microbatch_size": "auto"})
    assert "only a run tells" in read.unsaid["training.micro_batch_size"]


def test_packed_samples_are_noted(tmp_path: Path) -> None:
    loader = {"name": "finetuning", "dataset": {"packing_ratio": "auto"}}
    assert any("packed" in note for note in found(tmp_path, {"train_loader": loader}).notes)
