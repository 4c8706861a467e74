"""Presets count what others count, name where that stands, and hold keys of a configuration only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.base.errors import ConfigError
from predictor.base.read_yaml import read_mapping
from predictor.configuration.presets import FOLDER, find_preset, preset, preset_names
from tests.unit.examples import model_of

ALL = preset_names()
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "presets.md"
COMPUTED = {"gpt3-175b"}

# Figures that the presets' sources state, copied by hand from there: a slip in a preset cannot correct itself.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "llama-7b": 6_738_415_616,
    "llama-65b": 65_285_660_672,
    "llama2-13b": 13_015_866_880 - 40 * 64,  # Hub's count, less the rotary frequencies of 40 layers
    "llama2-70b": 68_976_653_312 - 80 * 64,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 281_241_268_224 // 2,  # bytes of the bf16 checkpoint
    "qwen2.5-72b": 145_412_407_296 // 2,
    "qwen3-235b-a22b": 470_187_269_120 // 2,
    "qwen2-57b-a14b": 57_408_658_944,
    "gemma-2b": 3_030_460_416 - 256_000 * 2048,  # counted with its tied embedding twice, google/gemma-2b discussion 36
    "gemma2-27b": 27_227_128_320,
    "gemma3-27b": 27_009_346_304 - 64 * 5376,  # llama.cpp's n_params, less the rows that pad the vocabulary
    "phi-3-mini": 3_821_079_552,
}


def counted(model: dict[str, Any]) -> int:
    """Count parameters tensor by tensor, as a checkpoint lists them; nothing is taken from the predictor."""
    hidden: int = model["hidden_size"]
    layers, heads = model["num_layers"], model["num_attention_heads"]
    head_dim = model.get("head_dim", hidden // heads)
    query, key = heads * head_dim, model.get("num_key_value_heads", heads) * head_dim
    gated = model["activation"] != "gelu"
    linear_bias, qkv_bias = model["biases"] is True, bool(model["biases"])
    norm = hidden * (2 if model["normalization"] == "layer_norm" else 1)

    def ffn(width: int) -> int:
        up = (hidden + linear_bias) * width
        return int(up + up * gated + (width + linear_bias) * hidden)

    attention = sum((hidden + qkv_bias) * width for width in (query, key, key)) + (query + linear_bias) * hidden
    norms = (4 if model.get("post_norms") else 2) * norm + (2 * head_dim if model.get("qk_norm") else 0)
    experts = model.get("moe")
    total = norm  # of the output
    for layer in range(layers):
        total += attention + norms
        if experts is None or layer < experts.get("num_dense_layers", 0):
            total += ffn(model["ffn_hidden_size"])
            continue
        total += hidden * experts["num_experts"] + experts["num_experts"] * ffn(experts["expert_ffn_hidden_size"])
        if shared := experts.get("shared_expert_ffn_hidden_size"):
            total += ffn(shared) + (hidden if experts.get("shared_expert_gate") else 0)
    tables = 1 if model["tied_embeddings"] else 2
    positions = 0 if model["rotary_fraction"] else model.get("num_position_embeddings", model["sequence_length"])
    return int(total + (tables * model["vocab_size"] + positions) * hidden)


@pytest.mark.parametrize("name", ALL)
def test_tensors_of_a_preset_add_up_to_its_count(name: str) -> None:
    assert counted(preset(name)) == find_preset(name).parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_equals_the_published_count(name: str) -> None:
    assert find_preset(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ALL)
def test_the_predictor_counts_the_same_parameters(name: str) -> None:
    assert model_of(preset(name)).num_parameters() == find_preset(name).parameters


@pytest.mark.parametrize("name", ALL)
def test_preset_says_its_sources(name: str) -> None:
    source = find_preset(name).source
    assert source.startswith("Count: ")
    assert " Shape: " in source
    assert " Sequence length: " in source
    assert ("computed" in source) == (not find_preset(name).published)


def test_only_these_counts_are_computed() -> None:
    assert {name for name in ALL if not find_preset(name).published} == COMPUTED


def test_active_parameters_of_a_mixture_are_what_its_name_says() -> None:
    assert model_of(preset("qwen3-235b-a22b")).num_parameters(active=True) == pytest.approx(22e9, rel=0.02)
    assert model_of(preset("mixtral-8x7b")).num_parameters(active=True) == pytest.approx(12.9e9, rel=0.005)


def test_preset_can_be_changed_without_changing_the_next() -> None:
    changed = preset("mixtral-8x7b")
    changed["moe"]["num_experts"] = 4
    changed["num_layers"] = 1
    assert preset("mixtral-8x7b")["moe"]["num_experts"] == 8
    assert preset("mixtral-8x7b")["num_layers"] == 32


def test_every_entry_of_every_file_is_a_preset() -> None:
    entries = [(name, path.stem) for path in FOLDER.glob("*.yaml") for name in read_mapping(path)]
    assert sorted(entries) == sorted((name, find_preset(name).family) for name in ALL)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"llama3-7b is not a preset\. Did you mean llama3-70b\? Presets: .*gpt2"):
        preset("llama3-7b")


@pytest.mark.parametrize("name", ["Qwen3-8B", "qwen3_8b", "QWEN-3-8B"])
def test_case_and_hyphens_of_a_name_do_not_count(name: str) -> None:
    assert preset(name) == preset("qwen3-8b")


@pytest.mark.parametrize("name", ["deepseek-v3", "DeepSeek-V2"])
def test_latent_attention_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is not supported: its multi-head latent attention is not modelled"):
        preset(name)


def test_document_lists_every_preset_with_its_count() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {row[1].strip(" `"): int(row[2].replace(",", "")) for row in rows} == {
        name: find_preset(name).parameters for name in ALL
    }
