"""Arguments of a Hugging Face Trainer in JSON and YAML, its trainer_state.json, and adapters of PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import load
from predictor.core.schema.read import Read
from predictor.core.transforms.lora import EVERY_PART
from predictor.formats import detect, read_any

RUN: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B",
    "output_dir": "out",
    "max_seq_length": 2048,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "torch_dtype": "bfloat16",
    "gradient_checkpointing": False,
    "bf16": True,
}
LORA = {"use_peft": True, "lora_r": 16, "lora_target_modules": ["q_proj", "down_proj"]}
ZERO_2 = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": "auto"}}


def found(tmp_path: Path, **keys: Any) -> Read:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(RUN | keys), encoding="utf-8")
    assert detect(path) == "Hugging Face Trainer arguments"
    return read_any(path, 8)


def refused(tmp_path: Path, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **keys)
    return str(caught.value)


def whole(read: Read) -> dict[str, Any]:
    """Return the sections with the keys that follow from them."""
    return read.with_derived(read.content)


def test_sizes_and_layout(tmp_path: Path) -> None:
    content = whole(found(tmp_path))
    assert content["model"] == {"preset": "llama3.1-8b", "loss": "torch", "sequence_length": 2048}
    assert content["training"] == {
        "micro_batch_size": 2,
        "num_micro_batches": 4,
        "precision": "bf16",
        "optimizer_state_bytes": 4.0,  # both moments of a weight in 16 bits are in 16 bits
        "framework": "transformers",
    }
    parallelism = content["parallelism"]
    assert (parallelism["data_parallel_size"], parallelism["zero_stage"]) == (8, 0)
    assert parallelism["gradient_bucket_elements"] == 25 * 2**20 // 2


@pytest.mark.parametrize(
    ("keys", "section", "key", "value"),
    [
        ({"gradient_checkpointing": True}, "training", "recompute", "full"),
        (
            {"gradient_checkpointing": True, "max_seq_length": None, "model_max_length": 2048},
            "training",
            "recompute_stops_early",
            True,
        ),
        ({"bf16": False, "fp16": True}, "training", "precision", "fp16"),
        ({"bf16": False, "torch_dtype": "bfloat16"}, "training", "precision", "bf16"),
        ({"bf16": False, "torch_dtype": "float32"}, "training", "precision", "fp32"),
        ({"bf16": False, "torch_dtype": "float32", "tf32": True}, "training", "tf32", True),
        ({"torch_dtype": "float32"}, "parallelism", "fp32_parameters", True),
        ({"torch_dtype": "float32"}, "parallelism", "gradient_bucket_elements", 25 * 2**20 // 4),
        ({"ddp_bucket_cap_mb": 100}, "parallelism", "gradient_bucket_elements", 100 * 2**20 // 2),
        ({"optim": "adamw_bnb_8bit"}, "training", "optimizer_state_bytes", 2 + 8 / 256),
        ({"optim": "adamw_bnb_8bit", "fsdp": "full_shard"}, "training", "optimizer_state_bytes", 6 + 8 / 256),
        ({"torch_compile": True}, "training", "compiled", True),
        ({"attn_implementation": "eager"}, "model", "attention", "unfused"),
        ({"attn_implementation": "flash_attention_3"}, "training", "attention_kernel", "flash_3"),
        ({"fsdp": "full_shard auto_wrap"}, "parallelism", "zero_stage", 3),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, "parallelism", "reshard_after_forward", False),
        (
            {"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True, "xla": False}},
            "training",
            "recompute",
            "full",
        ),
        ({"deepspeed": ZERO_2}, "parallelism", "zero_stage", 2),
        ({"deepspeed": ZERO_2}, "training", "framework", "deepspeed"),
        ({"max_steps": 10}, "budget", "train_tokens", 10 * 2 * 4 * 8 * 2048),
    ],
)
def test_settings(keys: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert whole(found(tmp_path, **keys))[section][key] == value


def test_adapters(tmp_path: Path) -> None:
    lora = found(tmp_path, **LORA, lora_dropout=0.1).content["training"]["lora"]
    assert lora == {"rank": 16, "targets": ["q", "ffn_down"], "dropout": 0.1}
    content = whole(found(tmp_path, **LORA, load_in_4bit=True, fsdp="full_shard"))
    assert content["training"]["lora"]["quantized_base"]
    assert "fp32_parameters" not in content["parallelism"]  # the base is frozen, in the precision of its files


@pytest.mark.parametrize(
    ("modules", "targets"),
    [
        ("all-linear", [*EVERY_PART]),
        ("q_proj,v_proj", ["q", "v"]),
        (["query_key_value", "dense", "dense_h_to_4h"], ["qkv", "attention_output", "ffn_up"]),
        (["self_attn.q_proj", "mlp.c_proj"], ["q", "ffn_down"]),
        (r"model.layers.\d+.(mlp|self_attn).(up|q)_proj", ["q", "up"]),
        (r"model.language_model.layers.[\d]+.mlp.(gate|up|down)_proj", ["gate", "up", "ffn_down"]),
        (None, ["q", "v"]),
    ],
)
def test_modules_with_adapters(modules: Any, targets: list[str] | None, tmp_path: Path) -> None:
    lora = found(tmp_path, **{**LORA, "lora_target_modules": modules}).content["training"]["lora"]
    assert lora.get("targets") == targets


def test_models_with_one_projection_have_one_adapter_beside_it(tmp_path: Path) -> None:
    keys = {**LORA, "lora_target_modules": "all-linear", "model_name_or_path": "tiiuae/falcon-7b"}
    assert "targets" not in found(tmp_path, **keys).content["training"]["lora"]


def test_experts_have_adapters_of_their_own(tmp_path: Path) -> None:
    lora = found(tmp_path, **LORA, model_name_or_path="mistralai/Mixtral-8x7B-v0.1").content["training"]["lora"]
    assert lora["share_expert_adapters"] is False


def test_embeddings_that_train_beside_adapters(tmp_path: Path) -> None:
    saved = {"lora_modules_to_save": ["embed_tokens", "lm_head"]}
    assert found(tmp_path, **LORA, **saved).content["training"]["lora"]["train_embeddings"]


def test_sharded_bits_need_their_storage(tmp_path: Path) -> None:
    keys = {**LORA, "load_in_4bit": True, "fsdp": "full_shard"}
    assert any("bnb_4bit_quant_storage" in note for note in found(tmp_path, **keys).notes)
    said = found(tmp_path, **keys, bnb_4bit_quant_storage="bfloat16")
    assert not any("bnb_4bit_quant_storage" in note for note in said.notes)
    assert said.content["training"]["lora"]["quantized_base"] is True


def test_adapters_of_parameters(tmp_path: Path) -> None:
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    keys = {**LORA, "lora_target_modules": ["q_proj", "o_proj"], "lora_target_parameters": parameters}
    lora = found(tmp_path, **keys).content["training"]["lora"]
    assert lora["targets"] == ["q", "attention_output", "ffn_up", "ffn_down"]
    assert (lora["expert_weights"], lora["share_expert_adapters"]) == (True, False)
    with pytest.raises(ConfigError, match=r"router\.weight: expected experts' gate_up_proj and down_proj"):
        found(tmp_path, **{**keys, "lora_target_parameters": ["mlp.router.weight"]})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"load_in_4bit": True}, "quantised weights are trained with adapters alone"),
        ({"optim": "adafactor"}, "optim is 'adafactor'; modelled are AdamW"),
        ({"fp16": True}, "fp16 is True; bf16 is true as well"),
        ({"attn_implementation": "flex_attention"}, "attn_implementation is 'flex_attention'; it is not modelled"),
        ({"num_generations": 8}, "reinforcement learning on generated samples is not modelled"),
        ({"lora_target_modules": ["nowhere"], "use_peft": True}, "nowhere: expected linear layers of a transformer"),
        ({"model_init_kwargs": {"dtype": "float32"}}, "model_init_kwargs is a mapping; write its keys"),
        ({"fsdp": "no_shard offload"}, "fsdp_offload_params is True; it is modelled where weights are freed"),
        ({"expert_parallel_degree": 4}, "expert_parallel_degree is 4; of TRL it is not known here"),
    ],
)
def test_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, **keys)


def test_what_a_file_leaves_open(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"per_device_train_batch_size": 1, "output_dir": "out", "bf16": True}), encoding="utf-8")
    read = read_any(path)
    assert set(read.unsaid) == {"model.num_layers", "model.sequence_length", "parallelism.data_parallel_size"}
    assert any("gradient_accumulation_steps 1, gradient_checkpointing False" in note for note in read.notes)


def test_trl_recomputes_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    run = {key: RUN[key] for key in ("model_name_or_path", "output_dir", "per_device_train_batch_size")}
    path.write_text(yaml.safe_dump({**run, "packing": True}), encoding="utf-8")
    content = read_any(path).content
    assert (content["training"]["recompute"], content["training"]["precision"]) == ("full", "bf16")
    assert content["model"]["sequence_length"] == 1024


def test_configurations_of_accelerate_and_deepspeed_beside_it_decide_the_layout(tmp_path: Path) -> None:
    found(tmp_path)
    (tmp_path / "accelerate.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config: {}\n", encoding="utf-8"
    )
    (tmp_path / "zero.json").write_text(json.dumps(ZERO_2 | {"train_batch_size": "auto"}), encoding="utf-8")
    for file, stage, framework in (("accelerate.yaml", 3, "transformers"), ("zero.json", 2, "deepspeed")):
        config = tmp_path / "run.yaml"
        config.write_text(
            f"system: H100\nfrom: [train.yaml, {file}]\nparallelism: {{data_parallel_size: 8}}\n", encoding="utf-8"
        )
        run = load(config)[0]
        assert (run.zero_stage, run.framework) == (stage, framework)


def test_deepspeed_file_by_its_path_from_a_folder_above(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "zero2.json").write_text(json.dumps(ZERO_2), encoding="utf-8")
    inside = tmp_path / "recipes"
    inside.mkdir()
    assert found(inside, deepspeed="configs/zero2.json").content["parallelism"]["zero_stage"] == 2


def test_muon_of_deepspeed_s_file(tmp_path: Path) -> None:
    zero = ZERO_2 | {"optimizer": {"type": "Muon"}, "train_micro_batch_size_per_gpu": "auto"}
    (tmp_path / "zero2.json").write_text(json.dumps(zero), encoding="utf-8")
    training = found(tmp_path, deepspeed="zero2.json").content["training"]
    assert (training["optimizer"], training["framework"]) == ("muon", "deepspeed")
    (tmp_path / "accelerate.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: zero2.json}\n"
    )
    command = tmp_path / "run.sh"
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(RUN), encoding="utf-8")
    command.write_text(f"accelerate launch --config_file accelerate.yaml train.py --config {path.name}\n")
    assert read_any(command).content["training"]["optimizer"] == "muon"


def test_deepspeed_file_that_is_not_there_leaves_its_stage_open(tmp_path: Path) -> None:
    read = found(tmp_path, deepspeed="ds/zero3.json")
    assert "zero3.json, which is not there" in read.unsaid["parallelism.zero_stage"]
    content = read.with_derived({**read.content, "parallelism": {"data_parallel_size": 8, "zero_stage": 3}})
    assert content["parallelism"]["overlap_parameter_gather"] is True


def test_model_of_a_folder_and_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    for folder in (tmp_path / "small", tmp_path / "hub/models--own--tiny/snapshots/1f"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("small", "own/tiny"):
        assert found(tmp_path, model_name_or_path=name).content["model"]["num_layers"] == 2
    assert (
        "own/other, which has no preset" in found(tmp_path, model_name_or_path="own/other").unsaid["model.num_layers"]
    )


@pytest.mark.parametrize(
    ("keys", "model", "expected"),
    [
        ({}, {}, ("fused_linear", "fused_rms_norm", True)),
        (
            {"liger_kernel_config": {"rope": False, "cross_entropy": True, "fused_linear_cross_entropy": False}},
            {},
            ("fused", "fused_rms_norm", None),
        ),
        ({}, {"normalization": "layer_norm", "rotary_fraction": 0.0}, ("fused_linear", "layer_norm", None)),
    ],
)
def test_kernels_of_liger_replace_what_the_model_has(
    keys: dict[str, Any], model: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    read = found(tmp_path, use_liger_kernel=True, **keys)
    whole_model = read.with_derived({**read.content, "model": {**read.content["model"], **model}})["model"]
    assert (whole_model["loss"], whole_model["normalization"], whole_model.get("fused_rope")) == expected


def test_state_of_a_trainer(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [], "global_step": 1, "train_batch_size": 4}), encoding="utf-8")
    read = read_any(path, num_gpus=2)
    assert read.content["training"]["micro_batch_size"] == 4
    assert read.content["parallelism"] == {"data_parallel_size": 2}
    assert {"model.num_layers", "training.precision", "parallelism.zero_stage"} <= set(read.unsaid)


def test_adapter_configuration_beside_a_training(tmp_path: Path) -> None:
    found(tmp_path)
    adapter = {
        "peft_type": "LORA",
        "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
        "r": 4,
        "target_modules": ["k_proj"],
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    config = tmp_path / "run.yaml"
    config.write_text(
        "system: H100\nfrom: [adapter_config.json, train.yaml]\nparallelism: {data_parallel_size: 8}\n",
        encoding="utf-8",
    )
    lora = load(config)[0].lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (4, ("k",))
    (tmp_path / "adapter_config.json").write_text(json.dumps({**adapter, "peft_type": "IA3"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="peft_type is IA3; only LoRA is modelled"):
        read_any(tmp_path / "adapter_config.json")


@pytest.mark.parametrize(
    ("name", "targets"),
    [("DeepSeek-V2-Lite", ["q_up", "attention_output"]), ("DeepSeek-V3", ["attention_output"])],
)
def test_modules_that_the_model_does_not_have_get_no_adapters(name: str, targets: list[str], tmp_path: Path) -> None:
    keys = {**LORA, "model_name_or_path": f"deepseek-ai/{name}", "lora_target_modules": ["q_proj", "o_proj"]}
    read = found(tmp_path, **keys)
    assert read.content["training"]["lora"]["targets"] == targets
    assert any("the model has no q" in note for note in read.notes) is (len(targets) == 1)


def test_arguments_as_a_trainer_writes_them_out(tmp_path: Path) -> None:
    written: dict[str, Any] = {
        "fsdp": [],
        "fsdp_config": {"min_num_params": 0, "xla": False},
        "sharded_ddp": [],
        "deepspeed": None,
    }
    read = found(tmp_path, **written, max_steps=-1, optim_args=None, _n_gpu=1, gradient_checkpointing_kwargs=None)
    assert whole(read)["parallelism"]["zero_stage"] == 0
    assert not any("not known here" in note for note in read.notes)
    assert "budget.train_tokens" not in read.derived


def test_checkpoints_that_are_entered_again_run_to_their_end(tmp_path: Path) -> None:
    again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    assert "recompute_stops_early" not in found(tmp_path, **again).content["training"]


def test_a_list_is_no_switch(tmp_path: Path) -> None:
    assert "bf16 is [1]; expected true or false" in refused(tmp_path, bf16=[1])


def test_a_vocabulary_that_a_key_changes_is_refused(tmp_path: Path) -> None:
    assert "resize_token_embeddings is True" in refused(tmp_path, resize_token_embeddings=True)


@pytest.mark.parametrize(
    ("modules", "targets"),
    [
        (["q_proj", "out_proj"], ["q", "attention_output"]),  # OPT, GPT-J
        (["q_proj", "o_proj", "in_proj", "out_proj"], ["q", "attention_output", "in_projection", "out_projection"]),
    ],
)
def test_out_proj_is_attention_s_unless_others_are_named(
    modules: list[str], targets: list[str], tmp_path: Path
) -> None:
    keys = {"use_peft": True, "lora_target_modules": modules, "model_name_or_path": "somebody/unknown"}
    assert found(tmp_path, **keys).content["training"]["lora"]["targets"] == targets


def test_source_and_target_make_a_sample(tmp_path: Path) -> None:
    keys = {"max_seq_length": None, "max_input_length": 512, "max_output_length": 256}
    assert found(tmp_path, **keys).content["model"]["sequence_length"] == 768


def test_checkpoints_of_unsloth_tell_its_kernels(tmp_path: Path) -> None:
    read = found(tmp_path, gradient_checkpointing="unsloth")
    assert read.content["training"]["offload_activations"] is True
    assert read.content["model"]["loss"] == "fused_linear"
    assert any("kernels are predicted as Liger's" in note for note in read.notes)


def test_adapters_of_another_file_are_refused_by_name(tmp_path: Path) -> None:
    assert "lora_config is 'lora.json'; adapters that another file says" in refused(tmp_path, lora_config="lora.json")
