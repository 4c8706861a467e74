"""Formats of NVIDIA's NeMo and of reinforcement learning, a part of ``table.TABLE``."""

from __future__ import annotations

import re

from predictor.formats.format import Format, not_read
from predictor.formats.source import PYTHON, TEXT, YAML
from predictor.formats.telling import Telling, by_text

ALGORITHMS = ("grpo", "dpo", "sft", "rm", "distillation", "ppo")

REINFORCEMENT = (
    Format(
        "verl run",
        "verl",
        (
            Telling((YAML,), all_of=("actor_rollout_ref",)),
            by_text(r"\bverl\.trainer\.|\bactor_rollout_ref\.\w", TEXT),
        ),
        "rl.verl",
        ("num_gpus",),
        versions="0.2 to 0.9",
        documented="docs/examples/config.rst",
        example="verl.sh",
    ),
    Format(
        "NeMo RL YAML",
        "NeMo RL",
        (
            Telling((YAML,), all_of=("policy",), one_of=("cluster", *ALGORITHMS)),
            Telling((YAML,), all_of=("defaults",), one_of=ALGORITHMS),
        ),
        "rl.nemo_rl",
        ("num_gpus",),
        versions="0.1 to 0.5",
        documented="docs/guides/grpo.md",
        example="nemo_rl.yaml",
    ),
    Format(
        "OpenRLHF command line",
        "OpenRLHF",
        (by_text(r"\bopenrlhf\.cli\.train_", TEXT),),
        "rl.openrlhf",
        ("num_gpus",),
        versions="0.3 to 0.9",
        documented="docs/",
        example="openrlhf.sh",
    ),
)
NEMO = (
    Format(
        "performance script of NVIDIA",
        "NVIDIA's performance scripts",
        (by_text(r"scripts[./]performance[./](?:\w+[./])*(?:run_script|setup_experiment|pretrain_|finetune_)", TEXT),),
        "megatron_bridge.performance",
        ("num_gpus",),
        versions="NeMo 2.4, Megatron-Bridge 0.1 to 0.6",
        documented="scripts/performance/argument_parser.py",
        example="performance.sh",
    ),
    not_read(
        "a GPU recipe's Helm chart, whose run is in the file of workload.configFile or in launcher.sh",
        Telling((YAML,), all_of=("workload.image",)),
    ),
    Format(
        "NeMo 2 recipe",
        "NeMo 2",
        (
            by_text(r"_target_:\s*nemo\.(?:collections\.llm|lightning)\b", YAML),
            by_text(r"\bnemo\.collections(?:\.llm\b|\s+import\s+.*\bllm\b)", PYTHON),
        ),
        "nemo.recipe",
        ("function", "num_gpus"),
        versions="2.0 to 2.4",
        documented="nemo/collections/llm/recipes/README.md",
        example="nemo_2.py.txt",
    ),
    Format(
        "NeMo AutoModel YAML",
        "NeMo AutoModel",
        (
            by_text(r"_target_:\s*nemo_automodel\b", YAML),
            Telling((YAML,), all_of=("step_scheduler", "model.pretrained_model_name_or_path")),
        ),
        "nemo.automodel",
        ("num_gpus",),
        versions="0.1 to 0.7",
        documented="docs/guides/llm/finetune.md",
        example="nemo_automodel.yaml",
    ),
    Format(
        "NeMo YAML",
        "NeMo 1",
        (
            Telling((YAML,), all_of=("trainer", "model.tensor_model_parallel_size|model.restore_from_path")),
            Telling((YAML,), all_of=("training.trainer", "training.model")),
            Telling((YAML,), all_of=("defaults",), pattern=re.compile(r"^\s*-\s*training:\s*\S", re.MULTILINE)),
            by_text(r"\bmegatron_gpt_\w+\.py\b[\s\S]*\bmodel\.\w+=|\btraining\.model\.\w+=", TEXT),
        ),
        "nemo.megatron_gpt",
        ("num_gpus",),
        versions="1.2x",
        documented="examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        example="nemo_1.yaml",
    ),
)
