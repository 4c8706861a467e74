"""Training scripts of OLMo-core, read from their syntax trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

HEAD = """
from olmo_core.config import DType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
"""
MODULE = """
LENGTH = 8192
model = TransformerConfig.{model})
loader = NumpyDataLoaderConfig(global_batch_size=512 * LENGTH)
module = TransformerTrainModuleConfig(
    rank_microbatch_size=2 * LENGTH,
    max_sequence_length=LENGTH,
    optim=SkipStepAdamWConfig(lr=3e-4),
    compile_model=True,
    dp_config=TransformerDataParallelConfig(name=DataParallelType.{kind}, param_dtype=DType.bfloat16),
    {more}
)
"""


def found(tmp_path: Path, model: str = "olmo2_7B(vocab_size=50304", kind: str = "fsdp", more: str = "") -> Read:
    path = tmp_path / "train.py"
    path.write_text(HEAD + MODULE.format(model=model, kind=kind, more=more), encoding="utf-8")
    assert detect(path) == "OLMo-core script"
    return read_any(path, 64)


def test_a_script(tmp_path: Path) -> None:
    content = found(tmp_path).content
    assert (content["model"]["hidden_size"], content["model"]["sequence_length"]) == (4096, 8192)
    assert content["model"]["vocab_size"] == 100352  # of dolma2, the tokenizer where a script names none
    training, parallelism = content["training"], content["parallelism"]
    assert (training["micro_batch_size"], training["global_batch_size"]) == (2, 512)
    assert (training["precision"], training["compiled"], training["recompute"]) == ("bf16", True, "none")
    assert (parallelism["zero_stage"], parallelism["data_parallel_size"]) == (3, 64)
    assert (parallelism["fp32_parameters"], parallelism["fp32_gradients"]) == (True, True)
    assert "zero_group_size" not in parallelism


def test_degrees_and_recomputation(tmp_path: Path) -> None:
    more = (
        "tp_config=TransformerTensorParallelConfig(degree=2),\n"
        "    ac_config=TransformerActivationCheckpointingConfig("
        "mode=TransformerActivationCheckpointingMode.selected_blocks, block_interval=2)"
    )
    content = found(tmp_path, "olmo2_190M(n_layers=24, vocab_size=1", "hsdp", more).content
    assert content["model"]["num_layers"] == 24
    parallelism = content["parallelism"]
    assert (parallelism["tensor_parallel_size"], parallelism["data_parallel_size"]) == (2, 32)
    assert parallelism["zero_group_size"] == 4  # a node of 8 GPUs, less the ranks that split layers
    assert (content["training"]["recompute"], content["training"]["recompute_every"]) == ("full", 2)


def test_builders_of_early_releases(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text(
        HEAD
        + """
def build_model_config(common):
    return TransformerConfig.olmo2_13B(
        vocab_size=common.tokenizer.padded_vocab_size(),
        compile=True,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp, param_dtype=DType.bfloat16),
    )

def build_trainer_config(common):
    return TrainerConfig(rank_microbatch_size=2 * 4096, save_folder=common.save_folder)

main(global_batch_size=1024 * 4096, model_config_builder=build_model_config)
""",
        encoding="utf-8",
    )
    content = read_any(path, 8).content
    assert content["model"]["num_layers"] == 40
    assert (content["training"]["micro_batch_size"], content["training"]["global_batch_size"]) == (2, 1024)
    assert content["parallelism"]["zero_stage"] == 0


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("olmo2_7B(vocab_size=1, sliding_window=window", "", "sliding_window changes the model"),
        ("olmo2_7B(vocab_size=1", "pp_config=TransformerPipelineParallelConfig(degree=2)", "a pipeline of OLMo-core"),
        ("olmo2_7B(vocab_size=1", "float8_config=Float8Config(enabled=True)", "float8_config is enabled"),
        (
            "olmo2_7B(vocab_size=1",
            "ac_config=TransformerActivationCheckpointingConfig(mode='selected_modules')",
            "ac_config recomputes selected_modules",
        ),
    ],
)
def test_what_is_not_read(model: str, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, model, more=more)


def test_models_without_sizes_are_asked_for(tmp_path: Path) -> None:
    unsaid = found(tmp_path, "olmoe_1B_7B(vocab_size=1").unsaid["model.num_layers"]
    assert "the model is TransformerConfig.olmoe_1B_7B, whose sizes are not known here" in unsaid


def test_other_programs_of_olmo_core(tmp_path: Path) -> None:
    path = tmp_path / "convert.py"
    path.write_text("from olmo_core.nn.hf import convert\nconvert()\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="it trains nothing by itself"):
        read_any(path)


def test_a_length_that_comes_from_outside_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = MODULE.format(model="olmo2_7B(vocab_size=1", kind="fsdp", more="").replace(
        "LENGTH = 8192", "LENGTH = size()"
    )
    path.write_text(HEAD + text, encoding="utf-8")
    read = read_any(path, 64)
    assert "its max_sequence_length comes from outside" in read.unsaid["model.sequence_length"]
    assert "sequence_length" not in read.content["model"]
    assert "micro_batch_size" not in read.content["training"]
