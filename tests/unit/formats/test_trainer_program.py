"""Python programs that train with a Trainer are read from their syntax tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

HEAD = """\
import os
import torch
LENGTH = 1024
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)
"""
SFT = "SFTConfig(output_dir='out', max_length=LENGTH * 2, per_device_train_batch_size=2, bf16=True"


def found(tmp_path: Path, text: str, head: str = HEAD) -> Read:
    path = tmp_path / "train.py"
    path.write_text(f"{head}{text}\n", encoding="utf-8")
    assert detect(path) == "Hugging Face Trainer program"
    return read_any(path, 8)


def test_supervised_fine_tuning(tmp_path: Path) -> None:
    content = found(
        tmp_path, f"args = {SFT}, gradient_accumulation_steps=4)\nSFTTrainer(model=model, args=args)"
    ).content
    assert content["model"] == {"preset": "qwen2.5-7b", "loss": "torch", "sequence_length": 2048}
    training = content["training"]
    assert (training["micro_batch_size"], training["num_micro_batches"], training["recompute"]) == (2, 4, "full")


def test_adapters_and_four_bits(tmp_path: Path) -> None:
    text = (
        "four = BitsAndBytesConfig(load_in_4bit=True)\n"
        "lora = LoraConfig(r=8, target_modules=['q_proj'], lora_dropout=0.1)\n"
        f"SFTTrainer(model=model, args={SFT}), peft_config=lora)"
    )
    lora = found(tmp_path, text).content["training"]["lora"]
    assert lora == {"rank": 8, "targets": ["q"], "dropout": 0.1, "quantized_base": True}


@pytest.mark.parametrize(
    ("text", "reference", "loss"),
    [
        (
            "DPOTrainer(model=model, args=DPOConfig('out', per_device_train_batch_size=2, beta=0.1))",
            "separate",
            "torch",
        ),
        ("KTOTrainer(model, args=KTOConfig('out', per_device_train_batch_size=4))", "separate", "torch"),
        ("ORPOTrainer(model=model, args=ORPOConfig('out', per_device_train_batch_size=2))", None, "torch"),
        ("RewardTrainer(model=model, args=RewardConfig('out', per_device_train_batch_size=2))", None, "score"),
    ],
)
def test_preference_learning(text: str, reference: str | None, loss: str, tmp_path: Path) -> None:
    content = found(tmp_path, text).content
    assert content["training"]["micro_batch_size"] == 4
    assert content["training"].get("reference_model") == reference
    assert content["model"]["loss"] == loss


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (
            "TrainingArguments('out', bf16=has.is_bf16_supported(), fp16=not has.is_bf16_supported())",
            "precision",
            "bf16",
        ),
        (
            "TrainingArguments('out', fp16=True, per_device_train_batch_size=int(os.environ.get('B', '3')))",
            "micro_batch_size",
            3,
        ),
        (
            "p.add_argument('--a-b', default=6)\nTrainingArguments('o', bf16=True, per_device_train_batch_size=c.a_b)",
            "micro_batch_size",
            6,
        ),
        (
            "def train(rounds=5):\n    TrainingArguments('out', bf16=True, gradient_accumulation_steps=rounds)",
            "num_micro_batches",
            5,
        ),
        ("model.gradient_checkpointing_enable()\nTrainingArguments('out', bf16=True)", "recompute", "full"),
        ("model = prepare_model_for_kbit_training(model)\nTrainingArguments('out', bf16=True)", "recompute", "full"),
    ],
)
def test_values(text: str, key: str, value: object, tmp_path: Path) -> None:
    assert found(tmp_path, f"{text}\nTrainer(model=model)").content["training"][key] == value


def test_defaults_of_the_program_are_noted(tmp_path: Path) -> None:
    text = "parser.add_argument('--b', default=6)\nTrainingArguments('out', per_device_train_batch_size=args.b)"
    assert "train.py: arguments of the program have their defaults: b 6" in found(tmp_path, text).notes


def test_what_only_a_run_knows_is_asked_for(tmp_path: Path) -> None:
    text = (
        "TrainingArguments('out', per_device_train_batch_size=cfg.batch, bf16=cfg.bf16, gradient_checkpointing=cfg.gc)"
    )
    unsaid = found(tmp_path, text, "model = AutoModelForCausalLM.from_pretrained(cfg.model)\n").unsaid
    assert "per_device_train_batch_size is `cfg.batch`" in unsaid["training.micro_batch_size"]
    assert "`cfg.model`" in unsaid["model.num_layers"]
    assert {"training.precision", "training.recompute", "model.sequence_length"} <= set(unsaid)


@pytest.mark.parametrize(("action", "adapts"), [("store_true", False), ("store_false", True)])
def test_branches_that_the_program_s_defaults_settle(action: str, adapts: bool, tmp_path: Path) -> None:
    text = (
        f"p.add_argument('--lora', action='{action}')\nif args.lora:\n    LoraConfig(r=4, target_modules=['q_proj'])\n"
        "TrainingArguments('out', bf16=True)"
    )
    assert ("lora" in found(tmp_path, text).content["training"]) is adapts


def test_length_that_samples_are_cut_to(tmp_path: Path) -> None:
    text = "tokenizer(text, truncation=True, max_length=512)\nTrainingArguments('out', bf16=True)"
    assert found(tmp_path, text).content["model"]["sequence_length"] == 512


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GRPOTrainer(args=TrainingArguments('out'))", "it uses GRPOTrainer; supervised fine-tuning"),
        (
            "AutoModelForSequenceClassification.from_pretrained('x')\nTrainingArguments('o', a=1)",
            "it uses AutoModelFor",
        ),
        ("FastVisionModel.get_peft_model()\nSFTConfig(output_dir='o')", "FastVisionModel trains on images"),
        (
            "HfArgumentParser(TrainingArguments).parse()\n# TrainingArguments(",
            "takes its arguments from the command line",
        ),
        ("TrainingArguments(**config)", r"train.py:5: TrainingArguments takes **config, which only a run knows"),
        ("LoraConfig(r=cfg.rank)\nTrainingArguments(output_dir='o')", "lora_r is '`cfg.rank`'; it comes from outside"),
        ("SFTConfig(output_dir='o'", "is no Python"),
    ],
)
def test_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, text)
    assert message in str(caught.value)


def test_a_program_of_unsloth(tmp_path: Path) -> None:
    text = """
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-8B", max_seq_length=2048, dtype=None)
model = FastLanguageModel.get_peft_model(
    model, r=32, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing="unsloth"
)
trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, optim="adamw_8bit", max_steps=60))
"""
    read = found(tmp_path, text)
    assert (read.content["model"]["preset"], read.content["model"]["sequence_length"]) == ("qwen3-8b", 2048)
    training = read.content["training"]
    assert training["lora"] == {"rank": 32, "targets": ["q", "v"], "quantized_base": True}
    assert (training["precision"], training["recompute"], training["micro_batch_size"]) == ("bf16", "full", 2)
    assert any("kernels are predicted as Liger's" in note for note in read.notes)


def test_all_weights_of_a_model_of_unsloth(tmp_path: Path) -> None:
    text = """
model, tokenizer = FastModel.from_pretrained("unsloth/Qwen3-8B", max_seq_length=512, full_finetuning=True)
args = SFTConfig(output_dir="o")
trainer = SFTTrainer(model=model, args=args)
"""
    training = found(tmp_path, text).content["training"]
    assert "lora" not in training
    assert training["optimizer_state_bytes"] == 4  # moments in the weights' own bf16


UNSLOTH = """from unsloth import FastLanguageModel
model, _ = FastLanguageModel.from_pretrained(
    model_name="Qwen/Qwen3-8B", max_seq_length=LENGTH, load_in_4bit=False
)
SFTTrainer(model=model, args=SFTConfig(output_dir="x", per_device_train_batch_size=1, bf16=False, fp16=False)).train()
"""


def test_unsloth_trains_in_the_model_s_16_bits_where_none_are_on(tmp_path: Path) -> None:
    read = found(tmp_path, UNSLOTH.replace("LENGTH", "512"))
    assert read.content["training"]["precision"] == "bf16"


def test_a_length_from_outside_is_asked_for_beside_a_preset(tmp_path: Path) -> None:
    read = found(tmp_path, UNSLOTH.replace("LENGTH", "given.length"))
    assert "sequence_length" not in read.content["model"]
    assert "comes from outside" in read.unsaid["model.sequence_length"]
