"""Recipes of NeMo 2: functions, scripts and NeMo-Run's YAML, evaluated without NeMo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.nemo.models import preset_of_class

HEAD = """\
import nemo_run as run
import torch
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_mxfp8_mixed
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from scripts.performance.helpers import set_primary_perf_configs


def pretrain() -> run.Partial:
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=4, num_gpus_per_node=8{arguments})
{body}
    return recipe
"""
BUCKETS = ("parallelism", "gradient_bucket_elements", 128 * 1024 * 1024)
TUNED = """\
recipe = set_primary_perf_configs(
    recipe, 'pre_train', num_nodes=2, num_gpus_per_node=8, mbs=2, gbs=64, max_steps=1,
    tp_size=2, pp_size=1, cp_size=1, vp_size=1, ep_size=1, compute_dtype='fp8', fp8_recipe='cs',
)"""
SCRIPT = """\
from nemo import lightning as nl
from nemo.collections import llm

if __name__ == "__main__":
    data = llm.MockDataModule(seq_length=1024, global_batch_size=32, micro_batch_size=4)
    config = llm.GPTConfig(num_layers=6, hidden_size=384, num_attention_heads=6, vocab_size=1024)
    strategy = nl.MegatronStrategy(tensor_model_parallel_size=2)
    precision = nl.MegatronMixedPrecision(precision="bf16-mixed")
    trainer = nl.Trainer(devices=4, num_nodes=1, strategy=strategy, plugins=precision)
    llm.train(model=llm.GPTModel(config), data=data, trainer=trainer)
"""
WRITTEN = """\
_partial_: true
_target_: nemo.collections.llm.api.pretrain
data: {_target_: nemo.collections.llm.MockDataModule, global_batch_size: 512, micro_batch_size: 1, seq_length: 8192}
model: {_target_: nemo.collections.llm.LlamaModel, config: {_target_: nemo.collections.llm.Llama3Config70B}}
optim: {_target_: nemo.lightning.MegatronOptimizerModule, config: {optimizer: adam, use_distributed_optimizer: true}}
trainer:
  _target_: nemo.lightning.Trainer
  devices: 8
  num_nodes: 8
  plugins: {_target_: nemo.lightning.MegatronMixedPrecision, precision: bf16-mixed, fp8: hybrid, fp8_recipe: mxfp8}
  callbacks: [{_target_: nemo.lightning.MegatronCommOverlapCallback, tp_comm_overlap: true}]
  strategy:
    _target_: nemo.lightning.MegatronStrategy
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 4
    virtual_pipeline_model_parallel_size: 5
    sequence_parallel: true
"""


def found(tmp_path: Path, body: str = "", arguments: str = "") -> Read:
    path = tmp_path / "recipe.py"
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(HEAD.format(body=indented, arguments=arguments), encoding="utf-8")
    return read_any(path)


def test_recipe_of_nemo_is_known_without_its_code(tmp_path: Path) -> None:
    read = found(tmp_path)
    assert read.format == "NeMo 2 recipe"
    assert read.content["model"]["preset"] == "llama3-8b"
    layout, training = read.content["parallelism"], read.content["training"]
    assert (layout["context_parallel_size"], layout["data_parallel_size"], layout["zero_stage"]) == (2, 16, 1)
    assert (training["global_batch_size"], training["precision"], training["framework"]) == (512, "bf16", "nemo")
    assert any("as NeMo 2.4 has it" in note for note in read.notes)
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("body", "section", "key", "value"),
    [
        ("recipe.trainer.strategy.tensor_model_parallel_size = 4", "parallelism", "tensor_parallel_size", 4),
        ("recipe.trainer.strategy.fsdp = 'megatron'", "parallelism", "zero_stage", 3),
        ("recipe.data.micro_batch_size = 2", "training", "micro_batch_size", 2),
        ("recipe.data.seq_length = 4096", "model", "sequence_length", 4096),
        ("recipe.model.config.num_layers = 16", "model", "num_layers", 16),
        ("recipe.trainer.plugins.fp8 = 'hybrid'", "training", "gemm_recipe", "fp8_delayed"),
        ("recipe.trainer.plugins.grad_reduce_in_fp32 = False", "parallelism", "fp32_gradients", False),
        ("recipe.peft = run.Config(llm.peft.LoRA, dim=16)", "training", "lora", None),
        ("recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback))", *BUCKETS),
        ("recipe.trainer.callbacks.extend([run.Config(MegatronCommOverlapCallback)])", *BUCKETS),
        ("recipe.trainer.plugins = bf16_with_mxfp8_mixed()", "training", "gemm_recipe", "mxfp8"),
        (TUNED, "training", "gemm_recipe", "fp8_tensorwise"),
        (TUNED, "parallelism", "data_parallel_size", 8),
    ],
)
def test_settings_on_top(body: str, section: str, key: str, value: Any, tmp_path: Path) -> None:
    got = found(tmp_path, body).content[section][key]
    assert (got["rank"] == 16) if key == "lora" else (got == value)


def test_arguments_of_the_recipe(tmp_path: Path) -> None:
    read = found(tmp_path, arguments=", tensor_parallelism=2, sequence_parallelism=True, performance_mode=True")
    layout = read.content["parallelism"]
    assert (layout["tensor_parallel_size"], layout["sequence_parallel"], layout["fp32_gradients"]) == (2, True, False)


@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        ("recipe = other(recipe)", "", r"the run|returns no recipe"),
        ("", ", hidden_size=3", "is called with hidden_size, which is not read"),
        ("recipe.trainer.strategy = run.Config(nl.FSDP2Strategy)", "", r"trainer\.strategy is FSDP2Strategy"),
        ("recipe.trainer.accumulate_grad_batches = 4", "", r"accumulate_grad_batches is 4; NeMo itself"),
        ("recipe.peft = run.Config(llm.peft.DoRA)", "", "peft is DoRA; only LoRA is modelled"),
        ("recipe.trainer.plugins = make()", "", r"trainer\.plugins cannot be read"),
        (
            "recipe.model.config.num_moe_things = 3\nrecipe.model.config.moe_unheard_of = 3",
            "",
            "moe_unheard_of is 3; of",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused(body: str, arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, body, arguments)


def test_base_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    text = HEAD.format(body="", arguments="").replace("llm.llama3_8b.pretrain_recipe", "elsewhere.pretrain_recipe")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not defined|whose code is not beside the file"):
        read_any(path)


def test_script_that_trains(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    read = read_any(path)
    model, layout = read.content["model"], read.content["parallelism"]
    assert (model["num_layers"], model["hidden_size"], model["sequence_length"], model["vocab_size"]) == (
        6,
        384,
        1024,
        1024,
    )
    assert (layout["tensor_parallel_size"], layout["data_parallel_size"], layout["zero_stage"]) == (2, 2, 0)


def test_yaml_of_nemo_run(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(WRITTEN, encoding="utf-8")
    read = read_any(path)
    layout = read.content["parallelism"]
    assert read.content["model"]["preset"] == "llama3-70b"
    assert (layout["virtual_pipeline_parallel_size"], layout["data_parallel_size"]) == (5, 4)
    assert (layout["overlap_linear_traffic"], read.content["training"]["gemm_recipe"]) == (True, "mxfp8")
    path.write_text(WRITTEN.replace("LlamaModel", "T5Model"), encoding="utf-8")
    with pytest.raises(ConfigError, match="an encoder with a decoder"):
        read_any(path)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama31Config405B", "llama3.1-405b"),
        ("Qwen25Config7B", "qwen2.5-7b"),
        ("Qwen3Config1P7B", "qwen3-1.7b"),
        ("Gemma2Config27B", "gemma2-27b"),
        ("Nemotron4Config340B", "nemotron-4-340b"),
        ("MixtralConfig8x3B", None),
        ("GPTConfig", None),
    ],
)
def test_models_by_their_classes(name: str, preset: str | None) -> None:
    assert preset_of_class(name) == preset
