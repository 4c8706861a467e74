"""Configurations of litgpt: models by name or by fields, batch, FSDP, adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.predict.prediction import predict
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.fields import Fields
from predictor.formats.litgpt.model import model_section, named

TRAIN = "train: {global_batch_size: 64, micro_batch_size: 2, max_seq_length: 1024, epochs: 1}\n"
FULL = f"""
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
precision: bf16-true
devices: 4
num_nodes: 2
data: {{class_path: litgpt.data.JSON, init_args: {{json_path: x}}}}
{TRAIN}optimizer: AdamW
"""
LORA = f"{FULL}lora_r: 16\nlora_alpha: 32\nlora_mlp: false\n".replace("devices: 4", "devices: 1").replace(
    "num_nodes: 2", ""
)
PRETRAIN = f"""
model_name: pythia-1b
precision: bf16-mixed
devices: 8
num_nodes: 2
out_dir: out
{TRAIN.replace("epochs: 1", "max_tokens: 1000000000")}
"""


def found(tmp_path: Path, text: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_full_finetuning(tmp_path: Path) -> None:
    read = found(tmp_path, FULL)
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["num_layers"], model["num_key_value_heads"], model["vocab_size"]) == (32, 8, 128256)
    assert (model["sequence_length"], model["activation"], model["normalization"]) == (1024, "swiglu", "rms_norm")
    assert (parallelism["data_parallel_size"], parallelism["zero_stage"]) == (8, 3)
    assert parallelism["fp32_parameters"] is False
    # 64 samples over 8 GPUs in micro-batches of 2; several GPUs checkpoint every block (finetune/full.py).
    assert (training["micro_batch_size"], training["num_micro_batches"], training["recompute"]) == (2, 4, "full")
    assert (training["optimizer_state_bytes"], training["framework"]) == (4, "litgpt")
    assert "compiled" not in training


def test_pretraining(tmp_path: Path) -> None:
    read = found(tmp_path, PRETRAIN)
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["activation"], model["rotary_fraction"], model["parallel_residual"]) == ("gelu", 0.25, True)
    assert (parallelism["zero_group_size"], parallelism["fp32_parameters"]) == (8, True)  # HYBRID_SHARD: a node's
    assert (training["compiled"], training["recompute"]) == (True, "none")
    assert read.content["budget"] == {"train_tokens": 10**9}


def test_sizes_in_the_file(tmp_path: Path) -> None:
    sizes = (
        "model_config: {n_layer: 12, n_head: 12, n_embd: 768, vocab_size: 50257, bias: false, rotary_percentage: 0.5}"
    )
    model = found(tmp_path, PRETRAIN.replace("model_name: pythia-1b", sizes)).content["model"]
    assert (model["num_layers"], model["ffn_hidden_size"], model["biases"]) == (12, 3072, False)
    assert (model["vocab_size"], model["rotary_fraction"]) == (50688, 0.5)  # padded to 512
    assert model["normalization"] == "layer_norm"


def test_adapters(tmp_path: Path) -> None:
    lora = found(tmp_path, LORA).content
    assert lora["training"]["lora"] == {"rank": 16, "targets": ["q", "v"], "dropout": 0.05}
    assert lora["parallelism"] == {"data_parallel_size": 1, "zero_stage": 0}
    assert lora["training"]["recompute"] == "none"
    text = LORA.replace("lora_mlp: false", "lora_mlp: true\nlora_query: false\nquantize: bnb.nf4")
    quantized = found(tmp_path, text).content["training"]["lora"]
    assert (quantized["targets"], quantized["quantized_base"]) == (["v", "gate", "up", "ffn_down"], "nf4")


def test_capped_scores_are_computed_one_operation_at_a_time(tmp_path: Path) -> None:
    read = found(tmp_path, FULL.replace("meta-llama/Llama-3.1-8B", "google/gemma-2-2b")).content
    assert read["model"]["attention"] == "unfused"
    assert "sliding_window" not in read["model"]
    assert "attention_kernel" not in read["training"]


def test_what_is_open_is_asked_for(tmp_path: Path) -> None:
    assert set(found(tmp_path, PRETRAIN.replace("devices: 8", "devices: auto")).unsaid) == {
        "parallelism.data_parallel_size"
    }
    assert found(tmp_path, PRETRAIN.replace("devices: 8", "devices: auto"), 16).unsaid == {}
    assert set(found(tmp_path, FULL.replace("max_seq_length: 1024", "max_seq_length: null")).unsaid) == {
        "model.sequence_length"
    }


@pytest.mark.parametrize(
    "name", ["pythia-160m", "falcon-7b", "gemma-2-9b", "mixtral-8x7b-v0.1", "phi-2", "qwen3-30b-a3b"]
)
def test_models_can_be_predicted(name: str) -> None:
    model: dict[str, Any] = model_section(Fields(named()[name], name)) | {"sequence_length": 512}
    batch = {"micro_batch_size": 1, "num_micro_batches": 1, "conditions": "model"}
    assert predict({"system": "H100", "model": model, "training": batch}).modelled_us > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FULL.replace("Llama-3.1-8B", "Llama-9-8B"), "no model of litgpt has this name. Did you mean"),
        (FULL.replace("bf16-true", "fp8"), "expected bf16-true, bf16-mixed, 16-true, 16-mixed, 32-true"),
        (FULL.replace("AdamW", "Lion"), "only Adam is modelled"),
        (f"{FULL}use_galore: true\n", "GaLore"),
        (f"{LORA}lora_head: true\n", "an adapter of the output projection is not modelled"),
        (f"{LORA}quantize: bnb.fp4\n", "only bnb.nf4, bnb.nf4-dq and bnb.int8-training are modelled"),
        (f"{LORA}lora_query: false\nlora_value: false\n", "no key such as lora_query asks for an adapter"),
        (PRETRAIN.replace("model_name: pythia-1b", ""), "names no model"),
        (f"{PRETRAIN}pipeline_stages: 2\n", "of litgpt it is not known here"),
    ],
)
def test_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpus_that_are_asked_for_count(tmp_path: Path) -> None:
    read = found(tmp_path, FULL, 4)
    assert read.content["parallelism"]["data_parallel_size"] == 4
    assert "train.yaml: it says 8 GPUs; 4 are asked for, which count" in read.notes
