"""Recipes that are written for Megatron-Bridge: what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.presets import preset
from predictor.formats.megatron_bridge.writer import hub_name
from predictor.formats.writers import written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.question import SearchQuestion, search_problem
from predictor.layout_search.rank import plans
from predictor.layout_search.space import Degrees


def configuration(degrees: Degrees, model: str = "llama3-8b", **changes: dict[str, Any]) -> dict[str, Any]:
    """Return a layout of a search for Megatron-Bridge on 64 GPUs, with changes."""
    gpus = degrees.tensor * degrees.pipeline * degrees.context * degrees.data
    question = SearchQuestion(model, gpus, system="H100", global_batch_size=128, framework="megatron-bridge")
    problem = search_problem(question)
    plan = next(plan for plan in plans(problem.space) if plan.degrees == degrees and plan.zero_stage == 1)
    content = configuration_of(problem.space, plan, problem.content)
    return {**content, **{section: {**content[section], **keys} for section, keys in changes.items()}}


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
                "te_rng_tracker = True",
            ),
        ),
        ({"training": {"cuda_graphs": ["attn"]}}, ("cfg.rng.te_rng_tracker = True",)),
        ({"training": {"offload_optimizer": 0.5}}, ("cfg.optimizer.optimizer_offload_fraction = 0.5",)),
        ({"parallelism": {"zero_group_size": 8}}, ("cfg.ddp.num_distributed_optimizer_instances = 8",)),
        ({"model": {"loss": "fused"}}, ('cfg.model.cross_entropy_fusion_impl = "te"',)),
        ({"model": {"loss": "vocabulary_parallel"}}, ("cfg.model.cross_entropy_loss_fusion = False",)),
        ({"model": {"sliding_window": 1024}}, ("        window_size=(1023, 0),", "cfg.tokenizer.vocab_size = 128255")),
        ({"model": {"activation": "geglu", "biases": "qkv"}}, ("activation_func=quick_gelu", "add_qkv_bias=True")),
        ({"model": {"rotary_layers": [True, True, True, False]}}, ("no_rope_freq=[0] * 3 + [1] * 1 + [0] * 3",)),
        ({"model": {"fused_side_kernels": False}}, ("cfg.model.bias_dropout_fusion = False",)),
    ],
)
def test_what_no_search_sets_is_written_too(changes: dict[str, Any], lines: tuple[str, ...]) -> None:
    text = written(configuration(ALONE, **changes), "megatron-bridge", Path.cwd())
    assert [line for line in lines if line not in text] == []
