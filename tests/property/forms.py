"""Runs of today's models on H100 GPUs, and what is predicted for them: time and memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.step.memory import StageMemory, step_memory
from predictor.core.step.prediction import Prediction, predict
from tests.unit.examples import full_form

LENGTH, LAYERS = 4096, 8
EXPERTS = {"num_experts": 16, "experts_per_token": 4, "expert_ffn_hidden_size": 1024}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
Sections = dict[str, dict[str, Any]]


@cache
def system() -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / "H100", "bf16")


@st.composite
def forms(draw: st.DrawFn) -> Sections:
    """Draw a run of eight layers: dense or of experts, plain or latent attention, 16 or 8 bits, in any layout."""
    stages = draw(st.sampled_from([1, 2, 4]))
    chunks = draw(st.sampled_from([1, 2])) if stages > 1 else 1
    tensor = draw(st.sampled_from([1, 2, 4]))
    model: dict[str, Any] = {
        "num_layers": LAYERS,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "sequence_length": LENGTH,
        "activation": "swiglu",
        "ffn_hidden_size": 12288,
        "moe": draw(st.sampled_from([None, EXPERTS])),
    }
    model |= draw(st.sampled_from([{"latent_attention": LATENT}, {"num_key_value_heads": 8}, {}]))
    return {
        "model": {name: value for name, value in model.items() if value is not None},
        "parallelism": {
            "tensor_parallel_size": tensor,
            "sequence_parallel": tensor > 1,
            "pipeline_parallel_size": stages,
            "virtual_pipeline_parallel_size": chunks,
            "data_parallel_size": draw(st.sampled_from([4, 8])),
            "expert_parallel_size": draw(st.sampled_from([1, 4])) if model["moe"] else 1,
            "blocking_transfers": False,
            "zero_stage": draw(st.sampled_from([0, 1] if stages > 1 else [0, 1, 2, 3])),
            "overlap_gradient_reduction": draw(st.booleans()),
            "overlap_parameter_gather": draw(st.booleans()),
        },
        "training": {
            "micro_batch_size": draw(st.sampled_from([1, 2])),
            "num_micro_batches": 8,
            "precision": "bf16",
            "gemm_recipe": draw(st.sampled_from([None, "fp8_delayed", "fp8_blockwise"])),
            "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        },
    }


def changed(content: Sections, changes: Sections) -> Sections:
    return {name: {**section, **changes.get(name, {})} for name, section in content.items()}


def predicted(content: Sections) -> Prediction:
    return predict(to_run(validate(full_form(**content)), system().hardware.gpus_per_node), system())


def memory(prediction: Prediction) -> list[StageMemory]:
    return step_memory(prediction.tasks)
