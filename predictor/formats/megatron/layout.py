"""The layout that arguments of Megatron-LM describe: degrees, schedule, optimizer sharding and overlap."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.workload.frameworks import FSDP2, MEGATRON_LM
from predictor.formats.megatron.exchange import exchange
from predictor.formats.megatron.layers import of_model
from predictor.formats.megatron.options import Options
from predictor.formats.megatron.precision import gathered_weights

INSTANCES, OUTER = "num-distributed-optimizer-instances", "outer-dp-sharding-strategy"
HYBRID = "hybrid-layer-pattern"
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def ranks_of_a_model(options: Options) -> int:
    """Return the ranks that hold one replica of the model."""
    sizes = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    return prod(options.whole(size, 1) for size in sizes)


def replicas(options: Options, data_parallel_size: int) -> dict[str, Any]:
    """Return the keys of ``parallelism`` that follow from the number of replicas, with that number.

    Raises:
        ConfigError: the instances of the distributed optimizer do not divide the ranks that share it out.
    """
    found = {key: find(data_parallel_size) for key, find in of_replicas(options).items()}
    return {"data_parallel_size": data_parallel_size} | found


def of_replicas(options: Options) -> dict[str, Callable[[int], int]]:
    """Return the keys of ``parallelism`` that the number of replicas settles, each with the function that does.

    The functions raise a ConfigError where the instances of the distributed optimizer do not divide the ranks that
    share it out.
    """
    instances, context = _instances(options), options.whole("context-parallel-size", 1)

    def group(data_parallel_size: int) -> int:
        ranks = data_parallel_size * context
        if ranks % instances:
            raise options.error(INSTANCES, f"it must divide the ranks of data and context parallelism, {ranks}")
        return ranks // instances

    found: dict[str, Callable[[int], int]] = {"zero_group_size": group} if instances > 1 else {}
    if options.switch("overlap-grad-reduce") and options.optional_whole("ddp-bucket-size") is None:
        found["gradient_bucket_elements"] = MEGATRON_LM.bucket_elements
    return found


def _instances(options: Options) -> int:
    """Return the instances of the distributed optimizer; one where nothing is shared out."""
    instances, outer = options.whole(INSTANCES, 1), options.text(OUTER, "no_shard", SHARDING)
    if instances > 1 and outer != "no_shard":
        options.broken(options.error(OUTER, "only no_shard is modelled: instances hold the same states"))
    return instances if _zero_stage(options) else 1


def derived(options: Options) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Return the keys that follow from the whole configuration once it says the number of replicas."""

    def of_layout(find: Callable[[int], int]) -> Callable[[dict[str, Any]], Any]:
        def found(content: dict[str, Any]) -> int | None:
            size = content.get("parallelism", {}).get("data_parallel_size")
            return find(size) if isinstance(size, int) and size > 0 else None

        return found

    return {f"parallelism.{key}": of_layout(find) for key, find in of_replicas(options).items()}


def parallelism(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the section ``parallelism``, without the keys that follow from the number of GPUs.

    Raises:
        ConfigError: degrees do not divide the layers.
    """
    tp = options.whole("tensor-model-parallel-size", 1)
    pp = options.whole("pipeline-model-parallel-size", 1)
    keys: dict[str, Any] = {
        "tensor_parallel_size": tp,
        # With one rank Megatron-LM switches it off.
        "sequence_parallel": options.switch("sequence-parallel") and tp > 1,
        "pipeline_parallel_size": pp,
        "context_parallel_size": options.whole("context-parallel-size", 1),
        **_experts(options, tp),
        **exchange(options),
        **_schedule(options, pp, notes),
    }
    if options.switch("use-tp-pp-dp-mapping"):
        keys["rank_order"] = ["tp", "cp", "pp", "dp"]
    return keys | _gradients(options, notes)


def _experts(options: Options, tp: int) -> dict[str, int]:
    ep = options.whole("expert-model-parallel-size", 1)
    split = options.whole("expert-tensor-parallel-size", tp)
    if options.optional_whole("num-experts") is None and ep == 1:
        return {}
    keys = {"expert_parallel_size": ep} if ep > 1 else {}
    return keys | ({"expert_tensor_parallel_size": split} if split != tp else {})


def _schedule(options: Options, pp: int, notes: list[str]) -> dict[str, Any]:
    num_chunks = _chunks(options, pp)
    split = _split(options, pp, num_chunks)
    layout = str(split.get("layers_per_stage", ""))
    if _is_layout(layout):
        num_chunks = max(1, _stages_of(layout) // pp)
    if segments := _segments(options, pp):
        num_chunks, split = len(segments[0]), {"layers_per_stage": segments}
    if options.switch("no-overlap-p2p-communication") and num_chunks > 1:
        name = options.named("no-overlap-p2p-communication")
        notes.append(f"{name}: messages of an interleaved schedule are predicted to overlap")
    keys: dict[str, Any] = {}
    if pp > 1:
        keys["schedule"] = "interleaved_1f1b" if num_chunks > 1 else "1f1b"
    if num_chunks > 1:
        keys["virtual_pipeline_parallel_size"] = num_chunks
    if (group := options.optional_whole(GROUP)) is not None and num_chunks > 1 and group != pp:
        keys["micro_batch_group_size"] = group
    return keys | split


def _chunks(options: Options, pp: int) -> int:
    """Return the model chunks of a stage."""
    num_chunks = options.whole("num-virtual-stages-per-pipeline-rank", 1)
    layers_per_chunk = options.optional_whole("num-layers-per-virtual-pipeline-stage")
    if layers_per_chunk is None:
        return num_chunks
    layers = _layers(options)
    counted = sum(options.switch(f"account-for-{part}-in-pipeline-split") for part in ("embedding", "loss"))
    num_chunks, rest = divmod(layers + counted, pp * layers_per_chunk)
    if rest or not num_chunks:
        raise options.error(
            "num-layers-per-virtual-pipeline-stage", f"it must divide the layers of a stage, {layers} / {pp}"
        )
    return num_chunks


def _layers(options: Options) -> int:
    return options.whole("num-layers", options.optional_whole("encoder-num-layers"))


def _segments(options: Options, pp: int) -> list[list[int]]:
    """Return the layers of every stage's chunks that a hybrid's pattern separates; empty where it does not.

    Raises:
        ConfigError: the stages do not divide its segments.
    """
    pattern = of_model(options.get(HYBRID) or "")
    layers = [len(segment) for segment in pattern.split("|")]
    if len(layers) == 1 or pp == 1:
        return []
    if len(layers) % pp:
        raise options.error(HYBRID, f"it has {len(layers)} segments, which the {pp} pipeline stages must divide")
    return [layers[stage::pp] for stage in range(pp)]


def _is_layout(text: str) -> bool:
    """Return whether a split is a string of --pipeline-model-parallel-layout."""
    return "t" in text and "uniform" not in text


def _stages_of(layout: str) -> int:
    """Return the stages, chunks of all ranks together, that a string such as Et*3|(tt|)*29,L names.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py, get_num_stages_from_str.
    """
    text = layout.replace(",", "").replace(" ", "")
    while (repeated := re.search(r"\(([^()]*)\)(?:\*(\d+))?", text)) is not None:
        text = text[: repeated.start()] + repeated[1] * int(repeated[2] or 1) + text[repeated.end() :]
    return len(re.sub(r"\|\*(\d+)", lambda times: "|" * int(times[1]), text).split("|"))


def _split(options: Options, pp: int, num_chunks: int) -> dict[str, Any]:
    """Return the keys of layers per stage, where stages differ; nothing where they do not."""
    first = options.optional_whole("decoder-first-pipeline-num-layers")
    last = options.optional_whole("decoder-last-pipeline-num-layers")
    counts = {
        f"{part}_counts_as_layer": True
        for part in ("embedding", "loss")
        if options.switch(f"account-for-{part}-in-pipeline-split")
    }
    layout = options.get("pipeline-model-parallel-layout")
    if pp == 1:
        return {}
    if layout is not None:
        return {"layers_per_stage": str(layout).strip("'\"")}
    if first is None and last is None:
        return counts
    layers = _layers(options)
    inner = pp - (first is not None) - (last is not None)
    each, rest = divmod(layers - (first or 0) - (last or 0), inner) if inner else (0, 0)
    split = ([] if first is None else [first]) + [each] * inner + ([] if last is None else [last])
    uneven = [size for size in split if size % num_chunks]
    if rest or min(split) < 1 or sum(split) != layers or uneven:
        chunks = f", in {num_chunks} chunks each" if num_chunks > 1 else ""
        raise ConfigError(
            f"{options.where}: {options.named('num-layers')} is {layers}; between the first and the last of {pp} "
            f"stages it must divide{chunks}"
        )
    return {"layers_per_stage": split if num_chunks == 1 else [[size // num_chunks] * num_chunks for size in split]}


def _gradients(options: Options, notes: list[str]) -> dict[str, Any]:
    stage = _zero_stage(options)
    keys: dict[str, Any] = {
        "zero_stage": stage,
        "gradient_reduction": "reduce_scatter" if stage and not shares_layers(options) else "all_reduce",
        "overlap_gradient_reduction": options.switch("overlap-grad-reduce"),
        "overlap_parameter_gather": options.switch("overlap-param-gather"),
        "overlap_tensor_parallel": options.switch("tp-comm-overlap"),
    }
    if options.switch("tp-comm-overlap") and options.switch("sequence-parallel"):
        keys["overlap_linear_traffic"] = True
    if options.switch("use-torch-fsdp2"):
        keys |= FSDP2.section("parallelism")
    gathered = gathered_weights(options)
    keys |= gathered if stage else {}
    in_half = options.switch("grad-reduce-in-bf16")
    in_half |= options.text("main-grads-dtype", "fp32", ("fp32", "bf16", "fp16")) != "fp32"
    accumulates = options.switch("accumulate-allreduce-grads-in-fp32")
    keys["fp32_gradients"] = accumulates or (options.switch("bf16") and not in_half)
    bucket = options.optional_whole("ddp-bucket-size")
    if bucket is not None:
        keys["gradient_bucket_elements"] = bucket
    # Releases of 2021: « local » reduces after the backward pass, « torch » is PyTorch's own.
    if options.text("DDP-impl", "local") != "local":
        notes.append("--DDP-impl: predicted as Megatron-LM's own reduction of gradients")
    return keys


def _zero_stage(options: Options) -> int:
    strategy = options.text("data-parallel-sharding-strategy", "no_shard", SHARDING)
    is_fsdp = options.switch("use-megatron-fsdp") or options.switch("use-custom-fsdp")
    if options.switch("use-torch-fsdp2"):
        return 3
    sharded = options.switch("use-distributed-optimizer") or shares_layers(options)
    return SHARDING[strategy] if is_fsdp else int(sharded)


def shares_layers(options: Options) -> bool:
    """Return whether ranks share out whole layers' states for Muon, whose gradients all of them sum.

    Source: Megatron-LM core, optimizer/layer_wise_optimizer.py, which dist_muon takes.
    """
    is_named = options.text("optimizer", "adam") == "dist_muon"
    return options.switch("use-layer-wise-distributed-optimizer") or is_named
