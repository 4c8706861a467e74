"""Formats of NVIDIA's NeMo and of reinforcement learning, a part of ``table.TABLE``."""

from __future__ import annotations

import re

from predictor.formats.format import Format, not_read
from predictor.formats.signature import Signature, text_signature
from predictor.formats.source import PYTHON, TEXT, YAML

ALGORITHMS = ("grpo", "dpo", "sft", "rm", "distillation", "ppo")

REINFORCEMENT = (
    Format(
        "verl run",
        "verl",
        (
            Signature((YAML,), all_of=("actor_rollout_ref",)),
            text_signature(r"\bverl\.trainer\.|\bactor_rollout_ref\.\w", TEXT),
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
            Signature((YAML,), all_of=("policy",), one_of=("cluster", *ALGORITHMS)),
            Signature((YAML,), all_of=("defaults",), one_of=ALGORITHMS),
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
        (text_signature(r"\bopenrlhf\.cli\.train_", TEXT),),
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
        (
            text_signature(
                r"scripts[./]performance[./](?:\w+[./])*(?:run_script|setup_experiment|pretrain_|finetune_)", TEXT
            ),
        ),
        "megatron_bridge.performance",
        ("num_gpus",),
        versions="NeMo 2.4, Megatron-Bridge 0.1 to 0.6",
        documented="scripts/performance/argument_parser.py",
        example="performance.sh",
    ),
    not_read(
        "a GPU recipe's Helm chart, whose run is in the file of workload.configFile or in launcher.sh",
        Signature((YAML,), all_of=("workload.image",)),
    ),
    Format(
        "NeMo 2 recipe",
        "NeMo 2",
        (
            text_signature(r"_target_:\s*nemo\.(?:collections\.llm|lightning)\b", YAML),
            text_signature(r"\bnemo\.collections(?:\.llm\b|\s+import\s+.*\bllm\b)", PYTHON),
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
            text_signature(r"_target_:\s*nemo_automodel\b", YAML),
            Signature((YAML,), all_of=("step_scheduler", "model.pretrained_model_name_or_path")),
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
            Signature((YAML,), all_of=("trainer", "model.tensor_model_parallel_size|model.restore_from_path")),
            Signature((YAML,), all_of=("training.trainer", "training.model")),
            Signature((YAML,), all_of=("defaults",), pattern=re.compile(r"^\s*-\s*training:\s*\S", re.MULTILINE)),
            text_signature(r"\bmegatron_gpt_\w+\.py\b[\s\S]*\bmodel\.\w+=|\btraining\.model\.\w+=", TEXT),
        ),
        "nemo.megatron_gpt",
        ("num_gpus",),
        versions="1.2x",
        documented="examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        example="nemo_1.yaml",
    ),
)
