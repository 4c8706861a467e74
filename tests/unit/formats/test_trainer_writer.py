"""Scripts that start a Hugging Face Trainer: its kernels, precision and layout as arguments, and what has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.presets import preset_names
from predictor.formats.hub_models import hub_id, preset_of
from predictor.formats.writers import written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.candidate import Degrees
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem

LIGER_MODEL = {"normalization": "fused_rms_norm", "fused_rope": True, "fused_side_kernels": True}


def script(zero_stage: int = 3, num_gpus: int = 16, name: str = "llama3-8b", **changes: dict[str, Any]) -> str:
    """Return what is written of a layout that a search may find, with changes."""
    problem = search_problem(
        SearchQuestion(name, num_gpus, system="H100", global_batch_size=64, framework="transformers")
    )
    alone = Degrees(1, 1, 1, num_gpus, 1)
    plan = next(plan for plan in plans(problem.space) if plan.degrees == alone and plan.zero_stage == zero_stage)
    content = merged(configuration_of(problem.space, plan, problem.content), changes)
    return written(content, "transformers", Path.cwd())


@pytest.mark.parametrize(
    ("zero_stage", "changes", "words", "absent"),
    [
        (3, {"model": {**LIGER_MODEL, "loss": "fused_linear"}}, "--use_liger_kernel true", "liger_kernel_config"),
        (3, {"model": {"loss": "fused_linear"}}, '"rms_norm":false', '"fused_linear_cross_entropy"'),
        (0, {"model": LIGER_MODEL}, "'{\"fused_linear_cross_entropy\":false}'", "--fsdp"),
        (3, {"parallelism": {"reshard_after_forward": False}}, '"reshard_after_forward":false', "liger"),
        (3, {"training": {"recompute": "full"}}, '"use_reentrant":true', "--torch_compile"),
        (
            0,
            {"training": {"recompute": "full", "recompute_stops_early": True}},
            '"use_reentrant":false',
            "--gradient_checkpointing false",
        ),
        (3, {"training": {"compiled": True}}, "--torch_compile true", "--gradient_checkpointing true"),
        (3, {"training": {"precision": "fp16"}}, "--fp16 true", "--bf16"),
        (3, {"training": {"precision": "fp32", "tf32": True}}, "--tf32 true", "--bf16"),
        (3, {"budget": {"train_tokens": 64 * 8192 * 100 + 1}}, "TRAIN_ITERS:-101}", "TRAIN_ITERS:?"),
    ],
)
def test_switches_are_arguments(zero_stage: int, changes: dict[str, Any], words: str, absent: str) -> None:
    text = script(zero_stage, **changes)
    assert words in text
    assert absent not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallelism": {"tensor_parallel_size": 2, "data_parallel_size": 8}}, "tensor_parallel_size is 2; a Hugging"),
        (
            {"parallelism": {"pipeline_parallel_size": 2, "data_parallel_size": 8, "zero_stage": 0}},
            "pipeline_parallel_size is 2; a Hugging",
        ),
        ({"parallelism": {"zero_stage": 2, "fp32_parameters": False}}, "zero_stage is 2; a Hugging Face Trainer"),
        ({"parallelism": {"zero_group_size": 8}}, "has no arguments for zero_group_size"),
        ({"training": {"recompute": "per_op"}}, "training.recompute is per_op; a Hugging Face Trainer has none"),
        ({"training": {"attention_kernel": "memory_efficient"}}, "has no arguments for attention_kernel"),
        ({"model": {"num_layers": 33}}, "no preset whose name on Hugging Face's hub is known has these sizes"),
        ({"model": {"normalization": "layer_norm"}}, "has no arguments for model.normalization"),
    ],
)
def test_what_a_trainer_has_no_arguments_for_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        script(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_experts_stay_whole() -> None:
    with pytest.raises(ConfigError, match="expert_parallel_size is 8; a Hugging Face Trainer"):
        script(name="mixtral-8x7b", parallelism={"expert_parallel_size": 8})


def test_models_of_the_same_sizes_are_named() -> None:
    text = script()
    assert "# MODEL is any of these sizes: meta-llama/Meta-Llama-3-8B, meta-llama/Llama-3.1-8B.\n" in text
    assert '--model_name_or_path "${MODEL:-meta-llama/Meta-Llama-3-8B}"' in text
    assert "MODEL is any" not in script(name="gpt2-xl")


def test_names_on_the_hub_are_those_that_are_read_back() -> None:
    named = {name: hub for name in preset_names() if (hub := hub_id(name)) is not None}
    assert {preset_of(hub) for hub in named.values()} == named.keys()
    assert named["llama3-70b"] == "meta-llama/Meta-Llama-3-70B"  # its source breaks the line inside the name
    assert hub_id("gpt3-175b") is None


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_a_search_splits_no_replica(model: str) -> None:
    problem = search_problem(SearchQuestion(model, 64, system="H100", global_batch_size=256, framework="transformers"))
    found = [(plan, problem.space.run(plan)) for plan in plans(problem.space)]
    assert {plan.degrees for plan, _ in found} == {Degrees(1, 1, 1, 64, 1)}
    assert {plan.zero_stage for plan, _ in found} == {0, 3}
    assert {str(plan.recompute) for plan, _ in found} == {"none", "full"}
    assert all(run.fp32_parameters and run.fp32_gradients == (plan.zero_stage == 0) for plan, run in found)
