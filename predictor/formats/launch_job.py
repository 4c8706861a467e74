"""Write a configuration as an experiment that model_training_framework predicts, submits and resumes.

Source of names: model_training_framework/config/sections.py. What no configuration says (learning rate, data set) is
left out, and the launcher asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import RunConfig

HEAD = """\
# A job of model_training_framework: python -m model_training_framework submit FILE --mode slurm.
# Yours to add: training.learning_rate, training.max_steps where it is missing, data.dataset_name{data},
# {tokenizer}and what your cluster wants under slurm (partition, account).
"""
# How a file's data are named, and its tokenizer.
YOURS = {
    "megatron": (" (the prefix of an indexed data set)", "custom_params.tokenizer (its name or folder), "),
    "torchtitan": (" (as torchtitan calls it)", "custom_params.tokenizer (the folder of its files), "),
    "deepspeed": ("", ""),
    "transformers": (" (of the hub)", ""),
}
# One process per node, which starts the others; DeepSpeed's processes are started by Slurm itself. What the experiment
# says is filled in when it is submitted. train.py is the user's, and reads the experiment itself.
COMMANDS = {
    "megatron": (
        "env TRAIN_ITERS={{training.max_steps}} LEARNING_RATE={{training.learning_rate}} "
        "DATA_PATH={{data.dataset_name}} TOKENIZER_MODEL={{custom_params.tokenizer}} bash {file}"
    ),
    "torchtitan": (
        "env PYTHONPATH={folder} LEARNING_RATE={{training.learning_rate}} HF_ASSETS_PATH={{custom_params.tokenizer}} "
        "torchrun --nproc-per-node {per_node} --nnodes {nodes} --node-rank $SLURM_NODEID --master-addr $MASTER_ADDR "
        "--master-port $MASTER_PORT -m torchtitan.train --module {module} --config job "
        "--training.steps {{training.max_steps}} --dataloader.dataset {{data.dataset_name}}"
    ),
    "deepspeed": "python train.py --config {{config}} --deepspeed --deepspeed_config {file}",
    "transformers": (
        "env TRAIN_ITERS={{training.max_steps}} LEARNING_RATE={{training.learning_rate}} "
        "DATASET_NAME={{data.dataset_name}} bash {file}"
    ),
}
STARTED_BY_SLURM = ("deepspeed",)
SHARES_GRADIENTS = 2  # the ZeRO stage from which on gradients are scattered unless a configuration says otherwise
PREDICTED = ("model", "parallelism", "training", "cluster", "host")


def launch_job(
    content: dict[str, Any],
    config: RunConfig,
    framework: str,
    arguments: str,
    gpus: tuple[int, int],
    steps: int | None,
) -> str:
    """Return the experiment as YAML.

    Args:
        content: a full-form configuration; it becomes ``prediction.config``.
        config: the same, checked.
        framework: whose arguments the job runs.
        arguments: path of the file that has them.
        gpus: of the run, and of a node.
        steps: of the whole training; None where it is not said.

    Raises:
        ConfigError: the framework starts its processes by a launcher of its own.
    """
    if framework not in COMMANDS:
        raise ConfigError(
            f"--write-job is for {', '.join(COMMANDS)}; {framework} starts its processes itself: start {arguments} as "
            "its first lines say"
        )
    num_gpus, per_node = gpus[0], min(gpus)
    nodes, path = num_gpus // per_node, Path(arguments)
    training, budget = config.training, config.budget
    predicted = {key: content[key] for key in PREDICTED if content.get(key)}
    # Every key, as an experiment of its own has other defaults.
    layout = config.parallelism.model_dump(mode="json", exclude_none=True) | {"gpus_per_node": per_node}
    scatters = config.parallelism.zero_stage >= SHARES_GRADIENTS
    predicted["parallelism"] = {"gradient_reduction": "reduce_scatter" if scatters else "all_reduce", **layout}
    started = COMMANDS[framework].format(
        file=arguments, folder=path.parent, module=path.stem, per_node=per_node, nodes=nodes
    )
    experiment: dict[str, Any] = {
        "experiment_name": f"{path.stem}-{num_gpus}",
        "command": started,
        "model": {"name": path.stem},
        "training": {
            "batch_size": training.micro_batch_size,
            "gradient_accumulation_steps": training.num_micro_batches or 1,
            "sequence_length": config.model.sequence_length,
            "precision": training.precision,
            **({} if steps is None else {"max_steps": steps}),
        },
        "data": {},
        "optimizer": {"name": "adamw"},
        "slurm": {
            "nodes": nodes,
            "ntasks_per_node": per_node if framework in STARTED_BY_SLURM else 1,
            "gres": f"gpu:{per_node}",
            "time_limit": "auto",
        },
        "prediction": {"system": config.system, "config": predicted},
    }
    if budget.price_per_gpu_hour is not None:
        experiment["prediction"]["price_per_gpu_hour"] = budget.price_per_gpu_hour
    data, tokenizer = YOURS[framework]
    return HEAD.format(data=data, tokenizer=tokenizer) + yaml.safe_dump(experiment, sort_keys=False, width=1000)
