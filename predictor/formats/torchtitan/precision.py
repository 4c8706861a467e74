"""Conversions of a torchtitan job's linear layers: torchao's low precision, weights gathered in fp8, and adapters.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py (Float8, MX) and
torchtitan/components/quantization; its releases of 2024 had training.enable_float8_linear.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from predictor.core.workload.run_choices import GemmRecipe
from predictor.formats.fields import Fields

# Converters of linear layers, with the section that configures each, and those of experts.
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
# Adapters by the linear layers that they stand beside; keys and values have one matrix in some models.
TARGETS = {
    "wq": ("q",),
    "wk": ("k",),
    "wv": ("v",),
    "wkv": ("k", "v"),
    "wqkv": ("qkv",),
    "wo": ("attention_output",),
    "w1": ("gate",),
    "w2": ("ffn_down",),
    "w3": ("up",),
}


def low_precision(
    job: Fields, model: Fields, training: Fields, known: dict[str, Any], notes: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of ``training`` and of ``parallelism`` on conversions of linear layers: low precision, adapters.

    Args:
        job: the sections.
        model: the section that names the conversions.
        training: the section that older releases have a switch in.
        known: sizes of the model.
        notes: notes so far.

    Raises:
        ConfigError: a conversion is not modelled, or two are given.
    """
    names, has_experts = _converters(job, model, training), "moe" in known
    adapters = _adapters(job.section("lora"), model) if "lora" in names else {}
    names = [name for name in names if name != "lora"]
    if not names:
        return adapters, {}
    of_experts = [name for name in names if name in EXPERTS]
    linear = [name for name in names if name not in EXPERTS]
    if len(linear) != 1 or linear[0] not in LINEAR or len(of_experts) > 1:
        raise model.error(
            "converters", f"one conversion of linear layers is modelled; write one of {', '.join(LINEAR)}"
        )
    kind = linear[0].rpartition(".")[2]
    if has_experts != bool(of_experts) or (of_experts and of_experts[0].rpartition(".")[2] != kind):
        raise model.error(
            "converters",
            "linear layers and experts in different precisions are not modelled; convert both alike, or neither",
        )
    section = job
    for part in LINEAR[linear[0]]:
        section = section.section(part)
    if kind == "nvfp4":
        return _nvfp4(section, known.get("num_layers", 0)) | adapters, {}
    _note_filter(section, notes)
    recipe, gathers = _mx(section) if kind == "mx" else _float8(section)
    return recipe | adapters, gathers


def _adapters(section: Fields, model: Fields) -> dict[str, Any]:
    """Return the key ``lora``.

    Raises:
        ConfigError: an adapter stands beside a layer that none is modelled for.
    """
    names = section.get("target_modules")
    unknown = sorted(set(names or ()) - TARGETS.keys())
    if names is None or unknown:
        what = ", ".join(unknown) if unknown else "every linear layer, the output projection among them"
        raise model.error("converters", f"adapters of {what} are not modelled; known: {', '.join(TARGETS)}")
    return {"lora": {"rank": section.whole("rank", 8), "targets": [it for name in names for it in TARGETS[name]]}}


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
    inner = [name for name in skipped if name not in ("output", "lm_head", "router.gate", "")]
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


def _nvfp4(section: Fields, layers: int) -> dict[str, Any]:
    """Return the keys of four bits: in all layers, or in the first ones alone (layers.0., layers.1., …).

    Raises:
        ConfigError: it is in other layers.
    """
    names, tail = section.get("fqns"), section.real("bf16_tail_fraction", 0.0)
    if tail:  # components/quantization/nvfp4.py, nvfp4_bf16_tail_fqns
        return {"gemm_recipe": str(GemmRecipe.NVFP4), "layers_in_16_bits_at_end": ceil(layers * tail)}
    if names in (None, ["layers"]):
        return {"gemm_recipe": str(GemmRecipe.NVFP4)}
    first = [f"layers.{layer}." for layer in range(len(names))] if isinstance(names, list) else None
    if not isinstance(names, list) or names != first or not 0 < len(names) <= layers:
        raise section.error(
            "fqns", "layers in four bits between others are not modelled; write layers for all of them, or the first"
        )
    rest = layers - len(names)
    return {"gemm_recipe": str(GemmRecipe.NVFP4)} | ({"layers_in_16_bits_at_end": rest} if rest else {})


def _mx(section: Fields) -> tuple[dict[str, str], dict[str, str]]:
    section.text("recipe_name", "mxfp8_cublas", MX_RECIPES)
    return {"gemm_recipe": str(GemmRecipe.MXFP8)}, {}
