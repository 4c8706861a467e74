"""Configurations of torchtune: models by their builders, adapters, batch, FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import preset_names
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.torchtune.models import PRESETS

FULL = """
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: /t, max_seq_len: 4096}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: true}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
batch_size: 2
gradient_accumulation_steps: 4
dtype: bf16
epochs: 1
enable_activation_checkpointing: true
enable_activation_offloading: false
compile: false
"""
LORA = FULL.replace(
    "torchtune.models.llama3_1.llama3_1_8b",
    "torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 16, lora_attn_modules: [q_proj, v_proj, output_proj]",
)


def found(tmp_path: Path, text: str = FULL, num_gpus: int | None = 8) -> Read:
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_full_finetuning(tmp_path: Path) -> None:
    read = found(tmp_path)
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["num_layers"], model["vocab_size"], model["sequence_length"]) == (32, 128256, 4096)
    assert (parallelism["data_parallel_size"], parallelism["zero_stage"]) == (8, 3)
    # The whole model is built in dtype: no fp32 weights beside (recipes/full_finetune_distributed.py).
    assert parallelism["fp32_gradients"] is False
    assert "fp32_parameters" not in parallelism
    assert training["optimizer_state_bytes"] == 4
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (2, 4)
    assert (training["recompute"], training["recompute_stops_early"]) == ("full", True)
    assert read.unsaid == {}
    assert len(read.notes) == 1


@pytest.mark.parametrize(
    ("old", "new", "section", "key", "value"),
    [
        ("compile: false", "compile: {model: true, loss: true}", "training", "compiled", True),
        ("checkpointing: true", "checkpointing: false", "training", "recompute", "none"),
        ("offloading: false", "offloading: true", "training", "offload_activations", True),
        ("epochs: 1", "fsdp_cpu_offload: true", "training", "offload_parameters", True),
        ("epochs: 1", "ac_mode: selective\nac_option: 2", "training", "recompute_every", 2),
        ("epochs: 1", "ac_mode: selective\nac_option: op", "training", "recompute", "per_op"),
        ("epochs: 1", "enable_fp8_training: true\nfp8_recipe_name: rowwise", "training", "gemm_recipe", "fp8_rowwise"),
        ("epochs: 1", "fsdp_reshard_after_forward: false", "parallelism", "reshard_after_forward", False),
        ("epochs: 1", "tensor_parallel_dim: 2", "parallelism", "data_parallel_size", 4),
        ("epochs: 1", "data_parallel_replicate_dim: 2", "parallelism", "zero_group_size", 4),
        ("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit", "training", "optimizer_state_bytes", 2),
        ("dtype: bf16", "dtype: fp32", "training", "precision", "fp32"),
        ("llama3_1.llama3_1_8b", "gemma2.gemma2_9b", "model", "vocab_size", 256000),
        ("llama3_1.llama3_1_8b", "qwen2_5.qwen2_5_14b_instruct", "model", "num_layers", 48),
    ],
)
def test_keys(old: str, new: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert old in FULL
    assert found(tmp_path, FULL.replace(old, new)).content[section][key] == value


def test_one_gpu_shards_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, num_gpus=1).content["parallelism"]["zero_stage"] == 0


def test_what_the_data_and_the_launcher_say_is_asked_for(tmp_path: Path) -> None:
    unsaid = found(tmp_path, FULL.replace("max_seq_len: 4096", "max_seq_len: null"), None).unsaid
    assert set(unsaid) == {"model.sequence_length", "parallelism.data_parallel_size"}


def test_adapters(tmp_path: Path) -> None:
    lora = found(tmp_path, LORA).content["training"]["lora"]
    assert lora == {"rank": 16, "targets": ["q", "v", "attention_output"], "fp32": False}
    more = LORA.replace("lora_rank: 16", "apply_lora_to_mlp: true, lora_dropout: 0.1").replace(".lora_", ".qlora_")
    assert found(tmp_path, more, 1).content["training"]["lora"] == {
        "rank": 8,  # lora_llama3_1_8b's own default
        "targets": ["q", "v", "attention_output", "gate", "up", "ffn_down"],
        "fp32": False,
        "dropout": 0.1,
        "quantized_base": "nf4_double",
    }


def test_magnitudes(tmp_path: Path) -> None:
    assert found(tmp_path, LORA.replace("lora_rank: 16", "use_dora: true")).content["training"]["lora"]["dora"] is True


@pytest.mark.parametrize(("text", "reference"), [(FULL, "separate"), (LORA, "adapters_off")])
def test_pairs_of_answers(text: str, reference: str, tmp_path: Path) -> None:
    text = text.replace("modules.loss.CEWithChunkedOutputLoss", "rlhf.loss.DPOLoss")
    training = found(tmp_path, text).content["training"]
    assert (training["micro_batch_size"], training["reference_model"]) == (4, reference)


def test_builder_with_sizes(tmp_path: Path) -> None:
    sizes = "vocab_size: 1000, num_layers: 2, num_heads: 8, num_kv_heads: 2, embed_dim: 256, max_seq_len: 512"
    text = FULL.replace("torchtune.models.llama3_1.llama3_1_8b", f"torchtune.models.llama2.llama2, {sizes}")
    model = found(tmp_path, text).content["model"]
    assert (model["num_layers"], model["num_key_value_heads"]) == (2, 2)
    assert model["ffn_hidden_size"] == 768  # two thirds of 4 · 256, rounded up to 256


def test_every_preset_is_known() -> None:
    assert set(PRESETS.values()) <= set(preset_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FULL.replace("llama3_1.llama3_1_8b", "llama3_2_vision.llama3_2_vision_11b"), "its vision tower and cross"),
        (FULL.replace("llama3_1.llama3_1_8b", "llama3_1.llama3_1_9b"), "it is not known here. Did you mean"),
        (FULL.replace("torchtune.models.llama3_1.llama3_1_8b", "my.model"), "it is not of torchtune.models"),
        (FULL.replace("torch.optim.AdamW", "torch.optim.SGD"), "only Adam is modelled"),
        (
            FULL.replace("ing: true", "ing: false").replace("offloading: false", "offloading: true"),
            "refuses it without",
        ),
        (FULL + "quantizer: {_component_: x}\n", "quantisation-aware training is not modelled"),
        (FULL + "teacher_model: {_component_: x}\n", "distillation runs a second model"),
        (FULL + "pipeline_parallel_dim: 2\n", "of torchtune it is not known here"),
        (FULL.replace("batch_size: 2\n", ""), "is of no training: it has no batch_size"),
        (LORA.replace("lora_rank: 16", "apply_lora_to_output: true"), "an adapter of the output projection"),
        (LORA.replace("q_proj, v_proj", "router"), "expected a list of q_proj, k_proj, v_proj, output_proj"),
    ],
)
def test_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_optimizer_in_the_backward_pass_is_noted(tmp_path: Path) -> None:
    assert any("optimizer_in_bwd" in note for note in found(tmp_path, f"{FULL}optimizer_in_bwd: true\n").notes)
