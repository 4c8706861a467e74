"""Recipes that are written for Megatron-Bridge: what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.presets import preset
from predictor.formats.megatron_bridge.writer import hub_name
from predictor.formats.writers import written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.candidate import Degrees
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem


def configuration(degrees: Degrees, preset: str = "llama3-8b", **changes: Any) -> dict[str, Any]:
    """Return a layout of a search for Megatron-Bridge, with changes."""
    gpus = degrees.tensor * degrees.pipeline * degrees.context * degrees.data
    system = "B200" if changes.get("training", {}).get("gemm_recipe") in ("mxfp8", "nvfp4") else "H100"
    question = SearchQuestion(preset, gpus, system=system, global_batch_size=128, framework="megatron-bridge")
    problem = search_problem(question)
    plan = next(plan for plan in plans(problem.space) if plan.degrees == degrees and plan.zero_stage == 1)
    return merged(configuration_of(problem.space, plan, problem.content), changes)


ALONE = Degrees(1, 1, 1, 64, 1)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ('AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B")', "cfg.model.seq_length = 8192")),
        (
            {"parallelism": {"zero_stage": 0, "overlap_parameter_gather": False, "gradient_reduction": "all_reduce"}},
            ("cfg.ddp.use_distributed_optimizer = False", "cfg.optimizer.use_distributed_optimizer = False"),
        ),
        (
            {"training": {"precision": "fp16"}, "parallelism": {"fp32_gradients": False}},
            ('get_mixed_precision_config("fp16_mixed")', "cfg.mixed_precision.grad_reduce_in_fp32 = False"),
        ),
        (
            {"training": {"gemm_recipe": "mxfp8"}, "parallelism": {"gather_precision": "fp8"}},
            ('get_mixed_precision_config("bf16_with_mxfp8_mixed")', "reuse_grad_buf_for_mxfp8_param_ag = True"),
        ),
        (
            {"training": {"gemm_recipe": "fp8_tensorwise", "layers_in_16_bits_at_start": 2}},
            ("cfg.mixed_precision.num_layers_at_start_in_bf16 = 2", "cfg.mixed_precision.fp8_param_gather = False"),
        ),
        (
            {"training": {"gemm_recipe": "fp8_tensorwise"}},
            ("cfg.mixed_precision.first_last_layers_bf16 = False", "cfg.mixed_precision.num_layers_at_end_in_bf16 = 0"),
        ),
        ({"training": {"gemm_recipe": "nvfp4"}}, ('cfg.mixed_precision.fp4 = "e2m1"',)),
        (
            {"training": {"cuda_graphs": True}},
            (
                "cfg.model.cuda_graph_scope = ['full_iteration']",
                "check_for_nan_in_loss = False",
                "check_for_nan_in_grad = False",
            ),
        ),
        ({"training": {"cuda_graphs": ["attn"]}}, ("cfg.rng.te_rng_tracker = True",)),
        ({"training": {"offload_optimizer": 0.5}}, ("cfg.optimizer.optimizer_offload_fraction = 0.5",)),
        ({"training": {"offload_modules": ["core_attn"]}}, ("cfg.model.offload_modules = ['core_attn']",)),
        ({"parallelism": {"zero_group_size": 8}}, ("cfg.ddp.num_distributed_optimizer_instances = 8",)),
        ({"model": {"loss": "fused"}}, ('cfg.model.cross_entropy_fusion_impl = "te"',)),
        ({"model": {"loss": "vocabulary_parallel"}}, ("cfg.model.cross_entropy_loss_fusion = False",)),
        ({"model": {"sliding_window": 1024}}, ("        window_size=(1023, 0),", "cfg.tokenizer.vocab_size = 128255")),
        ({"model": {"activation": "geglu", "biases": "qkv"}}, ("activation_func=quick_gelu", "add_qkv_bias=True")),
        ({"model": {"fused_side_kernels": False}}, ("cfg.model.bias_dropout_fusion = False",)),
    ],
)
def test_what_no_search_sets_is_written_too(changes: dict[str, Any], lines: tuple[str, ...]) -> None:
    text = written(configuration(ALONE, **changes), "megatron-bridge", Path.cwd())
    assert [line for line in lines if line not in text] == []


def test_models_that_autobridge_converts_are_named_and_others_have_sizes() -> None:
    def hub(name: str, **changes: Any) -> str | None:
        return hub_name(ModelSection.model_validate({**preset(name), **changes}))

    assert hub("llama3-8b") == "meta-llama/Meta-Llama-3-8B"
    assert hub("llama3-8b", sequence_length=2048, normalization="fused_rms_norm") == "meta-llama/Meta-Llama-3-8B"
    assert hub("qwen3-30b-a3b") == "Qwen/Qwen3-30B-A3B"
    assert hub("llama3-8b", num_layers=31) is None
    assert hub("llama3-8b", normalization="layer_norm") is None
    assert hub("mixtral-8x7b") is None  # of which AutoBridge has no bridge
    assert hub("gpt3-175b") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"normalization": "rms_norm"}}, "Megatron-Bridge's models have fused_rms_norm or layer_norm"),
        ({"model": {"attention": "unfused"}}, "model.attention is unfused; Megatron-Bridge's models have Transformer"),
        ({"training": {"recompute": "per_op"}}, "training.recompute is per_op"),
        ({"parallelism": {"zero_stage": 3}}, "parallelism.zero_stage is 3"),
        ({"training": {"partition_activations": True, "recompute": "full"}}, "core 0.16.1 does not start so"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(configuration(ALONE, **changes), "megatron-bridge", Path.cwd())
    assert message in str(caught.value)


def test_a_hybrid_and_expert_traffic_beside_whole_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="Megatron-Bridge's hybrids are not written"):
        written(configuration(Degrees(1, 1, 1, 8, 1), "nemotron-h-8b"), "megatron-bridge", Path.cwd())
    content = configuration(Degrees(1, 1, 2, 32, 8), "mixtral-8x7b")
    layout = {"overlap_expert_parallel": True, "virtual_pipeline_parallel_size": 1, "schedule": "1f1b"}
    content = merged(content, {"parallelism": layout})
    with pytest.raises(ConfigError, match="virtual_pipeline_parallel_size above 1 only"):
        written(content, "megatron-bridge", Path.cwd())
