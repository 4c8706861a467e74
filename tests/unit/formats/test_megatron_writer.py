"""A written script of Megatron-LM is accepted by the named release, which builds the layers that were predicted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan.loading import prepare
from predictor.formats.shell.script import parse
from predictor.formats.shell.words import UNKNOWN
from predictor.formats.writers import written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem
from tests.unit.examples import full_form

ACCEPTED: dict[str, Any] = read_mapping(Path(__file__).parents[2] / "data" / "writers" / "megatron_core_0.19.2.yaml")

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


def arguments(content: dict[str, Any], version: str | None = None) -> dict[str, list[str]]:
    """Return the options of a written script, each with its values."""
    commands = parse(written(content, "megatron", Path.cwd(), version)).commands
    words = next(words for words in commands if any(word.endswith(".py") for word in words))
    found: dict[str, list[str]] = {}
    for word in words[next(at for at, word in enumerate(words) if word.endswith(".py")) + 1 :]:
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values += [word] if UNKNOWN in word else shlex.split(word)
    return found


def layers_built(options: dict[str, list[str]]) -> list[list[int]]:
    """Return the layers of every stage's chunks as Megatron-LM builds them; it stops where layers do not divide.

    Source: NVIDIA/Megatron-LM core_v0.19.2, megatron/core/transformer/transformer_block.py (get_num_layers_to_build)
    and megatron/core/models/hybrid/hybrid_layer_allocation.py (select_pipeline_segment).
    """

    def number(name: str, otherwise: int | None) -> int | None:
        return int(options[name][0]) if name in options else otherwise

    stages = number("--pipeline-model-parallel-size", 1) or 1
    if "--hybrid-layer-pattern" in options:
        segments = [len(segment) for segment in options["--hybrid-layer-pattern"][0].split("|")]
        return [segments[stage::stages] for stage in range(stages)]
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


def is_accepted(value: str, kind: str | list[str]) -> bool:
    """Return whether an argument takes a value; numbers of any size."""
    if isinstance(kind, list):
        return value in kind
    number = {"whole": int, "real": float}.get(kind)
    if number is None or "$" in value or UNKNOWN in value:
        return True
    try:
        number(value)
    except ValueError:
        return False
    return True


def refusals(options: dict[str, list[str]]) -> list[str]:
    """Return what core 0.19.2 refuses of options, by its record and by the rules of its validate_args."""
    wrong = [f"{name} is no argument" for name in options if name not in ACCEPTED]
    for name, values in options.items():
        kind = ACCEPTED.get(name, "words")
        if kind != "words" and len(values) != (kind != "switch"):
            wrong.append(f"{name} takes {kind}")
        wrong += [f"{name} {value}" for value in values if not is_accepted(value, kind)]
    if options.get("--cross-entropy-fusion-impl") == ["te"]:
        wrong.append("--cross-entropy-fusion-impl te")
    return wrong


@pytest.mark.parametrize(
    "model", ["llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b", "gpt-oss-20b"]
)
def test_every_argument_is_one_of_the_named_release(model: str) -> None:
    question = SearchQuestion(model, 256, system="H100", global_batch_size=512, framework="megatron")
    problem = search_problem(question)
    every = list(plans(problem.space))
    for plan in every[:: max(1, len(every) // 12)]:
        content = configuration_of(problem.space, plan, problem.content)
        options = arguments(content)
        assert refusals(options) == []
        run = prepare(content, Path.cwd()).run
        assert layers_built(options) == [list(chunks) for chunks in run.chunk_layers]
