"""Presets count what others count, name where that stands, and hold keys of a configuration only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.presets import FOLDER, find_preset, preset, preset_names
from tests.unit.counted_tensors import counted
from tests.unit.examples import model_of

ALL = preset_names()
DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "presets.md"
# Computed from the shape: parameters, or those of a kind, were published rounded, in billions.
COMPUTED = {
    "gpt3-175b": 175,
    "gpt-j-6b": 6,
    "kimi-k2": 1040,
    "glm-4-32b-0414": 33,
    "glm-5": 744,
    "qwen3-next-80b-a3b": 80,
    "nemotron-4-15b": 3.1 + 12.5,
    "nemotron-4-340b": 9.4 + 331.6,
    "nemotron-h-8b": 8.1,
    "nemotron-h-47b": 47,
    "nemotron-h-56b": 56.3,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-3-super-120b-a12b": 120,
    "granite-4.0-h-micro": 3.2,
    "granite-4.0-h-tiny": 7,
    "granite-4.0-h-small": 32,
    "falcon-7b": 7,
    "falcon-40b": 41,
    "falcon-180b": 179,
    "mamba2-2.7b": 2.7,
    "bamba-9b": 9.8,
}
# What a token meets, in billions, as published.
ACTIVE = {
    "qwen3-235b-a22b": 22,
    "mixtral-8x7b": 12.9,
    "deepseek-v2": 21,
    "deepseek-v3": 37.5,
    "kimi-k2": 32.6,
    "glm-4.5": 33,
    "llama4-scout": 17,
    "llama4-maverick": 17,
    "qwen3.5-35b-a3b": 3.45,
    "nemotron-3-nano-30b-a3b": 3.6,
}
# Modules of multi-token prediction of Qwen3.5's and GLM-4.5's checkpoints, and vision towers; transformers counts the
# towers, and a test below the modules.
VISION = {"qwen3.5-9b": 456_010_480, "qwen3.5-27b": 460_730_096, "qwen3.5-35b-a3b": 446_571_248}

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
    "phi-4": 14_659_507_200,
    "smollm3-3b": 3_075_098_624,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200 - 58 * 256,  # less the correction biases, which no gradient trains
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama4-scout": 108_641_793_536 - 871_932_416,  # less the vision tower and its projection
    "llama4-maverick": 401_583_781_376 - 871_932_416,
    "olmo2-7b": 7_298_617_344,
    "olmo2-32b": 32_234_279_936,
    "granite-3.3-2b": 2_533_539_840,
    "granite-3.3-8b": 8_170_864_640,
    "granite-4.0-micro": 3_402_836_480,
    "glm-4-9b": 9_399_951_360,
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-176b": 176_247_271_424,
    "mamba-2.8b": 2_768_345_600,
    "jamba-v0.1": 51_570_323_328,
    "lfm2-1.2b": 1_170_340_608,
    "kimi-linear-48b-a3b": 49_122_681_728 - 26 * 256,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
}

# Checkpoints on the Hub that hold a module of multi-token prediction as well: with its own two tables of the
# vocabulary, and a correction bias per expert and layer (GLM), or with a vision tower (Qwen3.5).
WITH_PREDICTION = {
    "glm-4.5-air": 110_468_824_832,
    "glm-4.5": 358_337_791_296,
    "glm-4.7-flash": 31_221_488_576,
    "qwen3.5-9b": 9_653_104_368,
    "qwen3.5-27b": 27_781_427_952,
    "qwen3.5-35b-a3b": 35_951_822_704,
}


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


@pytest.mark.parametrize("name", ALL)
def test_sequence_length_is_the_one_of_the_source(name: str) -> None:
    told = re.search(r" Sequence length: (?:not published; )?([\d,]+)", find_preset(name).source)
    assert told is not None
    assert int(told.group(1).rstrip(",").replace(",", "")) == preset(name)["sequence_length"]


def test_only_these_counts_are_computed() -> None:
    assert {name for name in ALL if not find_preset(name).published} == COMPUTED.keys()


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_count_is_the_published_rounded_one(name: str) -> None:
    assert find_preset(name).parameters == pytest.approx(COMPUTED[name] * 1e9, rel=0.02)


@pytest.mark.parametrize("name", WITH_PREDICTION)
def test_checkpoint_is_the_preset_with_one_module_of_multi_token_prediction(name: str) -> None:
    model = preset(name)
    with_module = model_of(model | {"num_mtp_layers": 1}).num_parameters()
    if name in VISION:
        assert WITH_PREDICTION[name] == with_module + VISION[name]
        return
    layers, moe = model["num_layers"] + 1, model["moe"]
    biases = (layers - moe["num_dense_layers"]) * moe["num_experts"]
    assert WITH_PREDICTION[name] == with_module + biases + 2 * model["vocab_size"] * model["hidden_size"]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_of_a_mixture_are_the_published_ones(name: str) -> None:
    assert model_of(preset(name)).num_parameters(active=True) == pytest.approx(ACTIVE[name] * 1e9, rel=0.025)


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


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "DeepSeek-V4"])
def test_what_is_not_modelled_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is not supported: its compressed attention and hyper-connections"):
        preset(name)


def test_document_lists_every_preset_with_its_count() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {row[1].strip(" `"): int(row[2].replace(",", "")) for row in rows} == {
        name: find_preset(name).parameters for name in ALL
    }
