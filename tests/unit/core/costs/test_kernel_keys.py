"""Keys that choose kernels are refused where they would be without effect, or where the GPU does not have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import Loaded, prepare

SIZES = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "sequence_length": 1024}
FP8 = {"gemm_recipe": "fp8_delayed"}


def ready(sections: dict[str, dict[str, Any]], system: str = "H100") -> Loaded:
    model, training = SIZES | sections.get("model", {}), sections.get("training", {})
    content = {
        "system": system,
        "model": model,
        "parallelism": {"data_parallel_size": 8, "zero_stage": 3, **sections.get("parallelism", {})},
        "training": {"micro_batch_size": 1, "num_micro_batches": 1, "precision": "bf16", **training},
        "cluster": sections.get("cluster", {}),
    }
    return prepare(content, Path.cwd())


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"parallelism": {"gather_precision": "fp8"}}, "gather_precision is fp8; it needs training.gemm_recipe"),
        ({"training": {"layers_in_16_bits_at_start": 2}}, "at_start is 2; it needs training.gemm_recipe"),
        ({"training": {"layers_in_16_bits_at_end": 1}}, "at_end is 1; it needs training.gemm_recipe"),
        ({"training": FP8 | {"layers_in_16_bits_at_start": 9}}, "gemm_recipe fp8_delayed none of the 8 layers"),
        (
            {"training": FP8 | {"layers_in_16_bits_at_start": 4, "layers_in_16_bits_at_end": 4}},
            "gemm_recipe fp8_delayed none of the 8 layers",
        ),
        ({"training": {"tf32": True}}, "tf32 is true and precision is bf16"),
        (
            {"model": {"attention": "unfused"}, "training": {"attention_kernel": "flash_2"}},
            "attention_kernel is flash_2 and model.attention is unfused; it needs attention: flash",
        ),
        ({"training": {"cuda_graphs": True, "blocking_launches": True}}, "cuda_graphs and blocking_launches"),
        ({"cluster": {"power_limit_w": True}}, "power_limit_w is True"),
        ({"cluster": {"memory_gib": "80"}}, "memory_gib is '80'"),
        ({"cluster": {"power_limit_w": 84}}, "power_limit_w is 84; NVIDIAH10080GBHBM3 draws about 84 W without"),
        ({"cluster": {"gpus_per_domain": 12}}, "gpus_per_domain is 12; .* a multiple of H100's gpus_per_node, 8"),
    ],
)
def test_keys_without_effect_are_refused_in_one_line(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        ready(sections)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"parallelism": {"gather_precision": "fp8"}, "training": FP8},
        {"training": FP8 | {"layers_in_16_bits_at_start": 4, "layers_in_16_bits_at_end": 3}},
        {"training": {"precision": "fp32", "tf32": True}},
        {"training": {"attention_kernel": "flash_2"}},
        {"training": {"cuda_graphs": True}},
        {"cluster": {"power_limit_w": 350, "gpus_per_domain": 16}},
    ],
)
def test_keys_with_an_effect_are_taken(sections: dict[str, dict[str, Any]]) -> None:
    ready(sections)


@pytest.mark.parametrize(("limit", "noted"), [(500, False), (700, False), (800, True)])
def test_a_power_limit_that_limits_nothing_is_noted(limit: int, noted: bool) -> None:
    notes = ready({"cluster": {"power_limit_w": limit}}).notes
    assert any("above the board's own 700 W" in note for note in notes) is noted


@pytest.mark.parametrize(
    ("system", "recipe", "message"),
    [
        ("A100_SXM", "fp8_delayed", "gemm_recipe is fp8_delayed; A100_SXM has no fp8 tensor cores; leave it out"),
        ("A100_SXM", "nvfp4", "gemm_recipe is nvfp4; A100_SXM has no nvfp4 tensor cores; leave it out"),
        ("V100", "fp8_blockwise", "gemm_recipe is fp8_blockwise; V100 has no fp8 tensor cores; leave it out"),
        ("H100", "mxfp8", "H100 has no mxfp8 tensor cores, Blackwell has; choose an fp8 recipe, or leave it out"),
        ("Vista", "nvfp4", "Vista has no nvfp4 tensor cores, Blackwell has"),
        ("L40S", "mxfp8", "L40S has no mxfp8 tensor cores"),
        ("MI300X", "mxfp8", "MI300X has no mxfp8 tensor cores"),
    ],
)
def test_a_recipe_needs_tensor_cores(system: str, recipe: str, message: str) -> None:
    precision = "fp16" if system in ("V100", "A100_SXM") else "bf16"
    with pytest.raises(ConfigError, match=message):
        ready({"training": {"gemm_recipe": recipe, "precision": precision}}, system)


def test_tf32_needs_a_gpu_that_has_it() -> None:
    with pytest.raises(ConfigError, match="tf32 is true; V100 has no TF32 by its data sheet, so leave it out"):
        ready({"training": {"precision": "fp32", "tf32": True}}, "V100")


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("system", ["B200", "B300", "GB200", "GB300", "RTX_PRO_6000"])
def test_blackwell_has_blocks_of_32_and_four_bits(system: str, recipe: str) -> None:
    ready({"training": {"gemm_recipe": recipe}}, system)


@pytest.mark.parametrize("kernel", ["flash_3", "cudnn"])
@pytest.mark.parametrize("system", ["MI300X", "V100"])
def test_kernels_of_tensor_cores_that_a_gpu_lacks_are_refused(system: str, kernel: str) -> None:
    with pytest.raises(ConfigError, match=f"attention_kernel is {kernel}.*{system} has others; choose flash_2 or trit"):
        ready({"training": {"attention_kernel": kernel, "precision": "fp16"}}, system)


@pytest.mark.parametrize(("system", "kernel"), [("Selene", "cudnn"), ("H100", "flash_3"), ("MI300X", "flash_2")])
def test_kernels_that_a_gpu_has_are_taken(system: str, kernel: str) -> None:
    ready({"training": {"attention_kernel": kernel, "precision": "fp16" if system == "Selene" else "bf16"}}, system)
