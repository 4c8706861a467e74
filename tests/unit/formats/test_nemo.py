"""YAML of NeMo: its model section as arguments of Megatron-LM, references filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.presets import find_preset
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any
from tests.unit.examples import model_of

BASE: dict[str, Any] = {
    "trainer": {"num_nodes": 128, "devices": 8, "precision": "bf16"},
    "model": {
        "mcore_gpt": True,
        "micro_batch_size": 2,
        "global_batch_size": 2048,
        "tensor_model_parallel_size": 8,
        "pipeline_model_parallel_size": 8,
        "virtual_pipeline_model_parallel_size": 12,
        "encoder_seq_length": 2048,
        "max_position_embeddings": 2048,
        "num_layers": 96,
        "hidden_size": 12288,
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
        "num_attention_heads": 96,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "sequence_parallel": True,
        "transformer_engine": True,
        "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer", "vocab_file": "${data_dir}/vocab.json"},
        "optim": {"name": "distributed_fused_adam", "overlap_grad_sync": True, "grad_sync_dtype": "bf16"},
        "data": {"seq_length": "${model.encoder_seq_length}"},
    },
}


def found(tmp_path: Path, changes: dict[str, Any] | None = None) -> Read:
    path = tmp_path / "gpt.yaml"
    path.write_text(yaml.safe_dump(merged(BASE, {"model": changes or {}})), encoding="utf-8")
    assert detect(path) == "NeMo YAML"
    return read_any(path)


def test_gpt3_175b(tmp_path: Path) -> None:
    read = found(tmp_path)
    assert model_of(read.content["model"]).num_parameters() == find_preset("gpt3-175b").parameters
    parallelism, training = read.content["parallelism"], read.content["training"]
    assert (parallelism["data_parallel_size"], parallelism["gpus_per_node"]) == (16, 8)
    assert (parallelism["virtual_pipeline_parallel_size"], parallelism["zero_stage"]) == (12, 1)
    assert (parallelism["overlap_gradient_reduction"], parallelism["fp32_gradients"]) == (True, False)
    assert (training["precision"], training["framework"]) == ("bf16", "nemo")
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("changes", "section", "key", "value"),
    [
        ({"fp8": True, "fp8_hybrid": True}, "training", "gemm_recipe", "fp8_delayed"),
        ({"activation": "fast-swiglu"}, "model", "activation", "swiglu"),
        ({"normalization": "rmsnorm"}, "model", "normalization", "fused_rms_norm"),
        ({"bias": False}, "model", "biases", False),
        ({"num_query_groups": 8}, "model", "num_key_value_heads", 8),
        ({"share_embeddings_and_output_weights": False}, "model", "tied_embeddings", False),
        (
            {"activations_checkpoint_granularity": "full", "activations_checkpoint_method": "uniform"},
            "training",
            "recompute",
            "full",
        ),
        ({"activations_checkpoint_granularity": "selective"}, "training", "recompute", "selective"),
        ({"ub_tp_comm_overlap": True}, "parallelism", "overlap_linear_traffic", True),
        ({"optim": {"name": "fused_adam", "grad_sync_dtype": None}}, "parallelism", "zero_stage", 0),
        ({"optim": {"bucket_cap_mb": 100}}, "parallelism", "gradient_bucket_elements", 100 * 2**20 // 2),
        ({"bias_dropout_add_fusion": False}, "model", "fused_side_kernels", False),
    ],
)
def test_settings(changes: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, changes).content[section][key] == value


def test_vocabulary_of_a_tokenizer_elsewhere_is_left_open(tmp_path: Path) -> None:
    read = found(tmp_path, {"tokenizer": {"library": "sentencepiece", "type": None}})
    assert list(read.unsaid) == ["model.vocab_size"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert_binary_head": True}, r"an encoder \(BERT\)"),
        ({"encoder": {"num_layers": 3}}, r"an encoder with a decoder \(T5\)"),
        ({"optim": {"name": "lion"}}, r"model\.optim\.name is 'lion'; expected adam"),
        ({"activation": "relu"}, r"model\.activation is relu; expected gelu"),
        ({"fsdp": True}, "FSDP inside NeMo is not read"),
        ({"unheard_of_layers": 1}, r"model\.unheard_of_layers is 1; of NeMo it is not known here"),
        ({"hidden_size": "${oc.env:WIDTH}"}, r"model\.hidden_size is oc\.env:WIDTH"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, changes)


def test_activations_on_the_host_are_those_of_the_switch(tmp_path: Path) -> None:
    layers = {"cpu_offloading_num_layers": 4}
    assert "offload_activation_layers" not in found(tmp_path, layers).content["training"]
    asked = found(tmp_path, {**layers, "cpu_offloading": True}).content["training"]
    assert asked["offload_activation_layers"] == 4


def test_section_that_is_not_read_is_no_silence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.mcore_customization_config is .*take a preset, such as falcon-7b"):
        found(tmp_path, {"mcore_customization_config": {"parallel_attention": True}})
    with pytest.raises(ConfigError, match=r"model\.unheard_of\.num_heads is 3; of NeMo it is not known"):
        found(tmp_path, {"unheard_of": {"num_heads": 3}})


def test_unknown_key_that_speaks_of_no_cost_is_named(tmp_path: Path) -> None:
    assert any("model.unheard_of" in note for note in found(tmp_path, {"unheard_of": 1}).notes)
