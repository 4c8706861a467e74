"""The layout of a torchtitan job: degrees, sharding and the split of the layers over pipeline stages.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py and, below
torchtitan/distributed, parallel_dims.py and pipeline_parallel.py.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.workload.frameworks import TORCHTITAN_DDP, TORCHTITAN_FSDP2
from predictor.formats.fields import Fields

# Of torch's schedules, by their names in lower case.
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "all_forward_all_backward",
    "interleaved1f1b": "interleaved_1f1b",
    "loopedbfs": "looped_bfs",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipe_v",
}
V_SHAPED = ("zbv", "dualpipe_v")
LOOPED = ("interleaved_1f1b", "looped_bfs", *V_SHAPED)  # with several stages on a rank
DISPATCHERS = ("deepep", "hybridep")  # beside torch's own exchange, "standard"
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)$")


def degrees(layout: Fields, num_gpus: int | None, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the sizes of the groups.

    Raises:
        ConfigError: they do not make the GPUs of the run.
    """
    splits_tokens = layout.switch("enable_sequence_parallel", True)
    tp, pp = layout.whole("tensor_parallel_degree", 1), layout.whole("pipeline_parallel_degree", 1)
    cp, ep = layout.whole("context_parallel_degree", 1), layout.whole("expert_parallel_degree", 1)
    replicate = layout.whole("data_parallel_replicate_degree", 1)
    shard = layout.whole("data_parallel_shard_degree", -1, least=-1)
    split = layout.whole("expert_tensor_parallel_degree", tp)
    keys: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "sequence_parallel": tp > 1 and splits_tokens,
        "pipeline_parallel_size": pp,
        "context_parallel_size": cp,
    }
    keys |= {"expert_parallel_size": ep} if ep > 1 else {}
    keys |= {"expert_tensor_parallel_size": split} if ep > 1 and split != tp else {}
    backend = layout.text("expert_parallel_comm_backend", "standard")
    if ep > 1 and backend != "standard":
        if backend not in DISPATCHERS:
            layout.broken(layout.error("expert_parallel_comm_backend", f"modelled: standard, {', '.join(DISPATCHERS)}"))
        keys["expert_dispatcher"] = backend
    dp = replicate * shard
    if num_gpus is not None:
        rest = num_gpus % (tp * pp * cp)
        if rest or (shard > 0 and dp * tp * pp * cp != num_gpus):
            raise ConfigError(
                f"{layout.where}: the degrees make {abs(dp) * tp * pp * cp} GPUs or a multiple; the run has {num_gpus}"
            )
        dp = num_gpus // (tp * pp * cp)
        if dp % replicate:
            raise layout.error("data_parallel_replicate_degree", f"it must divide the {dp} replicas of the run")
    if dp > 0:
        hybrid = {"zero_group_size": dp // replicate * cp} if replicate > 1 and dp * cp > replicate else {}
        return keys | {"data_parallel_size": dp} | hybrid
    unsaid["parallelism.data_parallel_size"] = (
        f"{layout.where}: data_parallel_shard_degree -1 takes the rest of the GPUs"
    )
    return keys


def replicas(layout: Fields, notes: list[str]) -> dict[str, Any]:
    """Return how weights are sharded and gradients reduced: FSDP, over context-parallel ranks too, or DDP.

    Source: torchtitan/distributed/parallel_dims.py, fsdp_enabled.
    """
    policy = layout.text("fsdp_reshard_after_forward", "default", ("default", "always", "never"))
    is_whole = layout.whole("pipeline_parallel_degree", 1) == 1 if policy == "default" else policy == "always"
    overlaps = layout.switch("enable_async_tensor_parallel")
    rotation = layout.text("context_parallel_rotate_method", "allgather", ("allgather", "alltoall"))
    if rotation == "allgather" and layout.whole("context_parallel_degree", 1) > 1:
        notes.append("context_parallel_rotate_method allgather: keys and values are predicted to travel around a ring")
    splits = layout.whole("tensor_parallel_degree", 1) > 1
    keys: dict[str, Any] = {"overlap_tensor_parallel": overlaps, "overlap_linear_traffic": overlaps and splits}
    sharding = (layout.whole("data_parallel_shard_degree", -1, least=-1), layout.whole("context_parallel_degree", 1))
    if sharding == (1, 1):
        return keys | TORCHTITAN_DDP.section("parallelism")
    stays = {} if is_whole else {"reshard_after_forward": False}
    return keys | TORCHTITAN_FSDP2.section("parallelism") | {"fp32_parameters": True} | stays


def pipeline(layout: Fields, layers: int | None) -> dict[str, Any]:
    """Return schedule and split of a pipeline.

    Args:
        layout: the section ``parallelism``.
        layers: of the model; None where they are not known.

    Raises:
        ConfigError: the schedule is not modelled, or the stages do not fit it.
    """
    pp = layout.whole("pipeline_parallel_degree", 1)
    name = layout.text("pipeline_parallel_schedule", "1F1B")
    first = layout.whole("pipeline_parallel_first_stage_less_layers", 1, least=0)
    last = layout.whole("pipeline_parallel_last_stage_less_layers", 1, least=0)
    per_stage = layout.optional_whole("pipeline_parallel_layers_per_stage")
    parts = layout.get("module_fqns_per_model_part")
    points = layout.get("pipeline_parallel_split_points")
    if pp == 1:
        return {}
    schedule = SCHEDULES.get(name.lower().removeprefix("schedule"))
    if schedule is None:
        known = "1F1B, Interleaved1F1B, GPipe, LoopedBFS, ZBVZeroBubble and DualPipeV"
        raise layout.error("pipeline_parallel_schedule", f"only {known} are modelled")
    is_looped = schedule in LOOPED
    if layers is None:
        raise layout.error(
            "pipeline_parallel_degree", "the layers of its stages follow from a model without sizes here"
        )
    if parts or points:
        key = "module_fqns_per_model_part" if parts else "pipeline_parallel_split_points"
        parted = _listed(parts) if parts else _between(points, layers)
        if sum(parted) != layers:
            raise layout.error(key, f"its parts hold {sum(parted)} of {layers} layers; name each once, as layers.0")
    else:
        key = "pipeline_parallel_layers_per_stage"
        stages = pp * (2 if is_looped else 1) if per_stage is None else ceil((layers + first + last) / per_stage)
        parted = split(layers, stages, first, last)
    if len(parted) % pp or (len(parted) > pp) != is_looped:
        raise layout.error(key, f"it makes {len(parted)} stages for {pp} ranks and {name}, which do not fit")
    if min(parted) < (0 if parts or points else 1):
        raise layout.error("pipeline_parallel_degree", f"{layers} layers do not fill its {len(parted)} stages")
    if not is_looped:
        return {"schedule": schedule, "layers_per_stage": parted}
    chunks = {"schedule": schedule, "virtual_pipeline_parallel_size": len(parted) // pp}
    return chunks if len(set(parted)) == 1 else chunks | {"layers_per_stage": _by_rank(parted, pp, schedule)}


def _by_rank(split: list[int], pp: int, schedule: str) -> list[list[int]]:
    """Return the layers of each rank's chunks; in a V the second half of the stages comes back up the ranks."""
    if schedule in V_SHAPED:
        return [[split[rank], split[2 * pp - 1 - rank]] for rank in range(pp)]
    return [split[rank::pp] for rank in range(pp)]


def _listed(parts: Any) -> list[int]:
    """Return the layers of parts that are lists of module names."""
    lists = parts if isinstance(parts, list) else []
    return [sum(bool(LAYER.search(str(name))) for name in part) for part in lists if isinstance(part, list)]


def _between(points: Any, layers: int) -> list[int]:
    """Return the layers between modules that begin a stage, such as layers.4; behind the last layer stand others."""
    found = [LAYER.search(str(point)) for point in (points if isinstance(points, list) else [])]
    starts = [0, *(int(match[1]) if match else layers for match in found), layers]
    return [after - before for before, after in pairwise(starts)]


def split(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Return layers per stage; the embedding counts as ``first`` layers and the output as ``last``."""
    each, extra = divmod(layers + first + last, stages)
    parted = [each + (stage < extra) for stage in range(stages)]
    parted[0] -= first
    parted[-1] -= last
    return parted
