"""Write a configuration as a torchtitan job: TOML for 0.2, the last series that reads it, and Python for 0.3.

Source of names: pytorch/torchtitan, torchtitan/config/job_config.py of 0.2.2. Models are torchtitan's own flavors.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted as in_words
from predictor.core.checks.layout import split_of
from predictor.core.schema.merging import merged
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.presets import preset
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.timeline.schedules import SCHEDULES as SCHEDULED
from predictor.core.workload.partition import chunk_layers
from predictor.core.workload.run_choices import GemmRecipe, Recompute
from predictor.core.workload.switches import Loss
from predictor.formats.torchtitan.layout import split
from predictor.formats.torchtitan.reader import DISPATCHERS, PRESETS
from predictor.formats.torchtitan.written_python import python_job

SCHEDULES = {
    "1f1b": "1F1B",
    "all_forward_all_backward": "GPipe",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zbv": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
MODES = {Recompute.NONE: "none", Recompute.FULL: "full", Recompute.PER_OP: "selective"}
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
# A recipe named refuses weights gathered in fp8 beside it (torchtitan/components/quantization/float8.py); without one
# it is tensorwise.
CONVERTERS = {
    GemmRecipe.FP8_TENSORWISE: ("float8", None),
    GemmRecipe.FP8_ROWWISE: ("float8", "rowwise"),
    GemmRecipe.MXFP8: ("mx", "mxfp8_cublas"),
}
Table = dict[str, dict[str, Any]]
TOML = "0.2"  # the series that reads it


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the job.

    Args:
        config: a checked configuration.
        num_gpus: of the run.
        gpus_per_node: that it uses of a node.
        version: of torchtitan, 0.2 or 0.3.

    Raises:
        ConfigError: torchtitan has no flavor of the model, or no keys for a part of the configuration.
    """
    name, flavor = _flavor(config.model)
    parallel, training = config.parallelism, config.training
    batch, pipeline = _batch(training, parallel)
    tables: Table = {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "seq_len": config.model.sequence_length,
            **batch,
            "mixed_precision_param": _chosen(PRECISIONS, "training.precision", training.precision),
        },
        "parallelism": _degrees(parallel) | (_pipeline(config) | pipeline if pipeline else {}),
        "activation_checkpoint": _recomputation(training),
        "compile": {"enable": training.compiled, "components": _compiled_parts(config.model)},
    }
    nodes = max(1, num_gpus // gpus_per_node)
    start = f"torchrun --nproc-per-node {min(num_gpus, gpus_per_node)} --nnodes {nodes} -m torchtitan.train"
    title = f"torchtitan {version} on {in_words(num_gpus, 'GPU')} of {config.system}, as searched."
    if version != TOML:
        return python_job(config, tables, title, start)
    head = [f"# {title} Start it on every node with", f"# {start} --job.config_file FILE"]
    return "\n".join([*head, *_toml(merged(tables, _low_precision(config)))]) + "\n"


def _compiled_parts(model: ModelSection) -> list[str]:
    return ["model"] if model.loss is Loss.TORCH_EAGER else ["model", "loss"]


def _chosen(known: dict[Any, str], key: str, value: Any) -> str:
    if value not in known:
        raise ConfigError(f"{key} is {value}; torchtitan has {', '.join(map(str, known))}")
    return known[value]


def _flavor(model: ModelSection) -> tuple[str, str]:
    """Return name and flavor of a model.

    Raises:
        ConfigError: no flavor has its sizes.
    """
    own = model.model_dump(exclude={"loss"})
    for name, flavors in PRESETS.items():
        for flavor, known in flavors.items():
            sizes = ModelSection.model_validate({**preset(known), "sequence_length": model.sequence_length})
            if sizes.model_dump(exclude={"loss"}) == own:
                return name, flavor
    flavors_known = ", ".join(f"{name} {', '.join(flavors)}" for name, flavors in PRESETS.items())
    raise ConfigError(f"--write-arguments: torchtitan has no flavor of this model; known are {flavors_known}")


def _batch(training: TrainingSection, parallel: ParallelismSection) -> tuple[dict[str, int], dict[str, int]]:
    """Return the batch of a replica, and the micro-batch of a pipeline, which takes its batch in one round."""
    size, rounds = training.micro_batch_size, training.num_micro_batches
    total = training.global_batch_size
    if rounds is None:
        assert total is not None
        rounds = total // (size * parallel.data_parallel_size)
    whole = size * rounds * parallel.data_parallel_size
    if parallel.pipeline_parallel_size == 1:
        return {"local_batch_size": size, "global_batch_size": whole}, {}
    return {"local_batch_size": size * rounds, "global_batch_size": whole}, {"pipeline_parallel_microbatch_size": size}


def _degrees(parallel: ParallelismSection) -> dict[str, Any]:
    """Return degrees, and whether replicas share out weights (FSDP) or not (DDP)."""
    if parallel.zero_stage not in (0, 3):
        raise ConfigError(f"parallelism.zero_stage is {parallel.zero_stage}; torchtitan has 3 (FSDP) and 0 (DDP)")
    replicas, context = parallel.data_parallel_size, parallel.context_parallel_size
    shards = replicas if parallel.zero_stage == 3 else 1
    if parallel.zero_group_size is not None:
        shards = parallel.zero_group_size // context
    keys: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas // shards,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": parallel.tensor_parallel_size,
        "context_parallel_degree": context,
        "pipeline_parallel_degree": parallel.pipeline_parallel_size,
    }
    if parallel.expert_parallel_size > 1:
        keys |= {"expert_parallel_degree": parallel.expert_parallel_size}
        split = parallel.expert_tensor_parallel_size
        keys |= {"expert_tensor_parallel_degree": parallel.tensor_parallel_size if split is None else split}
        if parallel.expert_dispatcher in DISPATCHERS:
            keys |= {"expert_parallel_comm_backend": str(parallel.expert_dispatcher)}
    if parallel.overlap_linear_traffic:
        keys["enable_async_tensor_parallel"] = True
    usual = parallel.pipeline_parallel_size == 1
    if parallel.zero_stage == 3 and parallel.reshard_after_forward != usual:
        keys["fsdp_reshard_after_forward"] = "always" if parallel.reshard_after_forward else "never"
    return keys


def _pipeline(config: RunConfig) -> dict[str, Any]:
    """Return schedule and split of a pipeline: embedding and output count as a layer each, or as none.

    Without a number of layers for each, a stage has one chunk, or two where the schedule has several.
    """
    parallel = config.parallelism
    chunks = parallel.virtual_pipeline_parallel_size
    name = parallel.schedule or ("interleaved_1f1b" if chunks > 1 else "1f1b")
    written = _chosen(SCHEDULES, "parallelism.schedule", name)
    layers, stages = config.model.num_layers, parallel.pipeline_parallel_size * chunks
    counted = int(_in_order(parallel, config.model, name) == split(layers, stages, 1, 1))
    keys: dict[str, Any] = {
        "pipeline_parallel_schedule": written,
        "pipeline_parallel_first_stage_less_layers": counted,
        "pipeline_parallel_last_stage_less_layers": counted,
    }
    if chunks > 2:
        keys["pipeline_parallel_layers_per_stage"] = ceil((layers + 2 * counted) / stages)
    return keys


def _in_order(parallel: ParallelismSection, model: ModelSection, schedule: str) -> list[int]:
    """Return the layers of every chunk in the model's order."""
    order, stages = SCHEDULED[schedule], parallel.pipeline_parallel_size
    own = split_of(parallel, model, order, parallel.virtual_pipeline_parallel_size)
    chunks = own.chunks or [chunk_layers(own.stages, stage, own.num_chunks) for stage in range(stages)]
    holders = [order.holder(place, stages) for place in range(stages * own.num_chunks)]
    return [chunks[stage][chunk] for stage, chunk in holders]


def _recomputation(training: TrainingSection) -> dict[str, Any]:
    mode = _chosen(MODES, "training.recompute", training.recompute)
    keys: dict[str, Any] = {"mode": mode}
    if training.recompute is Recompute.PER_OP:
        keys["selective_ac_option"] = "op"
    elif training.recompute_every > 1:
        keys |= {"mode": "selective", "selective_ac_option": str(training.recompute_every)}
    return keys | ({"early_stop": True} if training.recompute_stops_early else {})


def _low_precision(config: RunConfig) -> dict[str, Any]:
    """Return the conversion of linear layers."""
    recipe = config.training.gemm_recipe
    if recipe is None:
        return {}
    if recipe not in CONVERTERS:
        raise ConfigError(f"training.gemm_recipe is {recipe}; torchtitan has {', '.join(CONVERTERS)}")
    kind, name = CONVERTERS[recipe]
    keys: dict[str, Any] = {**({} if name is None else {"recipe_name": name}), "filter_fqns": ["output"]}
    if config.parallelism.gather_precision == "fp8":
        keys["enable_fsdp_float8_all_gather"] = True
    return {"model": {"converters": [f"quantize.linear.{kind}"]}, f"quantize.linear.{kind}": keys}


def _toml(tables: Table) -> list[str]:
    lines = []
    for name, keys in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
