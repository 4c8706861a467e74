"""A written script of Megatron-LM is accepted by the named release, which builds the layers that were predicted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from predictor.configuration.loading import prepare
from predictor.configuration.readers.shell_script import parse
from predictor.configuration.writers import written
from tests.unit.examples import full_form

SPLITS: list[tuple[int, dict[str, Any]]] = [
    (32, {"pipeline_parallel_size": 1}),
    (32, {"pipeline_parallel_size": 2}),
    (30, {"pipeline_parallel_size": 2, "layers_per_stage": [15, 15], "virtual_pipeline_parallel_size": 8}),
    (30, {"pipeline_parallel_size": 2, "embedding_counts_as_layer": True, "loss_counts_as_layer": True}),
    (31, {"pipeline_parallel_size": 4, "loss_counts_as_layer": True, "virtual_pipeline_parallel_size": 2}),
    (31, {"pipeline_parallel_size": 8, "embedding_counts_as_layer": True}),
    (126, {"pipeline_parallel_size": 8, "layers_per_stage": [15, *[16] * 6, 15], "virtual_pipeline_parallel_size": 8}),
    (126, {"pipeline_parallel_size": 8, "layers_per_stage": [15, *[16] * 6, 15]}),
    (32, {"pipeline_parallel_size": 4, "virtual_pipeline_parallel_size": 4}),
    (61, {"pipeline_parallel_size": 4, "layers_per_stage": [[4, 4, 4, 4]] * 3 + [[4, 4, 4, 1]]}),
    (32, {"pipeline_parallel_size": 4, "layers_per_stage": [8, 9, 9, 6]}),
    (33, {"pipeline_parallel_size": 4}),
]


def arguments(content: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options of a written script, each with its values."""
    commands = parse(written(content, "megatron", Path.cwd())).commands
    words = next(words for words in commands if any(word.endswith(".py") for word in words))
    found: dict[str, list[str]] = {}
    for word in words[next(at for at, word in enumerate(words) if word.endswith(".py")) + 1 :]:
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values += shlex.split(word)
    return found


def layers_built(options: dict[str, list[str]]) -> list[list[int]]:
    """Return the layers of every stage's chunks as Megatron-LM builds them; it stops where layers do not divide.

    Source: NVIDIA/Megatron-LM core_v0.19.2, megatron/core/transformer/transformer_block.py, get_num_layers_to_build.
    """

    def number(name: str, otherwise: int | None) -> int | None:
        return int(options[name][0]) if name in options else otherwise

    stages = number("--pipeline-model-parallel-size", 1) or 1
    if "--pipeline-model-parallel-layout" in options:
        chunks = [chunk.count("t") for chunk in options["--pipeline-model-parallel-layout"][0].split("|")]
        return [chunks[stage::stages] for stage in range(stages)]
    counts = [f"--account-for-{part}-in-pipeline-split" in options for part in ("embedding", "loss")]
    ends = [number(f"--decoder-{part}-pipeline-num-layers", None) for part in ("first", "last")]
    left = (number("--num-layers", None) or 0) + sum(counts)
    each, rest = divmod(left - sum(end or 0 for end in ends), stages - sum(end is not None for end in ends) or 1)
    of_stage = [each] * stages
    of_stage[0], of_stage[-1] = ends[0] or of_stage[0], ends[1] or of_stage[-1]
    num_chunks = number("--num-virtual-stages-per-pipeline-rank", 1) or 1
    assert not rest
    assert not any(layers % num_chunks for layers in of_stage)
    built = [[layers // num_chunks] * num_chunks for layers in of_stage]
    built[0][0] -= counts[0]
    built[-1][-1] -= counts[1]
    return built


@pytest.mark.parametrize(("num_layers", "layout"), SPLITS)
def test_megatron_builds_the_layers_that_are_predicted(num_layers: int, layout: dict[str, Any]) -> None:
    replicas = {
        "data_parallel_size": 4,
        "zero_stage": 1,
        "gradient_reduction": "reduce_scatter",
        "fp32_gradients": True,
    }
    content = full_form(
        model={"num_layers": num_layers},
        parallelism=replicas | layout,
        training={"num_micro_batches": 8, "framework": "megatron-lm", "precision": "bf16"},
    )
    run = prepare(content, Path.cwd()).run
    assert layers_built(arguments(content)) == [list(chunks) for chunks in run.chunk_layers]
