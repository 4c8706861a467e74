"""The specification's complete configuration, and smaller ones."""

from __future__ import annotations

from typing import Any

COMPLETE = """
experiment_name: "example_experiment"
description: "Complete configuration example"

model:
  name: "transformer"
  hidden_size: 512
  num_layers: 6
  num_heads: 8
  dropout: 0.1

training:
  epochs: 100
  batch_size: 32
  learning_rate: 0.001
  gradient_accumulation_steps: 1
  max_grad_norm: 1.0

data:
  dataset_name: "custom_dataset"
  train_split: "train"
  val_split: "validation"
  test_split: "test"
  preprocessing: {}

optimizer:
  name: "adamw"
  weight_decay: 0.01
  betas: [0.9, 0.999]
  eps: 1e-8

scheduler:
  name: "cosine"
  warmup_steps: 1000
  min_lr: 1e-6

slurm:
  job_name: "training_job"
  time_limit: "24:00:00"
  nodes: 1
  ntasks_per_node: 1
  cpus_per_task: 4
  mem: "32G"
  gres: "gpu:1"
  partition: "gpu"
  additional_args: []

logging:
  log_level: "INFO"
  use_wandb: true
  wandb_project: "my_project"
  wandb_entity: "my_team"
  log_every_n_steps: 10

checkpoint:
  save_every_n_epochs: 5
  save_top_k: 3
  monitor: "val_loss"
  mode: "min"
  checkpoint_dir: "./checkpoints"

preemption:
  timeout_minutes: 5
  grace_period_seconds: 60
  max_preemptions: 3

performance:
  num_workers: 4
  pin_memory: true
  prefetch_factor: 2
  persistent_workers: true

# Custom parameters
seed: 42
deterministic: true
benchmark: false
tags: ["experiment", "baseline"]
version: "1.0"
"""


def small(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the least configuration, with further keys by section."""
    content: dict[str, Any] = {
        "experiment_name": "small",
        "model": {"name": "mlp"},
        "training": {"epochs": 2, "batch_size": 8, "learning_rate": 0.01},
        "data": {"dataset_name": "digits"},
        "optimizer": {"name": "sgd"},
    }
    for section, keys in sections.items():
        content[section] = {**content.get(section, {}), **keys}
    return content


def transformer(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return a transformer on four GPUs of a published system, with further keys by section."""
    content = small(
        model={"name": "transformer", "hidden_size": 2048, "num_layers": 16, "num_heads": 16, "vocab_size": 50257},
        training={"batch_size": 4, "sequence_length": 1024, "precision": "bf16", "max_steps": 1000},
        slurm={"nodes": 1, "ntasks_per_node": 4, "gres": "gpu:4"},
        prediction={"system": "Perlmutter", "price_per_gpu_hour": 2.0},
    )
    for section, keys in sections.items():
        content[section] = {**content.get(section, {}), **keys}
    return content
