"""The arguments of Megatron-LM on how layers are spread over pipeline stages and their chunks.

Source of names and rules: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py, get_num_layers_to_build,
megatron/core/transformer/pipeline_parallel_layer_layout.py and
megatron/core/models/hybrid/hybrid_layer_allocation.py, select_pipeline_segment.
"""

from __future__ import annotations

from itertools import accumulate

from predictor.core.checks.pipeline_layout import split_of
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.partition import METHODS, chunk_layers
from predictor.formats.megatron.written_layers import hybrid_pattern, is_hybrid

# Which ends of the model count as a layer of the chunk that has them, by the switches that say so.
COUNTED = {
    (1, 1): ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"],
    (1, 0): ["--account-for-embedding-in-pipeline-split"],
    (0, 1): ["--account-for-loss-in-pipeline-split"],
}


def stage_arguments(parallel: ParallelismSection, model: ModelSection) -> list[str]:
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
        pattern, ends = hybrid_pattern(model), accumulate(in_order)
        segments = [pattern[end - layers : end] for end, layers in zip(ends, in_order, strict=True)]
        return [*words, f"--hybrid-layer-pattern '{'|'.join(segments)}'"]
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


def _layout(string: str) -> list[str]:
    return [f"--pipeline-model-parallel-layout '{string}'"]
