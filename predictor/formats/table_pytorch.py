"""Formats of trainers in PyTorch that shard with FSDP or DDP and have keys of their own, a part of ``table.TABLE``."""

from __future__ import annotations

import re

from predictor.formats.format import Format, not_read
from predictor.formats.signature import Signature, text_signature
from predictor.formats.source import JSON, PYTHON, YAML

PYTORCH = (
    Format(
        "Oumi YAML",
        "Oumi",
        (
            Signature(
                (YAML, JSON),
                all_of=("model.model_name",),
                one_of=("training.trainer_type", "training.enable_gradient_checkpointing", "data.train.datasets"),
            ),
        ),
        "trainer.oumi",
        ("num_gpus",),
        versions="0.1 to 0.9",
        documented="src/oumi/core/configs",
        example="oumi.yaml",
    ),
    Format(
        "Unsloth YAML",
        "Unsloth",
        (
            Signature((YAML,), all_of=("training.training_type", "training.max_seq_length")),
            Signature((YAML,), all_of=("training.max_seq_length", "training.batch_size", "lora.lora_r")),
        ),
        "trainer.unsloth",
        ("num_gpus",),
        versions="2026",
        documented="unsloth_cli/config.py",
        example="unsloth.yaml",
    ),
    Format(
        "SkyPilot task",
        "SkyPilot",
        (Signature((YAML,), all_of=("resources", "run")),),
        "sky_task",
        ("content", "num_gpus"),
        versions="0.6 to 0.10",
        documented="docs/source/reference/yaml-spec.rst",
        example="sky_task.yaml",
    ),
    Format(
        "nanotron YAML",
        "nanotron",
        (Signature((YAML, JSON), all_of=("parallelism",), one_of=("tokens", "general", "data_stages", "checkpoints")),),
        "nanotron",
        ("num_gpus",),
        versions="0.3 to 0.5",
        documented="src/nanotron/config/config.py",
        example="nanotron.yaml",
    ),
    Format(
        "torchtune YAML",
        "torchtune",
        (Signature((YAML,), pattern=re.compile(r"_component_:\s*[\"']?torchtune\b")),),
        "torchtune.reader",
        ("num_gpus",),
        versions="0.3 to 0.7",
        documented="docs/source/deep_dives/configs.rst",
        example="torchtune.yaml",
    ),
    Format(
        "OLMo YAML",
        "OLMo",
        (
            Signature(
                (YAML,),
                all_of=("model.d_model", "model.n_layers", "global_train_batch_size"),
                none_of=("model.name",),
            ),
        ),
        "olmo",
        ("num_gpus",),
        versions="0.3 to 0.6",
        documented="olmo/config.py",
        example="olmo.yaml",
    ),
    Format(
        "InternEvo configuration",
        "InternEvo",
        (text_signature(r"^(?:hybrid_zero_optimizer|parallel)\s*=\s*dict\(", PYTHON),),
        "internevo",
        ("num_gpus",),
        versions="0.2 to 0.5",
        documented="doc/en/usage.md",
        example="internevo.py.txt",
    ),
    Format(
        "OLMo-core script",
        "OLMo-core",
        (text_signature(r"^\s*(?:from|import) olmo_core\b", PYTHON),),
        "olmo_core",
        ("num_gpus",),
        versions="1.7 to 3.0",
        documented="src/olmo_core/train/train_module/transformer/config.py",
        example="olmo_core.py.txt",
    ),
    not_read("OLMo-core", text_signature(r"\bolmo_core\b", YAML, JSON)),
    Format(
        "litgpt YAML",
        "litgpt",
        (
            Signature((YAML,), all_of=("train",), pattern=re.compile(r"class_path:\s*litgpt\b")),
            Signature(
                (YAML,),
                all_of=("train.micro_batch_size", "train.global_batch_size"),
                one_of=("checkpoint_dir", "model_name", "model_config", "tokenizer_dir", "lora_r", "out_dir"),
                none_of=("ddp", "scheduler"),
            ),
        ),
        "litgpt.reader",
        ("num_gpus",),
        versions="0.4 to 0.5",
        documented="litgpt/args.py",
        example="litgpt.yaml",
    ),
    Format(
        "Lightning YAML",
        "Lightning",
        (
            Signature((YAML,), all_of=("trainer", "model.class_path"), none_of=("model._target_",)),
            Signature((YAML,), all_of=("trainer", "seed_everything")),
        ),
        "lightning",
        ("num_gpus",),
        versions="2.0 to 2.6",
        documented="docs/source-pytorch/cli/lightning_cli.rst",
        example="lightning.yaml",
        rank=1,
    ),
    not_read("Lightning", text_signature(r"class_path:\s*(?:lightning|pytorch_lightning)\b|^seed_everything:")),
)
