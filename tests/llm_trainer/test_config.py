"""Configurations check themselves, and come back unchanged from dictionaries and files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_trainer.config import DataConfig, ModelConfig, TrainingConfig, read_config
from llm_trainer.config.model_config import ACTIVATIONS, NORMS, POSITION_ENCODINGS
from llm_trainer.config.section import Section
from llm_trainer.exceptions import LLMTrainerError, ModelConfigurationError

COME_ALONG = sorted((Path(__file__).parents[2] / "training" / "configs").iterdir())
CONFIGS = (ModelConfig, TrainingConfig, DataConfig)
SPECIFIED: dict[type[Section], dict[str, Any]] = {
    ModelConfig: {
        "vocab_size": 50000,
        "d_model": 768,
        "n_heads": 12,
        "n_layers": 12,
        "d_ff": 3072,
        "max_seq_len": 1024,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "pre_norm": True,
        "use_learned_pos_emb": False,
        "gradient_checkpointing": False,
    },
    TrainingConfig: {
        "batch_size": 32,
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "num_epochs": 10,
        "max_steps": None,
        "lr_scheduler": "cosine",
        "warmup_steps": 1000,
        "warmup_ratio": 0.1,
        "min_lr_ratio": 0.1,
        "optimizer": "adamw",
        "max_grad_norm": 1.0,
        "gradient_accumulation_steps": 1,
        "use_amp": True,
        "amp_dtype": "float16",
        "save_steps": 1000,
        "checkpoint_dir": "./checkpoints",
        "eval_steps": 500,
        "eval_strategy": "steps",
        "logging_steps": 100,
        "report_to": ["tensorboard"],
        "world_size": 1,
        "local_rank": -1,
    },
    DataConfig: {
        "dataset_name": "wikitext",
        "dataset_config": "wikitext-103-raw-v1",
        "dataset_split": "train",
        "validation_split": "validation",
        "text_column": "text",
        "max_length": 1024,
        "min_length": 10,
        "vocab_size": 50000,
        "pack_sequences": True,
        "preprocessing_num_workers": 4,
        "dataloader_num_workers": 4,
        "train_file": None,
        "validation_file": None,
    },
}


@pytest.mark.parametrize("config", CONFIGS)
def test_documented_values_are_the_defaults(config: type[Section]) -> None:
    assert config(**SPECIFIED[config]) == config()
    assert {key: getattr(config(), key) for key in SPECIFIED[config]} == SPECIFIED[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_is_explained(config: type[Section]) -> None:
    assert config.__doc__ is not None
    explained = config.__doc__.partition("Attributes:")[2]
    for field in fields(config):
        assert f"\n        {field.name}: " in explained


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_file_gives_back_what_was_saved(config: type[Section], suffix: str, tmp_path: Path) -> None:
    for saved in (config(), TrainingConfig(betas=(0.8, 0.95), learning_rate=1e-9, report_to="csv")):  # type: ignore[arg-type]
        saved.save(tmp_path / f"config.{suffix}")
        assert type(saved).load(str(tmp_path / f"config.{suffix}")) == saved


@given(
    n_heads=st.integers(1, 8),
    group=st.integers(1, 3),
    half=st.integers(1, 16),
    activation=st.sampled_from(ACTIVATIONS),
    norm=st.sampled_from(NORMS),
    positions=st.sampled_from(POSITION_ENCODINGS),
    flags=st.tuples(*[st.booleans()] * 4),
)
def test_a_dictionary_gives_back_every_legal_model(
    n_heads: int, group: int, half: int, activation: str, norm: str, positions: str, flags: tuple[bool, ...]
) -> None:
    pre_norm, use_bias, tie, checkpointing = flags
    config = ModelConfig(
        d_model=n_heads * group * 2 * half,
        n_heads=n_heads * group,
        n_kv_heads=n_heads,
        activation=activation,
        norm=norm,
        position_encoding=positions,
        pre_norm=pre_norm,
        use_bias=use_bias,
        tie_word_embeddings=tie,
        gradient_checkpointing=checkpointing,
    )
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert (config.d_head, config.kv_heads, config.positions) == (2 * half, n_heads, positions)


def test_positions_follow_the_documented_switch() -> None:
    assert ModelConfig().positions == "sinusoidal"
    assert ModelConfig(use_learned_pos_emb=True).positions == "learned"


def test_the_effective_batch_is_that_of_all_replicas() -> None:
    assert TrainingConfig(batch_size=4, gradient_accumulation_steps=3, world_size=2).effective_batch_size == 24
    layout = TrainingConfig(batch_size=4, world_size=8, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert (layout.data_parallel_size, layout.effective_batch_size) == (2, 8)
    assert TrainingConfig(tensor_parallel_size=2).data_parallel_size == 1


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        (ModelConfig, {"n_heads": 5}, "n_heads is 5; it must divide d_model, 768. Try 1, 2, 3, 4, 6, 8, 12 or 16"),
        (ModelConfig, {"n_kv_heads": 5}, "n_kv_heads is 5; it must divide n_heads, 12"),
        (ModelConfig, {"d_model": 0}, "d_model is 0; expected a whole number of at least 1"),
        (ModelConfig, {"vocab_size": True}, "vocab_size is True; expected a whole number"),
        (ModelConfig, {"dropout": 1.0}, "dropout is 1.0; expected a number from 0 to under 1"),
        (ModelConfig, {"activation": "gleu"}, "activation is 'gleu'; expected gelu, .* Did you mean gelu?"),
        (ModelConfig, {"norm": None}, "norm is None; expected layer_norm, rms_norm"),
        (ModelConfig, {"pre_norm": 1}, "pre_norm is 1; expected true or false"),
        (ModelConfig, {"d_model": 7, "n_heads": 7}, "d_model is 7; sinusoidal positions need an even width"),
        (ModelConfig, {"d_model": 36, "position_encoding": "rope"}, "rotary positions need an even width of heads"),
        (ModelConfig, {"use_learned_pos_emb": True, "position_encoding": "rope"}, "use_learned_pos_emb says learned"),
        (TrainingConfig, {"learning_rate": "1e-4"}, "learning_rate is '1e-4'; expected a number from 0 on"),
        (TrainingConfig, {"learning_rate": float("nan")}, "learning_rate is nan; expected a number"),
        (TrainingConfig, {"warmup_ratio": 1.5}, "warmup_ratio is 1.5; expected a number from 0 to 1"),
        (TrainingConfig, {"lr_scheduler": "cosin"}, "lr_scheduler is 'cosin'; .* Did you mean cosine?"),
        (TrainingConfig, {"betas": [0.9]}, r"betas is \[0.9\]; expected two numbers"),
        (TrainingConfig, {"report_to": ["wandb"]}, r"report_to is \['wandb'\]; expected a list of tensorboard"),
        (TrainingConfig, {"zero_stage": 4}, "zero_stage is 4; expected 0, 1, 2 or 3"),
        (TrainingConfig, {"world_size": 3, "tensor_parallel_size": 2}, "world_size is 3; .* Try 2 or a multiple"),
        (TrainingConfig, {"num_chunks": 2}, "num_chunks is 2; several stages per rank need"),
        (TrainingConfig, {"pipeline_schedule": "interleaved_1f1b"}, "interleaving needs at least 2"),
        (TrainingConfig, {"max_steps": 0}, "max_steps is 0; expected a whole number of at least 1"),
        (DataConfig, {"text_column": ""}, "text_column is ''; expected text"),
        (DataConfig, {"min_length": 2000}, "min_length is 2000; it must be at most max_length, 1024"),
        (DataConfig, {"dataset_name": None}, "dataset_name is None; and train_file is null too"),
    ],
)
def test_a_wrong_value_is_one_line(config: type[Section], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigurationError, match=message) as caught:
        config(**keys)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, AssertionError)  # as documented
    assert isinstance(caught.value, LLMTrainerError)


@pytest.mark.parametrize("config", CONFIGS)
def test_an_unknown_key_names_the_nearest(config: type[Section]) -> None:
    first = fields(config)[0].name
    with pytest.raises(ModelConfigurationError, match=rf"{first}x is no field of .*\. Did you mean {first}\?"):
        config.from_dict({f"{first}x": 3})
    with pytest.raises(ModelConfigurationError, match=r"zzz is no field of .* It has "):
        config.from_dict({"zzz": 3})


def test_a_field_set_later_is_checked_again() -> None:
    config = ModelConfig()
    config.vocab_size = 0
    with pytest.raises(ModelConfigurationError, match="vocab_size is 0"):
        config.validate()


DOCUMENTED_YAML = """
model: {vocab_size: 50000, d_model: 768, n_heads: 12, n_layers: 12, d_ff: 3072, max_seq_len: 1024, dropout: 0.1,
        activation: "gelu"}
training: {batch_size: 32, learning_rate: 1e-4, num_epochs: 10, lr_scheduler: "cosine", warmup_steps: 1000,
           use_amp: true}
data: {dataset_name: "wikitext", dataset_config: "wikitext-103-raw-v1", max_length: 1024, vocab_size: 50000}
"""


def test_the_documented_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(DOCUMENTED_YAML, encoding="utf-8")
    model, training, data = read_config(path)
    assert (model, training, data) == (ModelConfig(), TrainingConfig(), DataConfig())
    assert training.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {n_heads: 5}", r"model: n_heads is 5; it must divide d_model"),
        ("modle: {n_heads: 4}", r"modle is no section; .* Did you mean model\?"),
        ("training: {learnig_rate: 1}", r"training: learnig_rate is no field .* Did you mean learning_rate\?"),
        ("model: [1]", r"model: ModelConfig is \[1\]; expected keys and values"),
        ("data: {max_length: 2048}", r"data\.max_length is 2048; model\.max_seq_len is 1024"),
        ("", r"is empty; expected keys and values"),
        ("model: {", r"not YAML"),
        ("model: {d_model: 8, d_model: 16}", r"d_model is given twice"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelConfigurationError, match=message) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigurationError, match="does not exist"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(ModelConfigurationError, match="does not exist"):
        ModelConfig.load(tmp_path / "none.json")


def test_what_is_predicted_is_not_trained(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: {n_layers: 2}\nprediction: {system: Perlmutter}\n", encoding="utf-8")
    assert read_config(path).model.n_layers == 2


def test_configurations_need_no_torch() -> None:
    code = "import sys, llm_trainer, llm_trainer.config, llm_trainer.exceptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", COME_ALONG, ids=lambda path: path.name)
def test_configurations_that_come_along_are_legal(path: Path) -> None:
    if path.stem.startswith("eval"):  # a data set alone, as evaluate.py takes it
        assert DataConfig.load(path).max_length > 0
    else:
        assert read_config(path).model.num_parameters > 0
