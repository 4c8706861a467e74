"""What a framework's arguments are written for is read back to the same run: presets × layouts × switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.base.errors import ConfigError
from predictor.core.plan.of_model import content_of_model
from predictor.core.schema.merging import merged
from predictor.core.schema.presets import preset
from predictor.formats.writers import written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem

DENSE = ("llama3-8b", "gpt3-175b", "nemotron-4-15b", "nemotron-h-8b", "mistral-7b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2", "llama4-maverick")
GRAPHS: tuple[Any, ...] = ([], True, ["attn"], ["attn", "moe_router"], ["attn", "moe_router", "moe_preprocess"])


@st.composite
def megatron_runs(draw: st.DrawFn) -> dict[str, Any]:
    """Return a configuration that Megatron-LM runs, one replica's layout drawn at random."""
    name = draw(st.sampled_from(EXPERTS[:-1] + DENSE))
    has_experts = "moe" in preset(name)
    content, _, _ = content_of_model(name)
    tensor = draw(st.sampled_from([1, 2, 4]))
    replicas = draw(st.sampled_from([8, 16]))
    parallelism: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "sequence_parallel": tensor > 1,
        "overlap_tensor_parallel": tensor > 1,
        "overlap_linear_traffic": tensor > 1,
        "data_parallel_size": replicas,
        "zero_stage": 1,
        "gradient_reduction": "reduce_scatter",
        **draw(st.sampled_from([{}, {"zero_group_size": replicas // 2}])),
    }
    training: dict[str, Any] = {
        "framework": "megatron-lm",
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "num_micro_batches": draw(st.sampled_from([1, 8])),
        **draw(st.sampled_from([{}, {"offload_optimizer": 0.5}, {"offload_optimizer": 1.0}])),
    }
    if draw(st.booleans()):
        training |= {"recompute": "full", "recompute_group_layers": draw(st.sampled_from([1, 2]))}
    else:
        graphs = draw(st.sampled_from(GRAPHS if has_experts else GRAPHS[:3]))
        training |= {"cuda_graphs": graphs} if graphs else {}
    if has_experts:
        parallelism |= draw(
            st.fixed_dictionaries(
                {
                    "expert_parallel_size": st.sampled_from([2, 4]),
                    "expert_dispatcher": st.sampled_from(["all_to_all", "all_gather", "deepep", "hybridep"]),
                    "expert_tensor_parallel_size": st.sampled_from([1, tensor]),
                    "overlap_expert_parallel": st.booleans(),
                }
            )
        )
    return merged(content, {"system": "H100", "parallelism": parallelism, "training": training})


@settings(max_examples=60, deadline=None)
@given(megatron_runs())
def test_megatron_arguments_are_read_back_to_the_same_run(content: dict[str, Any]) -> None:
    try:
        text = written(content, "megatron", Path.cwd())  # which reads back, or raises
    except ConfigError as error:
        if "does not start so: --overlap-moe-expert-parallel-comm" in str(error):
            return  # Megatron-LM refuses some of these together: tests/written asks it
        raise
    assert text.startswith("#!/bin/bash")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("deepseek-v3", "kimi-k2", "nemotron-h-8b", "gpt3-175b", "mixtral-8x7b")), st.randoms())
def test_a_search_finds_nothing_that_its_framework_has_no_arguments_for(name: str, random: Any) -> None:
    problem = search_problem(SearchQuestion(name, 128, system="H100", global_batch_size=256, framework="megatron"))
    plan = random.choice(list(plans(problem.space)))
    assert written(configuration_of(problem.space, plan, problem.content), "megatron", Path.cwd())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cuda_graphs": ["moe_preprocess"]}, "Megatron-LM has it beside moe_router only"),
        ({"cuda_graphs": ["moe", "moe_router"]}, "in Megatron-LM the first holds the second"),
        ({"cuda_graphs": ["attn"], "recompute": "full"}, "Megatron-LM has graphs without it only"),
    ],
)
def test_what_megatron_refuses_is_not_written(changes: dict[str, Any], message: str) -> None:
    content, _, _ = content_of_model("deepseek-v3")
    training = {"micro_batch_size": 1, "num_micro_batches": 1, "framework": "megatron-lm", **changes}
    layout = {"overlap_tensor_parallel": False, "gradient_reduction": "reduce_scatter"}
    with pytest.raises(ConfigError, match=message):
        written(
            merged(content, {"system": "H100", "training": training, "parallelism": layout}), "megatron", Path.cwd()
        )
