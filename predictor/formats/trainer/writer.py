"""Write a configuration as a shell script that starts a Hugging Face Trainer: accelerate's launcher, and run_clm.py.

Source of names: huggingface/transformers, src/transformers/training_args.py of 5.24 and
examples/pytorch/language-modeling/run_clm.py; huggingface/accelerate, src/accelerate/commands/launch.py. What no
prediction depends on and no configuration says (data, learning rate, steps) are variables of the environment without
which the script stops.
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.plan.to_run import micro_batches
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.presets import preset, preset_names
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import LIGER, LIGER_BY_DEFAULT
from predictor.formats.hub_models import hub_id

# Degrees that split a replica, or its experts.
SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size")
# Keys of a model that kernels replace, whatever its sizes.
OF_KERNELS = {"loss", *(key for part in LIGER.values() for key in part)}
SCRIPT = """\
#!/bin/bash
# A Hugging Face Trainer on {gpus} of {system}, as searched; run_clm.py is of transformers' examples.
# Start it once per node, with MASTER_ADDR and the node's number; a Slurm job has SLURM_NODEID.
{others}set -eu
LAUNCHER=(accelerate launch {launcher}
    --machine_rank "${{SLURM_NODEID:-0}}" --main_process_ip "${{MASTER_ADDR:-127.0.0.1}}"
    --main_process_port "${{MASTER_PORT:-29500}}")
ARGUMENTS=(
{arguments}
)
# Yours to set: no prediction depends on them.
DATA_ARGUMENTS=(
    --do_train
    --dataset_name "${{DATASET_NAME:?a data set of the hub}}"
    --output_dir "${{OUTPUT_DIR:-checkpoints}}"
    --learning_rate "${{LEARNING_RATE:?the learning rate}}"
    --max_steps "${{TRAIN_ITERS{steps}}}"
)
exec "${{LAUNCHER[@]}}" "${{PROGRAM:-run_clm.py}}" "${{ARGUMENTS[@]}}" "${{DATA_ARGUMENTS[@]}}"
"""


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the script.

    Args:
        config: a checked configuration.
        num_gpus: of the run.
        gpus_per_node: that it uses of a node.
        version: not told apart.

    Raises:
        ConfigError: the model is none of the hub that is known, or a Trainer has no arguments for a part of the rest.
    """
    name, *others = _of_these_sizes(config.model)
    samples = config.training.micro_batch_size * micro_batches(config) * config.parallelism.data_parallel_size
    tokens = config.budget.train_tokens
    steps = (
        ":?the number of steps" if tokens is None else f":-{ceil(tokens / (samples * config.model.sequence_length))}"
    )
    precision = "no" if config.training.precision == "fp32" else config.training.precision
    launcher = {
        "num_machines": max(1, num_gpus // gpus_per_node),
        "num_processes": num_gpus,
        "mixed_precision": precision,
        "dynamo_backend": "no",
    }
    words = [f"--{key} {value}" for key, value in launcher.items()] + (["--multi_gpu"] if num_gpus > 1 else [])
    arguments = {
        "model_name_or_path": f"${{MODEL:-{name}}}",
        **_training(config),
        **_layout(config),
        **_kernels(config.model),
    }
    return SCRIPT.format(
        gpus=counted(num_gpus, "GPU"),
        system=config.system,
        others=f"# MODEL is any of these sizes: {', '.join((name, *others))}.\n" if others else "",
        launcher=" ".join(words),
        arguments="\n".join(f"    --{key} {_word(value)}" for key, value in arguments.items()),
        steps=steps,
    )


def _word(value: Any) -> str:
    """Return a value as a word of the shell."""
    if isinstance(value, dict):
        return f"'{json.dumps(value, separators=(',', ':'))}'"  # without spaces, as words of an array are split
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _of_these_sizes(model: ModelSection) -> list[str]:
    """Return the names on the hub of the models with these sizes; kernels and the length of samples are the run's.

    Raises:
        ConfigError: there is none.
    """
    own, length = model.model_dump(exclude=OF_KERNELS), model.sequence_length
    found = []
    for name in preset_names():
        keys = preset(name)
        if keys["num_layers"] == model.num_layers and keys["hidden_size"] == model.hidden_size:
            sizes = ModelSection.model_validate({**keys, "sequence_length": length}).model_dump(exclude=OF_KERNELS)
            found += [name] if sizes == own else []
    known = [hub for name in found if (hub := hub_id(name)) is not None]
    if not known:
        raise ConfigError(
            "--write-arguments: no preset whose name on Hugging Face's hub is known has these sizes, and a Trainer's "
            "arguments name a model; --write keeps the layout as a configuration"
        )
    return known


def _training(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of batch, precision and recomputation.

    Weights are loaded in fp32, and torch.autocast or FSDP narrows them.
    """
    training = config.training
    keys: dict[str, Any] = {
        "block_size": config.model.sequence_length,
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": micro_batches(config),
        "dtype": "float32",
    }
    if training.precision != "fp32":
        keys[training.precision] = True
    if training.tf32:
        keys["tf32"] = True
    if training.compiled:
        keys["torch_compile"] = True
    return keys | _checkpoints(training)


def _checkpoints(training: TrainingSection) -> dict[str, Any]:
    if training.recompute not in (Recompute.NONE, Recompute.FULL):
        raise ConfigError(f"training.recompute is {training.recompute}; a Hugging Face Trainer has none and full")
    if training.recompute is Recompute.NONE:
        return {"gradient_checkpointing": False}
    reentrant = {"use_reentrant": not training.recompute_stops_early}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": reentrant}


def _layout(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of FSDP; none for DDP.

    Raises:
        ConfigError: ranks split a replica, or share out states at a stage that is DeepSpeed's.
    """
    parallel = config.parallelism
    for key in SPLITS:
        if (size := getattr(parallel, key)) > 1:
            raise ConfigError(
                f"parallelism.{key} is {size}; a Hugging Face Trainer is written for data parallelism alone"
            )
    if parallel.zero_stage in (1, 2):
        raise ConfigError(
            f"parallelism.zero_stage is {parallel.zero_stage}; a Hugging Face Trainer is written with DDP (0) or FSDP "
            "(3): of DeepSpeed's stages --framework deepspeed writes the file, which its argument deepspeed names"
        )
    if not parallel.zero_stage:
        return {}
    section = {"version": 2, "reshard_after_forward": parallel.reshard_after_forward}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": section}


def _kernels(model: ModelSection) -> dict[str, Any]:
    """Return the arguments of Liger's kernels: the switch of all, and where some differ from its default which."""
    parts = {
        part: all(getattr(model, key) == value for key, value in keys.items()) for part, keys in LIGER.items() if keys
    }
    if not any(parts.values()):
        return {}
    chosen = {part: is_on for part, is_on in parts.items() if is_on != (part in LIGER_BY_DEFAULT)}
    return {"use_liger_kernel": True, **({"liger_kernel_config": chosen} if chosen else {})}
