"""The formats of other tools: its signatures, the versions that are read, where its keys are documented.

A file has the first format of the table with a matching signature. A format without a module is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.schema.input_kind import (
    EXPERIMENT_FORMAT,
    HUGECTR,
    LLM_TRAINER_FORMAT,
    LLM_TRAINER_SIZES,
    is_experiment,
    is_hugectr,
    is_llm_trainer,
)
from predictor.formats.format import Format, not_read
from predictor.formats.signature import Signature, text_signature
from predictor.formats.source import JSON, PYTHON, TEXT, TOML, YAML, Source
from predictor.formats.table_nvidia import NEMO, REINFORCEMENT
from predictor.formats.table_pytorch import PYTORCH

EXAMPLES = Path(__file__).parent / "examples"


def _holds(test: Any) -> Any:
    """Return a test of a file's keys and values as one of the file."""
    return lambda source: test(source.content)


def _is_llm_foundry(source: Source) -> bool:
    if not {"model", "parameters"} & source.content.keys():
        return False
    from predictor.formats.llm_foundry.reader import BATCH, MODELS, inside

    content: Mapping[str, Any] = inside(source.content)
    model = content.get("model")
    return isinstance(model, dict) and model.get("name") in MODELS and any(key in content for key in BATCH)


def _is_gpt_neox(source: Source) -> bool:
    from predictor.formats.gpt_neox.files import is_of_gpt_neox

    return is_of_gpt_neox(source)


def _starts_trainer(source: Source) -> bool:
    from predictor.formats.trainer.scripts import NAMING, TRAINER_COMMAND

    if TRAINER_COMMAND.search(source.text) is not None:
        return True
    return NAMING.search(source.text) is not None and not _has_megatron_arguments(source)


def _has_megatron_arguments(source: Source) -> bool:
    from predictor.formats.megatron.command import ARGUMENT, with_called

    return ARGUMENT.search(with_called(source.text, source.path.parent)[0]) is not None


def _has_sections(source: Source) -> bool:
    from predictor.formats.trainer.sections import has_sections

    return has_sections(source.content)


# Keys that sections of others do not have, though others call theirs model, train and optimizer too.
BRIDGE_KEYS = (
    "comm_overlap.tp_comm_overlap",
    "ddp.grad_reduce_in_fp32",
    "ddp.overlap_grad_reduce",
    "ddp.use_distributed_optimizer",
    "mixed_precision.grad_reduce_in_fp32",
    "model.pipeline_model_parallel_size",
    "model.tensor_model_parallel_size",
    "optimizer.use_distributed_optimizer",
    "train.global_batch_size",
    "train.micro_batch_size",
    "train.train_iters",
)

TORCHTITAN_COMMAND = re.compile(
    r"(?:torchtitan[./]train|run_train\.sh)\b(?:[^\n]|\\\n)*--\w+|CONFIG_FILE=\S+[^\n]*run_train\.sh"
)

TABLE = (
    Format(
        HUGECTR,
        "HugeCTR",
        (Signature((JSON,), test=_holds(is_hugectr)),),
        versions="3 to 26",
        documented="docs/source/api/python_interface.md",
    ),
    Format(
        EXPERIMENT_FORMAT,
        "model_training_framework",
        (
            Signature(test=_holds(is_experiment)),
            text_signature(r"^\s*[\"']?experiment_name[\"']?\s*:", TEXT),  # of a file that does not parse
        ),
        "experiment",
        versions="this project's",
        documented="docs/experiment.md",
    ),
    Format(
        "LLM Foundry YAML",
        "LLM Foundry",
        (Signature((YAML,), test=_is_llm_foundry),),
        "llm_foundry.reader",
        versions="0.5 to 0.22",
        documented="scripts/train/train.py",
        example="llm_foundry.yaml",
    ),
    # Tools whose files have keys of other formats too.
    Format(
        "GPT-NeoX YAML",
        "GPT-NeoX",
        (Signature(test=_is_gpt_neox),),
        "gpt_neox.reader",
        ("content", "num_gpus"),
        versions="1.0 to 2.0, and main of 2025",
        documented="configs/neox_arguments.md",
        example="gpt_neox.yaml",
        joins=True,
    ),
    Format(
        "axolotl YAML",
        "axolotl",
        (Signature(all_of=("base_model",), one_of=("datasets", "micro_batch_size", "sequence_len", "adapter")),),
        "trainer.axolotl",
        ("num_gpus",),
        versions="0.3 to 0.19",
        documented="src/axolotl/utils/schemas/config.py",
        example="axolotl.yaml",
    ),
    Format(
        "LLaMA-Factory YAML",
        "LLaMA-Factory",
        (
            Signature(all_of=("model_name_or_path",), one_of=("finetuning_type", "stage", "cutoff_len", "template")),
            Signature(
                all_of=("model",), one_of=("train_dataset", "dist_config", "peft_config.name"), none_of=("data",)
            ),
        ),
        "trainer.llama_factory",
        ("num_gpus",),
        versions="0.8 to 0.9, and its version 1",
        documented="src/llamafactory/hparams",
        example="llama_factory.yaml",
    ),
    *REINFORCEMENT,
    *NEMO,
    not_read("Primus", Signature(all_of=("modules",), one_of=("work_group", "exp_name", "platform"))),
    not_read("MaxText", Signature(all_of=("base_config",), one_of=("model_name", "per_device_batch_size", "run_name"))),
    *PYTORCH,
    Format(
        "Hugging Face Trainer arguments",
        "a Hugging Face Trainer",
        (
            Signature(all_of=("per_device_train_batch_size",)),
            Signature(all_of=("model_name_or_path",), one_of=("output_dir", "learning_rate", "num_train_epochs")),
            Signature(test=_has_sections),
        ),
        "trainer.reader",
        ("num_gpus",),
        versions="transformers 4.30 to 5.24, TRL 0.8 to 1.16",
        documented="src/transformers/training_args.py",
        example="hugging_face_trainer.yaml",
    ),
    Format(
        "Hugging Face trainer_state.json",
        "a Hugging Face Trainer",
        (Signature((JSON,), all_of=("log_history", "global_step")),),
        "trainer.state",
        ("num_gpus",),
        versions="transformers 4.30 to 5.24",
        documented="src/transformers/trainer_callback.py",
        example="trainer_state.json",
        rank=1,
    ),
    Format(
        "PEFT adapter_config.json",
        "PEFT",
        (Signature((JSON,), all_of=("peft_type", "base_model_name_or_path")),),
        "trainer.adapters",
        versions="0.4 to 0.21",
        documented="src/peft/tuners/lora/config.py",
        example="adapter_config.json",
        rank=1,
    ),
    Format(
        "Hugging Face Trainer command",
        "a Hugging Face Trainer",
        (Signature((TEXT,), test=_starts_trainer),),
        "trainer.scripts",
        ("num_gpus",),
        versions="transformers 4.30 to 5.24",
        documented="src/accelerate/commands/launch.py",
        example="hugging_face_trainer.sh",
    ),
    Format(
        "Hugging Face Trainer program",
        "a Hugging Face Trainer",
        (
            text_signature(
                r"\b(?:SFTConfig|(?<!class )(?:Seq2Seq)?TrainingArguments|HfArgumentParser|TrlParser)\(", PYTHON
            ),
            text_signature(r"\b(?:SFT|DPO|GRPO|KTO|ORPO|CPO|PPO|RLOO|Reward)Trainer\(", PYTHON),
        ),
        "trainer.program",
        ("num_gpus",),
        versions="transformers 4.30 to 5.24, TRL 0.8 to 1.16",
        documented="src/transformers/training_args.py",
        example="hugging_face_trainer.py.txt",
    ),
    not_read("ms-swift", text_signature(r"^\s*(?:\w+=\S*\s+)*(?:megatron|swift)\s+(?:rlhf|pretrain|export)\b")),
    Format(
        "Hugging Face config.json",
        "Hugging Face transformers",
        (Signature((JSON,), one_of=("model_type", "architectures")),),
        "hugging_face.reader",
        versions="4.30 to 5.23",
        documented="src/transformers/configuration_utils.py",
        example="config.json",
        rank=0,
    ),
    Format(
        "DeepSpeed JSON",
        "DeepSpeed",
        (
            Signature(
                (JSON,),
                one_of=(
                    "train_batch_size",
                    "train_micro_batch_size_per_gpu",
                    "gradient_accumulation_steps",
                    "zero_optimization",
                    "fp16",
                    "bf16",
                    "zero_allow_untested_optimizer",
                ),
            ),
        ),
        "deepspeed.reader",
        ("data_parallel_size",),
        versions="0.14 to 0.18",
        documented="docs/_pages/config-json.md",
        example="deepspeed.json",
        rank=1,
    ),
    Format(
        LLM_TRAINER_FORMAT,
        "llm_trainer",
        (
            Signature(test=_holds(is_llm_trainer)),
            text_signature(rf"^\s*[\"']?(?:{'|'.join(sorted(LLM_TRAINER_SIZES))})[\"']?\s*:", TEXT),
        ),
        "llm_trainer",
        ("num_gpus",),
        versions="this project's",
        documented="docs/llm-trainer.md",
    ),
    Format(
        "accelerate configuration",
        "Hugging Face accelerate",
        (
            Signature(
                (YAML,),
                all_of=("distributed_type",),
                one_of=("fsdp_config", "deepspeed_config", "num_processes", "mixed_precision"),
            ),
        ),
        "accelerate",
        versions="0.20 to 1.12",
        documented="src/accelerate/commands/config/config_args.py",
        example="accelerate.yaml",
        rank=1,
    ),
    Format(
        "Megatron-Bridge recipe",
        "Megatron-Bridge",
        (
            text_signature(r"_target_:\s*megatron\.bridge\b", YAML),
            Signature((YAML,), one_of=BRIDGE_KEYS, at_least=2),
            text_signature(r"megatron\.bridge|\bConfigContainer\b", PYTHON),
        ),
        "megatron_bridge.reader",
        ("function", "num_gpus"),
        versions="0.1 to 0.6",
        documented="src/megatron/bridge/training/config.py",
        example="megatron_bridge.py.txt",
    ),
    Format(
        "torchtitan configuration in Python",
        "torchtitan",
        (text_signature(r"\btorchtitan\b|\bTrainer\.Config\(|\bJobConfig\(", PYTHON),),
        "torchtitan.recipes",
        ("function", "num_gpus"),
        versions="0.3",
        documented="torchtitan/trainer.py",
        example="torchtitan.py.txt",
    ),
    Format(
        "torchtitan TOML",
        "torchtitan",
        (Signature((TOML,), one_of=("job", "model", "training", "parallelism", "activation_checkpoint")),),
        "torchtitan.reader",
        ("num_gpus",),
        versions="0.1 to 0.2.2",
        documented="torchtitan/config/job_config.py",
        example="torchtitan.toml",
    ),
    Format(
        "torchtitan command line",
        "torchtitan",
        (Signature((TEXT,), pattern=TORCHTITAN_COMMAND),),
        "torchtitan.command",
        ("num_gpus",),
        versions="0.1 to 0.3",
        documented="torchtitan/config/manager.py",
        example="torchtitan.sh",
    ),
    Format(
        "Megatron-LM arguments",
        "Megatron-LM",
        (Signature((TEXT, YAML, JSON, TOML), test=_has_megatron_arguments),),
        "megatron.reader",
        ("num_gpus",),
        versions="core 0.6 to 0.18",
        documented="megatron/training/arguments.py",
        example="megatron_lm.sh",
    ),
)


def format_of(source: Source) -> Format | None:
    """Return the format of a file; None where none of the table tells it."""
    return next((known for known in TABLE if any(signature.matches(source) for signature in known.signatures)), None)


def closest_format(source: Source) -> tuple[str, list[str]] | None:
    """Return the format that a file's keys resemble most, with the keys that it has of those that tell it."""
    held: dict[str, list[str]] = {}
    for known in TABLE:
        signatures = [signature for signature in known.signatures if source.syntax in signature.syntaxes]
        held[known.name] = sorted(filter(source.has, {key for signature in signatures for key in signature.names()}))
    name = max(held, key=lambda name: len(held[name]))
    return (name, held[name]) if len(held[name]) > 1 else None
