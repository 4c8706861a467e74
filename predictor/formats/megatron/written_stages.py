"""The arguments of Megatron-LM on how layers are spread over pipeline stages and their chunks.

Source of names and rules: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py, get_num_layers_to_build,
megatron/core/transformer/pipeline_parallel_layer_layout.py and
megatron/core/models/hybrid/hybrid_layer_allocation.py, select_pipeline_segment; before core 0.17
megatron/core/ssm/mamba_block.py, _select_layers_for_pipeline_parallel.
"""

from __future__ import annotations

from itertools import accumulate

from predictor.core.base.errors import ConfigError
from predictor.core.checks.layout import split_of
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.partition import METHODS, chunk_layers
from predictor.formats.megatron.releases import Release
from predictor.formats.megatron.written_layers import hybrid_pattern, is_hybrid

SEGMENTS_SINCE = "0.17"  # a hybrid's pattern says which layers a stage has
# Which ends of the model count as a layer of the chunk that has them, by the switches that say so.
COUNTED = {
    (1, 1): ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"],
    (1, 0): ["--account-for-embedding-in-pipeline-split"],
    (0, 1): ["--account-for-loss-in-pipeline-split"],
}


def stage_arguments(parallel: ParallelismSection, model: ModelSection, series: Release) -> list[str]:
    """Return how layers are spread: evenly, with ends that count as layers, by the ends' layers, or chunk by chunk.

    Megatron-LM splits evenly over all chunks unless it is told otherwise, and stops where layers do not divide.
    """
    given = parallel.layers_per_stage
    if isinstance(given, str) and given not in METHODS:
        return _layout(given.replace("e", "E").replace("l", "L"))
    num_chunks = parallel.virtual_pipeline_parallel_size
    name = parallel.schedule or ("1f1b" if num_chunks == 1 else "interleaved_1f1b")
    split = split_of(parallel, model, SCHEDULES[name], num_chunks)
    stages = range(len(split.stages))
    chunks = split.chunks or [chunk_layers(split.stages, stage, split.num_chunks) for stage in stages]
    in_order = [chunks[stage][chunk] for chunk in range(split.num_chunks) for stage in stages]
    words = []
    if parallel.micro_batch_group_size is not None:
        words.append(f"--microbatch-group-size-per-virtual-pipeline-stage {parallel.micro_batch_group_size}")
    if is_hybrid(model):  # whose pattern names the layers of every chunk, and takes no other word on them
        return [*words, _pattern(hybrid_pattern(model), in_order, split.num_chunks, series)]
    if split.num_chunks > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank {split.num_chunks}")
    if len(set(in_order)) == 1:
        return words
    by_ends = [
        switches
        for (embedding, loss), switches in COUNTED.items()
        if len({in_order[0] + embedding, *in_order[1:-1], in_order[-1] + loss}) == 1
    ]
    has_ends = len(set(split.stages[1:-1])) <= 1 and all(len(set(of_stage)) == 1 for of_stage in chunks)
    if has_ends and by_ends != [COUNTED[1, 1]]:
        first, last = split.stages[0], split.stages[-1]
        by_size = [f"--decoder-first-pipeline-num-layers {first}", f"--decoder-last-pipeline-num-layers {last}"]
        return [*words, *by_size]
    if by_ends:
        return [*words, *by_ends[0]]
    letters = ["t" * layers for layers in in_order]
    return _layout("|".join(["E" + letters[0], *letters[1:]]) + "m" * model.num_mtp_layers + "L")


def _pattern(pattern: str, in_order: list[int], num_chunks: int, series: Release) -> str:
    """Return the argument on a hybrid's layers, the chunks of pipeline stages parted by bars.

    Raises:
        ConfigError: the release splits them evenly only.
    """
    if series.has(SEGMENTS_SINCE):
        ends = accumulate(in_order)
        segments = [pattern[end - layers : end] for end, layers in zip(ends, in_order, strict=True)]
        return f"--hybrid-layer-pattern '{'|'.join(segments)}'"
    if num_chunks > 1 or len(set(in_order)) > 1:
        raise ConfigError(
            f"a hybrid's {len(pattern)} layers are split unevenly, or into several chunks a stage; Megatron-LM's core "
            f"{series.newest} splits them evenly: take --framework-version {SEGMENTS_SINCE} or a later one"
        )
    return f"--hybrid-override-pattern '{pattern}'"


def _layout(string: str) -> list[str]:
    return [f"--pipeline-model-parallel-layout '{string}'"]
