"""Low precision of a torchtitan job: torchao's conversions of linear layers, and weights gathered in fp8.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py (Float8, MX) and
torchtitan/components/quantization; its releases of 2024 had training.enable_float8_linear.
"""

from __future__ import annotations

from typing import Any

from predictor.core.workload.run_choices import GemmRecipe
from predictor.formats.fields import Fields

# Converters of linear layers and of experts, with the section that configures each.
LINEAR = {
    "float8": ("float8",),
    "quantize.linear.float8": ("quantize", "linear", "float8"),
    "mx": ("mx",),
    "quantize.linear.mx": ("quantize", "linear", "mx"),
    "quantize.linear.nvfp4": ("quantize", "linear", "nvfp4"),
}
EXPERTS = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
# « rowwise_with_gw_hp » multiplies for gradients of the weights in 16 bits.
FLOAT8_RECIPES = {"tensorwise": GemmRecipe.FP8_TENSORWISE, "rowwise": GemmRecipe.FP8_ROWWISE}
MX_RECIPES = ("mxfp8", "mxfp8_cublas", "mxfp8_cublas_rceil")


def low_precision(
    job: Fields, model: Fields, training: Fields, has_experts: bool, notes: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys of ``training`` and of ``parallelism`` on low precision.

    Raises:
        ConfigError: a conversion is not modelled, or two are given.
    """
    names = _converters(job, model, training)
    if not names:
        return {}, {}
    if len(names) > 1 or names[0] not in LINEAR:
        known = ", ".join(LINEAR)
        raise model.error("converters", f"one conversion of linear layers is modelled; write one of {known}")
    if has_experts:
        raise model.error(
            "converters", "linear layers in low precision beside experts in 16 bits are not modelled; remove it"
        )
    section = job
    for part in LINEAR[names[0]]:
        section = section.section(part)
    if names[0].endswith("nvfp4"):
        return _nvfp4(section)
    _note_filter(section, notes)
    return _mx(section) if names[0].endswith("mx") else _float8(section)


def _converters(job: Fields, model: Fields, training: Fields) -> list[str]:
    """Return the names of conversions, with the switch of releases of 2024.

    Raises:
        ConfigError: they are no list of names.
    """
    names: Any = model.get("converters") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise model.error("converters", "expected a list of names")
    older = training.switch("enable_float8_linear") or job.section("float8").switch("enable_float8_linear")
    return [*names, "float8"] if older and "float8" not in names else list(names)


def _note_filter(section: Fields, notes: list[str]) -> None:
    """Note layers that the conversion leaves out; the output projection is predicted in 16 bits in any case."""
    default = ["output"] if section.prefix.endswith("mx.") else []
    names = section.get("filter_fqns")
    skipped = default if names is None else names.split(",") if isinstance(names, str) else list(names)
    inner = [name for name in skipped if name not in ("output", "lm_head", "")]
    if inner:
        notes.append(f"{section.prefix}filter_fqns: predicted with {', '.join(inner)} converted too")
    if not {"output", "lm_head"} & set(skipped):
        notes.append(f"{section.prefix}filter_fqns without output: the output projection is predicted in 16 bits")


def _float8(section: Fields) -> tuple[dict[str, str], dict[str, str]]:
    if section.switch("emulate"):
        raise section.error("emulate", "emulated products are not modelled; remove it")
    if section.get("moe_fqns_prototype"):
        raise section.error("moe_fqns_prototype", "there are no experts in the model; remove it")
    recipe = section.text("recipe_name", "tensorwise", FLOAT8_RECIPES)
    gathers = section.switch("enable_fsdp_float8_all_gather")
    if gathers and recipe != "tensorwise":
        raise section.error(
            "enable_fsdp_float8_all_gather", f"with recipe_name {recipe} torchtitan refuses it; remove it"
        )
    return {"gemm_recipe": str(FLOAT8_RECIPES[recipe])}, {"gather_precision": "fp8"} if gathers else {}


def _nvfp4(section: Fields) -> tuple[dict[str, str], dict[str, str]]:
    names = section.get("fqns")
    if names not in (None, ["layers"]):
        raise section.error("fqns", "layers in four bits beside others are not modelled; write layers for all of them")
    return {"gemm_recipe": str(GemmRecipe.NVFP4)}, {}


def _mx(section: Fields) -> tuple[dict[str, str], dict[str, str]]:
    section.text("recipe_name", "mxfp8_cublas", MX_RECIPES)
    return {"gemm_recipe": str(GemmRecipe.MXFP8)}, {}
