"""Judge jobs by torchtitan's own parser and validators, in the release that PYTHONPATH has.

Usage: judge_torchtitan.py CASES VERDICTS. The first file is a list of {"file": path, "world_size": N, "num_layers": N,
"stages": layers of every chunk, null without a pipeline} as JSON; the second becomes a list of what is refused, or
differs from these layers, null where nothing is.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from tests.written.stand_ins import stand_in


def stages_built(config: Any, num_layers: int) -> list[int]:
    """Return the layers of every stage in order, by torchtitan's own split."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
    from torchtitan.distributed import pipeline_parallel

    layout = config.parallelism
    first, last = layout.pipeline_parallel_first_stage_less_layers, layout.pipeline_parallel_last_stage_less_layers
    schedule = get_schedule_class(layout.pipeline_parallel_schedule)
    chunks = 1 if issubclass(schedule, PipelineScheduleSingle) else 2
    each, count = layout.pipeline_parallel_layers_per_stage, layout.pipeline_parallel_degree * chunks
    if each is not None:  # as torchtitan's pipeline_llm counts them
        count = -(-(num_layers + first + last) // each)
        assert count % layout.pipeline_parallel_degree == 0, "stages do not divide over ranks"
        assert (count > layout.pipeline_parallel_degree) == (chunks > 1), "stages do not fit the schedule"
    split = getattr(pipeline_parallel, "generate_llm_fqn_per_model_part", None)
    names = (split or pipeline_parallel._generate_llm_fqn_per_model_part)(count, num_layers, first, last)
    assert config.training.local_batch_size % layout.pipeline_parallel_microbatch_size == 0
    return [sum(name.startswith("layers.") for name in stage) for stage in names]


def start(file: Path, world_size: int, num_layers: int, stages: list[int] | None) -> None:
    """Do what torchtitan does with a job before it builds a model."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    sys.path.insert(0, str(file.parent))
    words = ["--job.config_file", str(file)] if file.suffix == ".toml" else ["--module", file.stem, "--config", "job"]
    config = ConfigManager().parse_args(words)
    layout = config.parallelism
    sizes = {field.name: field for field in dataclasses.fields(ParallelDims)}
    degrees = {
        "dp_replicate": layout.data_parallel_replicate_degree,
        "dp_shard": layout.data_parallel_shard_degree,
        "cp": layout.context_parallel_degree,
        "tp": layout.tensor_parallel_degree,
        "pp": layout.pipeline_parallel_degree,
        "ep": layout.expert_parallel_degree,
        "etp": getattr(layout, "expert_tensor_parallel_degree", 1),
        "world_size": world_size,
    }
    if "from_config" in dict(inspect.getmembers(ParallelDims)):
        dims = ParallelDims.from_config(layout, world_size)
    else:
        dims = ParallelDims(**{name: size for name, size in degrees.items() if name in sizes})
    if dims.ep > 1:
        assert dims.dp_shard * dims.cp * dims.tp % dims.ep == 0, "experts' ranks do not divide the others"
    replicas, training = dims.dp_replicate * dims.dp_shard, config.training
    assert training.global_batch_size % (training.local_batch_size * replicas) == 0, "batches do not divide"
    if stages is not None:
        built = stages_built(config, num_layers)
        assert built == stages, f"torchtitan builds stages of {built}, predicted are {stages}"


def judge(file: str, **case: Any) -> str | None:
    """Return what is refused, None where nothing is."""
    try:
        start(Path(file), **case)
    except SystemExit as error:
        return f"exit {error.code}"
    except (AssertionError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    cases, verdicts = map(Path, sys.argv[1:])
    logging.disable(logging.CRITICAL)
    for absent in ("triton", "datasets"):
        stand_in(absent, ("torchtitan",))
    os.environ |= {"HF_ASSETS_PATH": "assets", "LEARNING_RATE": "3e-4"}
    found = [judge(**case) for case in json.loads(cases.read_text(encoding="utf-8"))]
    verdicts.write_text(json.dumps(found), encoding="utf-8")
