"""Configurations of OLMo's first trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any

TEXT = """
run_name: r
model:
  d_model: 1024
  n_heads: 16
  n_kv_heads: 4
  n_layers: 12
  mlp_hidden_size: 8192
  rope: true
  include_bias: false
  layer_norm_type: rms
  attention_layer_norm: true
  norm_after: true
  attention_dropout: 0.0
  residual_dropout: 0.0
  max_sequence_length: 2048
  vocab_size: 100278
  embedding_size: 100352
  weight_tying: false
optimizer: {name: adamw, learning_rate: 1e-4}
compile: null
global_train_batch_size: 256
device_train_microbatch_size: 4
precision: amp_bf16
fsdp: {wrapping_strategy: by_block, sharding_strategy: FULL_SHARD, precision: mixed}
max_duration: 1e9T
"""


def found(tmp_path: Path, text: str = TEXT, num_gpus: int | None = 16) -> Read:
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_sizes_batch_and_sharding(tmp_path: Path) -> None:
    read = found(tmp_path)
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["num_layers"], model["ffn_hidden_size"], model["activation"]) == (12, 4096, "swiglu")
    assert (model["qk_norm"], model["vocab_size"], model["norm_biases"]) == ("whole", 100352, False)
    assert (parallelism["zero_stage"], parallelism["fp32_gradients"], parallelism["data_parallel_size"]) == (
        3,
        True,
        16,
    )
    assert (training["micro_batch_size"], training["global_batch_size"], training["recompute"]) == (4, 256, "none")
    assert read.content["budget"] == {"train_tokens": 10**9}
    assert read.notes == ()


@pytest.mark.parametrize(
    ("old", "new", "section", "key", "value"),
    [
        ("rope: true", "alibi: true", "model", "positions", "alibi"),
        ("rope: true", "rope: false", "model", "rotary_fraction", 0.0),
        ("  mlp_hidden_size: 8192\n", "  activation_type: gelu\n", "model", "ffn_hidden_size", 4096),
        ("include_bias: false", "block_type: parallel", "model", "shared_input_norm", True),
        ("compile: null", "compile: {fullgraph: false}", "training", "compiled", True),
        ("compile: null", "activation_checkpointing: whole_layer", "training", "recompute", "full"),
        ("compile: null", "activation_checkpointing: one_in_two", "training", "recompute_every", 2),
        ("compile: null", "fused_loss: true", "model", "loss", "fused"),
        ("compile: null", "distributed_strategy: ddp", "parallelism", "zero_stage", 0),
        ("precision: mixed", "precision: pure", "parallelism", "fp32_gradients", False),
        ("FULL_SHARD", "SHARD_GRAD_OP", "parallelism", "reshard_after_forward", False),
        ("1e9T", "100", "budget", "train_tokens", 100 * 256 * 2048),
    ],
)
def test_keys(old: str, new: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert old in TEXT
    assert found(tmp_path, TEXT.replace(old, new)).content[section][key] == value


def test_gpus_and_whole_epochs_are_left_open(tmp_path: Path) -> None:
    read = found(tmp_path, TEXT.replace("1e9T", "2ep"), None)
    assert set(read.unsaid) == {"parallelism.data_parallel_size"}
    assert "budget" not in read.content


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("compile: null", "activation_checkpointing: fine_grained", "modelled: whole_layer, one_in_two"),
        ("name: adamw", "name: lionw", "only adamw is modelled"),
        ("compile: null", "fsdp_config: {sharding_strategy: FULL_SHARD}", "files of before 2023-07 have it"),
        ("  rope: true\n", "  model_name: mamba\n  d_state: 16\n", "models of other kinds"),
        ("compile: null", "tensor_parallel: 2", "of OLMo it is not known here"),
    ],
)
def test_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, TEXT.replace(old, new))
