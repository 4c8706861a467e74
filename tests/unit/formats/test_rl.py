"""Reinforcement learning: the update of verl, OpenRLHF and NeMo RL is read, the rest is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.read import Read
from predictor.formats import read_any

ACTOR = "actor_rollout_ref.actor"
VERL = f"""\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 \\
    data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    {ACTOR}.ppo_mini_batch_size=128 {ACTOR}.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8 trainer.nnodes=2"""
MEGATRON = f"--config-name=ppo_megatron_trainer {ACTOR}.megatron.tensor_model_parallel_size=4"
INNER = f"+{ACTOR}.megatron.override_transformer_config.recompute"
RECOMPUTES = f"{MEGATRON} {INNER}_granularity=full {INNER}_method=uniform {INNER}_num_layers=1"
OFFLOADED, AWARE = "optimizer_offload_fraction=1", "use_precision_aware_optimizer=True"
OPENRLHF = """\
deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen3-8B --max_len 4096 \\
    --train_batch_size 64 --micro_train_batch_size 2 --zero_stage 3 --bf16 --gradient_checkpointing"""
NEMO_RL: dict[str, Any] = {
    "grpo": {"num_prompts_per_step": 64, "num_generations_per_prompt": 16},
    "policy": {
        "model_name": "Qwen/Qwen3-8B",
        "train_global_batch_size": 512,
        "train_micro_batch_size": 2,
        "max_total_sequence_length": 4096,
        "precision": "bfloat16",
        "dtensor_cfg": {"enabled": True, "tensor_parallel_size": 2},
        "generation": {"backend": "vllm"},
    },
    "cluster": {"gpus_per_node": 8, "num_nodes": 2},
}


def of_script(tmp_path: Path, command: str, more: str = "") -> Read:
    path = tmp_path / "run.sh"
    path.write_text(f"{command} {more}\n", encoding="utf-8")
    return read_any(path)


def of_nemo_rl(tmp_path: Path, changes: dict[str, Any] | None = None) -> Read:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(merged(NEMO_RL, changes or {})), encoding="utf-8")
    return read_any(path)


def named(read: Read, words: str) -> bool:
    return any(words in note for note in read.notes)


def test_update_of_verl(tmp_path: Path) -> None:
    read = of_script(tmp_path, VERL)
    layout, training = read.content["parallelism"], read.content["training"]
    assert read.content["model"] == {"preset": "qwen3-8b", "sequence_length": 4096, "loss": "torch"}
    assert (layout["data_parallel_size"], layout["zero_stage"], layout["fp32_parameters"]) == (16, 3, True)
    assert (training["global_batch_size"], training["micro_batch_size"], training["recompute"]) == (1024, 4, "full")
    assert named(read, "a step of training has 4 of them")
    assert named(read, "the rollout is not predicted: rollout.name")
    assert named(read, "reference, critic and rewards is not predicted: actor_rollout_ref.ref.log_prob")
    assert named(read, "set training.mean_sequence_length")
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("more", "section", "key", "value"),
    [
        (f"{ACTOR}.fsdp_config.fsdp_size=8", "parallelism", "zero_group_size", 8),
        (f"{ACTOR}.fsdp_config.model_dtype=bf16", "parallelism", "fp32_parameters", False),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", "parallelism", "context_parallel_size", 2),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", "training", "recompute", "none"),
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=8192", "training", "micro_batch_size", 2),
        (f"{MEGATRON} {ACTOR}.megatron.pipeline_model_parallel_size=2", "parallelism", "pipeline_parallel_size", 2),
        (MEGATRON, "training", "framework", "megatron-lm"),
        (f"{MEGATRON} {ACTOR}.megatron.sequence_parallel=False", "parallelism", "sequence_parallel", False),
        (RECOMPUTES, "training", "recompute", "full"),
    ],
)
def test_settings_of_verl(more: str, section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert of_script(tmp_path, VERL, more).content[section][key] == value


def test_what_only_a_run_knows_is_asked_for(tmp_path: Path) -> None:
    more = f"data.max_response_length=$LENGTH {ACTOR}.ppo_mini_batch_size=$MINI trainer.nnodes=$NODES"
    read = of_script(tmp_path, VERL, more)
    asked = {"model.sequence_length", "training.global_batch_size", "parallelism.data_parallel_size"}
    assert read.unsaid.keys() == asked
    assert "sequence_length" not in read.content["model"]


def test_fine_tuning_of_verl_takes_the_launchers_gpus(tmp_path: Path) -> None:
    command = "torchrun --nnodes=2 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=64"
    more = "data.micro_batch_size_per_gpu=2 data.max_length=2048 model.partial_pretrain=Qwen/Qwen3-4B model.lora_rank=8"
    read = of_script(tmp_path, command, more)
    assert (read.content["model"]["preset"], read.content["model"]["sequence_length"]) == ("qwen3-4b", 2048)
    assert read.content["parallelism"]["data_parallel_size"] == 8
    assert read.content["training"]["lora"]["rank"] == 8


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (f"{ACTOR}.strategy=torchtitan", "the actor's strategy is torchtitan; modelled: fsdp"),
        (f"+{ACTOR}.unheard_of_size=3", r"actor\.unheard_of_size is 3; of verl it is not known here"),
    ],
)
def test_what_verl_asks_for_and_is_not_modelled(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        of_script(tmp_path, VERL, more)


def test_program_that_generates_is_no_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it generates or evaluates"):
        of_script(tmp_path, "python -m verl.trainer.main_generation trainer.nnodes=1 model.path=x")


def test_update_of_openrlhf(tmp_path: Path) -> None:
    read = of_script(tmp_path, OPENRLHF)
    layout, training = read.content["parallelism"], read.content["training"]
    assert (read.content["model"]["preset"], read.content["model"]["sequence_length"]) == ("qwen3-8b", 4096)
    assert (layout["data_parallel_size"], layout["zero_stage"]) == (8, 3)
    assert (training["global_batch_size"], training["micro_batch_size"], training["recompute"]) == (64, 2, "full")
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("more", "section", "key", "value"),
    [
        ("--adam_offload", "training", "offload_optimizer", 1.0),
        ("--ring_attn_size 2", "parallelism", "context_parallel_size", 2),
        ("--ds_tensor_parallel_size 2", "parallelism", "tensor_parallel_size", 2),
        ("--overlap_comm", "parallelism", "overlap_gradient_reduction", True),
        ("--use_dynamic_batch --train_max_tokens_per_gpu 16384", "training", "micro_batch_size", 4),
        ("--zero_stage 2", "parallelism", "zero_stage", 2),
    ],
)
def test_settings_of_openrlhf(more: str, section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert of_script(tmp_path, OPENRLHF, more).content[section][key] == value


def test_pairs_are_two_sequences(tmp_path: Path) -> None:
    read = of_script(tmp_path, OPENRLHF.replace("train_sft", "train_dpo"))
    training = read.content["training"]
    assert (training["global_batch_size"], training["micro_batch_size"]) == (128, 4)
    assert named(read, "two sequences")
    assert training["reference_model"] == "separate"
    assert of_script(tmp_path, OPENRLHF.replace("train_sft", "train_rm")).content["model"]["loss"] == "score"
    pairs = of_nemo_rl(tmp_path, {"grpo": None, "dpo": {"max_num_steps": 1}}).content["training"]
    assert (pairs["global_batch_size"], pairs["micro_batch_size"]) == (1024, 4)


def test_actor_of_openrlhf_has_its_own_gpus(tmp_path: Path) -> None:
    online = OPENRLHF.replace("train_sft", "train_ppo_ray").replace("--max_len 4096", "--prompt_max_len 1024")
    more = "--generate_max_len 7168 --actor_num_nodes 2 --actor_num_gpus_per_node 4 --vllm_num_engines 4"
    read = of_script(tmp_path, online, more)
    assert read.content["model"]["sequence_length"] == 8192
    assert read.content["parallelism"]["data_parallel_size"] == 8
    assert named(read, "is not predicted: --vllm_num_engines")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--load_in_4bit", "base weights in four bits"),
        ("--optimizer lion", "only Adam is modelled"),
        ("--unheard_of_size 3", "unheard_of_size is '3'; of OpenRLHF it is not known here"),
    ],
)
def test_what_openrlhf_asks_for_and_is_not_modelled(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        of_script(tmp_path, OPENRLHF, more)


def test_update_of_nemo_rl(tmp_path: Path) -> None:
    read = of_nemo_rl(tmp_path)
    layout, training = read.content["parallelism"], read.content["training"]
    assert (read.content["model"]["preset"], read.content["model"]["sequence_length"]) == ("qwen3-8b", 4096)
    assert (layout["tensor_parallel_size"], layout["data_parallel_size"], layout["zero_stage"]) == (2, 8, 3)
    assert (training["global_batch_size"], training["micro_batch_size"]) == (512, 2)
    assert named(read, "a step of training has 2 of them")
    assert named(read, "the rollout is not predicted: policy.generation.backend")


@pytest.mark.parametrize(
    ("policy", "section", "key", "value"),
    [
        ({"dtensor_cfg": {"activation_checkpointing": True}}, "training", "recompute", "full"),
        ({"dtensor_cfg": {"lora_cfg": {"enabled": True, "dim": 4}}}, "training", "lora", 4),
        ({"generation": {"colocated": {"enabled": False, "resources": {"num_nodes": 1}}}}, "parallelism", "dp", 4),
        ({"megatron_cfg": {"enabled": True, "pipeline_model_parallel_size": 4}}, "parallelism", "pp", 4),
        ({"megatron_cfg": {"enabled": True, "activation_checkpointing": True}}, "training", "recompute", "full"),
    ],
)
def test_settings_of_nemo_rl(policy: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    keys = {"dp": "data_parallel_size", "pp": "pipeline_parallel_size"}
    got = of_nemo_rl(tmp_path, {"policy": policy}).content[section][keys.get(key, key)]
    assert (got["rank"] if key == "lora" else got) == value


def test_recipe_of_nemo_rl_builds_on_another_file(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(NEMO_RL), encoding="utf-8")
    path = tmp_path / "recipes/small.yaml"
    path.write_text("defaults: ../base.yaml\ngrpo: {num_prompts_per_step: 32}\npolicy: {train_micro_batch_size: 1}\n")
    training = read_any(path).content["training"]
    assert (training["micro_batch_size"], training["global_batch_size"]) == (1, 512)
    path.write_text("defaults: ../other.yaml\ngrpo: {}\npolicy: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"small\.yaml builds on other\.yaml \(defaults\), which is not beside it"):
        read_any(path)


def test_states_on_the_host(tmp_path: Path) -> None:
    of_nemo = of_nemo_rl(tmp_path, {"policy": {"dtensor_cfg": {"cpu_offload": True}}}).content["training"]
    of_verl = of_script(tmp_path, VERL, f"{ACTOR}.fsdp_config.offload_policy=True").content["training"]
    assert of_nemo["offload_parameters"] is of_verl["offload_parameters"] is True
    assert of_nemo["offload_optimizer"] == of_verl["offload_optimizer"] == 1.0
    activations = "actor_rollout_ref.model.enable_activation_offload=True"
    assert of_script(tmp_path, VERL, activations).content["training"]["offload_activations"] is True


def test_optimizer_of_verl(tmp_path: Path) -> None:
    optim = f"{ACTOR}.optim"
    words = [f"+{optim}.override_optimizer_config.{key}" for key in ("optimizer_cpu_offload=True", OFFLOADED, AWARE)]
    training = of_script(tmp_path, VERL, " ".join((MEGATRON, *words))).content["training"]
    assert training["offload_optimizer"] == 1.0
    with pytest.raises(ConfigError, match=r"actor\.optim\.optimizer is 'Muon'; Muon is not modelled"):
        of_script(tmp_path, VERL, f"{optim}.optimizer=Muon")


def test_openrlhf_on_fsdp2(tmp_path: Path) -> None:
    command = OPENRLHF.replace("--pretrain", "--model_name_or_path").replace("--zero_stage 3", "--fsdp2_tp_size 2")
    read = of_script(tmp_path, command, "--no-fsdp2_reshard_after_forward")
    keys, training = read.content["parallelism"], read.content["training"]
    assert (keys["tensor_parallel_size"], keys["data_parallel_size"], keys["zero_stage"]) == (2, 4, 3)
    assert (keys["fp32_parameters"], keys["reshard_after_forward"]) == (True, False)
    assert (training["micro_batch_size"], training["recompute"], training["framework"]) == (2, "full", "transformers")
    assert of_script(tmp_path, command, "--fsdp2_cpu_offload").content["training"]["offload_parameters"]


def test_megatron_inside_nemo_rl(tmp_path: Path) -> None:
    recomputes = {"activation_checkpointing": True, "recompute_granularity": "selective", "recompute_modules": ["mlp"]}
    graphs = {"cuda_graph_impl": "none", "cuda_graph_modules": ["attn"], "cuda_graph_warmup_steps": 3}
    off = {"fine_grained_activation_offloading": False, "offload_modules": []}
    megatron = {"enabled": True, **recomputes, **graphs, **off}
    training = of_nemo_rl(tmp_path, {"policy": {"megatron_cfg": megatron}}).content["training"]
    assert (training["recompute"], training["recompute_modules"]) == ("selective", ["mlp"])
    assert "cuda_graphs" not in training
