"""Low precision that arguments of Megatron-LM ask for: the recipe, the layers it leaves out, and gathered weights.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py, _add_mixed_precision_args;
docs of Megatron Core, "Low precision training".
"""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.workload.run_choices import GemmRecipe
from predictor.formats.megatron.options import Options

FORMATS = {"fp8": ("e4m3", "hybrid"), "fp4": ("e2m1",)}
RECIPES = {
    "fp8": {
        "delayed": GemmRecipe.FP8_DELAYED,
        "tensorwise": GemmRecipe.FP8_TENSORWISE,
        "blockwise": GemmRecipe.FP8_BLOCKWISE,
        "mxfp8": GemmRecipe.MXFP8,
    },
    "fp4": {"nvfp4": GemmRecipe.NVFP4},
}
DEFAULT_RECIPES = {"fp8": "delayed", "fp4": "nvfp4"}


def _recipe(options: Options) -> GemmRecipe | None:
    """Return the recipe; None without --fp8-format and --fp4-format, whose recipes then have no effect.

    Raises:
        ConfigError: both formats are given, or a recipe or a format is not modelled.
    """
    asked = []
    for kind, recipes in RECIPES.items():
        written = options.text(f"{kind}-recipe", DEFAULT_RECIPES[kind], recipes)
        if options.text(f"{kind}-format", "", FORMATS[kind]):
            asked.append(recipes[written])
    if len(asked) > 1:
        raise ConfigError(f"{options.where}: --fp8-format and --fp4-format are both given; write one of them")
    return asked[0] if asked else None


def low_precision(options: Options) -> dict[str, Any]:
    """Return the keys of ``training`` on low precision.

    Raises:
        ConfigError: arguments contradict each other, or are not modelled.
    """
    recipe = _recipe(options)
    leaves_out = options.switch("first-last-layers-bf16")
    start, end = (options.whole(f"num-layers-at-{edge}-in-bf16", 1, least=0) for edge in ("start", "end"))
    casts_attention = options.switch("fp8-dot-product-attention")
    if recipe is None:
        return {}
    keys: dict[str, Any] = {"gemm_recipe": str(recipe)} | ({"fp8_attention": True} if casts_attention else {})
    if not leaves_out:
        return keys
    if recipe is GemmRecipe.FP8_DELAYED:
        raise options.error(
            "first-last-layers-bf16", "--fp8-recipe delayed is for all layers in Megatron-LM; name another recipe"
        )
    return keys | {"layers_in_16_bits_at_start": start, "layers_in_16_bits_at_end": end}


def fused_experts(options: Options) -> dict[str, bool]:
    """Return the key of ``training`` on experts that run as Transformer Engine's fused grouped MLP, in MXFP8 only.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/experts.py (use_transformer_engine_op_fuser).
    """
    fuses = options.switch("use-transformer-engine-op-fuser")
    return {"fused_experts": True} if fuses and options.has("num-experts") and _is_mxfp8(options) else {}


def _is_mxfp8(options: Options) -> bool:
    return options.has("fp8-format") and options.text("fp8-recipe", "delayed", RECIPES["fp8"]) == "mxfp8"


def gathered_weights(options: Options) -> dict[str, str]:
    """Return the key of ``parallelism`` on the precision of gathered weights."""
    gathers = options.switch("fp8-param-gather")
    return {"gather_precision": "fp8"} if gathers and options.has("fp8-format") else {}
