"""Files of tools that are not read: told by their content, refused by name instead of as an unknown format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from predictor.core.base.errors import ConfigError

# Top-level keys that together tell a tool's YAML: all of the first, one of the second.
BY_KEYS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("axolotl", {"base_model"}, {"datasets", "micro_batch_size", "sequence_len", "adapter"}),
    ("LLaMA-Factory", {"model_name_or_path"}, {"finetuning_type", "stage", "template", "dataset", "cutoff_len"}),
    ("LLaMA-Factory", {"train_dataset"}, {"dist_config", "cutoff_len", "micro_batch_size"}),
    ("verl", {"actor_rollout_ref"}, {"data", "trainer", "critic", "algorithm"}),
    ("Primus", {"modules"}, {"work_group", "exp_name", "platform"}),
    ("MaxText", {"base_config"}, {"model_name", "per_device_batch_size", "run_name"}),
    ("nanotron", {"parallelism"}, {"tokens", "general", "data_stages", "checkpoints"}),
    ("NeMo RL", {"policy", "cluster"}, {"grpo", "dpo", "sft", "rm", "distillation"}),
    ("TRL or a Hugging Face Trainer", {"per_device_train_batch_size"}, {"model_name_or_path", "output_dir"}),
    ("GPT-NeoX", {"num-layers"}, {"pipe-parallel-size", "model-parallel-size", "zero_optimization"}),
    ("GPT-NeoX", {"num_layers"}, {"pipe_parallel_size", "pos_emb", "zero_optimization"}),
)
# What a text holds, by tool.
BY_TEXT = {
    "ms-swift": re.compile(r"^\s*(?:\w+=\S*\s+)*(?:megatron|swift)\s+(?:sft|pt|rlhf|pretrain)\b", re.MULTILINE),
    "LLaMA-Factory": re.compile(r"\bllamafactory-cli\s+train\b"),
    "axolotl": re.compile(r"\baxolotl(?:\.cli\.|\s+)train\b"),
    "torchtune": re.compile(r"_component_:\s*torchtune\b"),
    "litgpt": re.compile(r"class_path:\s*litgpt\b"),
    "Lightning": re.compile(r"class_path:\s*(?:lightning|pytorch_lightning)\b|^seed_everything:", re.MULTILINE),
    "NeMo 2": re.compile(r"_target_:\s*nemo\.(?:collections|lightning)\b"),
    "NeMo AutoModel": re.compile(r"_target_:\s*nemo_automodel\b"),
    "verl": re.compile(r"_target_:\s*verl\b|\bverl\.trainer\."),
}
CALLED = re.compile(
    r"(?:^|[\s;\"'])(?:bash|sh|source|\.|sbatch)\s+(?:-\w+\s+)*\"?([^\s;|&\"']+\.(?:sh|slurm|sbatch))\b", re.MULTILINE
)
WAY_OUT = (
    "which is not read; give model, layout and batch as a configuration, or as options: --model NAME --gpus N --tp N …"
)


def tool_of(content: Mapping[str, Any] | None, text: str) -> str | None:
    """Return the tool that a file is of, None where none is told; ``content`` is that of a YAML mapping."""
    keys = set(content or ())
    for name, all_of, one_of in BY_KEYS:
        if all_of <= keys and one_of & keys:
            return name
    return next((name for name, telling in BY_TEXT.items() if telling.search(text)), None)


def of_other_tool(where: str, content: Mapping[str, Any] | None, text: str) -> ConfigError | None:
    """Return why a file of a tool that is not read cannot be; None where none is told."""
    tool = tool_of(content, text)
    return None if tool is None else ConfigError(f"{where} is of {tool}, {WAY_OUT}")


def of_other_script(where: str, text: str) -> ConfigError | None:
    """Return why a shell script without arguments cannot be read, with those that it starts; None for other texts."""
    without_remarks = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    called = list(dict.fromkeys(CALLED.findall(without_remarks)))
    if called:
        return ConfigError(f"{where} holds no arguments of a training; it starts {', '.join(called[:3])}: read that")
    if not (text.startswith("#!") or re.search(r"^export \w+=", text, re.MULTILINE)):
        return None
    return ConfigError(
        f"{where} holds no arguments of a training, such as --num-layers 32; read the script that starts it, or print "
        "the command that runs (echo in front of it) and read that"
    )
