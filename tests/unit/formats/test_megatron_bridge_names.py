"""Names in recipes of Megatron-Bridge: models of the hub, precisions, layers of a stage."""

from __future__ import annotations

from predictor.core.schema.presets import preset_names
from predictor.formats.hub_models import preset_of
from predictor.formats.megatron_bridge.options import layout_text, precision


def test_names_of_the_hub() -> None:
    names = {
        "meta-llama/Meta-Llama-3-8B": "llama3-8b",
        "meta-llama/Llama-3.1-405B-Instruct": "llama3.1-405b",
        "meta-llama/Llama-2-70b-hf": "llama2-70b",
        "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
        "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
        "google/gemma-2-9b-it": "gemma2-9b",
        "mistralai/Mistral-7B-v0.3": None,  # another vocabulary
        "mistralai/Mixtral-8x22B-Instruct-v0.1": None,  # another vocabulary
        "ai21labs/Jamba-v0.1": "jamba-v0.1",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16": "nemotron-3-nano-30b-a3b",
        "nvidia/Nemotron-H-56B-Base-8K": "nemotron-h-56b",
        "meta-llama/Llama-3.3-70B-Instruct": "llama3.1-70b",
        "allenai/OLMo-2-1124-13B-Instruct": "olmo2-13b",
        "allenai/Olmo-3-1125-32B": "olmo3-32b",
        "google-bert/bert-large-uncased": "bert-large",
        "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
        "/models/Llama-2-7b-hf/": "llama2-7b",
        r"C:\models\Qwen2.5-7B": "qwen2.5-7b",
        "microsoft/Phi-3-mini-128k-instruct": None,  # another window
        "moonshotai/Kimi-K2-Instruct-0905": None,
        None: None,
    }
    assert {name: preset_of(name) for name in names} == names
    assert all(name is None or name in preset_names() for name in names.values())


def test_precisions_by_name() -> None:
    assert precision("bf16_with_nvfp4_mixed") == {
        "bf16": True, "grad_reduce_in_fp32": True, "fp4": "e2m1", "fp4_recipe": "nvfp4",
    }  # fmt: skip
    found = precision("nemotron_h_bf16_with_fp8_current_scaling_mixed") or {}
    assert (found["num_layers_at_start_in_bf16"], found["fp8_recipe"]) == (2, "tensorwise")
    assert precision("bf16") is None


def test_layout_as_a_text() -> None:
    assert layout_text([["embedding", "decoder"], ["decoder"] * 2, ["mtp", "loss"]]) == "Et|tt|mL"
