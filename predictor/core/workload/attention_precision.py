"""Attention in 8 bits: kernel, casts around it, retained activations.

All seven products run in 8 bits, of queries, keys, values, probabilities and their gradients. The step around attention
stays in 16: queries, keys and values are cast before it, and backward the gradient of its output.
Source: Transformer Engine, pytorch/attention/dot_product_attention/backends.py (FusedAttnFunc), utils.py
(combine_and_quantize), recipe argument ``fp8_dpa``; pull requests 768 and 2012 of github.com/NVIDIA/TransformerEngine.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.blocks.core import CoreKernel
from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.attention_precision import KERNEL
from predictor.core.costs.layer_call import LayerCall
from predictor.core.rows import Kept, Role
from predictor.core.transforms.low_precision import AttentionBytes
from predictor.core.transforms.recomputation import modules
from predictor.core.workload.low_precision import recipe_of
from predictor.core.workload.recipes import FP8, MXFP8, MXFP8_OVER_STREAM, READ
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, Recompute, RecomputeModule
from predictor.core.workload.transformer import Transformer


class AttentionRecipe(NamedTuple):
    """What attention in 8 bits runs beside its kernel, in bytes per element.

    Attributes:
        precision: of its products.
        operands: that joining and casting queries, keys and values moves.
        output: that widening the kernel's output moves.
        output_gradient: that casting the gradient of the output moves.
        gradients: that widening the gradients of queries, keys and values moves.
        launches: kernels of these, forward and backward.
        kept: bytes of a query, key or value that is kept.
        kept_output: bytes of an output that attention itself keeps.
    """

    precision: str
    operands: float
    output: float
    output_gradient: float
    gradients: float
    launches: tuple[int, int]
    kept: float
    kept_output: float


JOIN, CAST, WIDEN = 2 * READ, READ + FP8, FP8 + READ
BOTH_LAYOUTS = MXFP8_OVER_STREAM * (READ + 2 * MXFP8)
# The kernel of delayed scaling writes 8 bits, whose scales are known; the others write 16. Current scaling reads for
# the largest number first.
DELAYED = AttentionRecipe("fp8", JOIN + CAST, WIDEN, CAST, 2 * FP8 + WIDEN, (3, 3), FP8, FP8)
CURRENT = AttentionRecipe("fp8", JOIN + READ + CAST, 0.0, READ + CAST, 0.0, (4, 3), FP8, READ)
BLOCKS = AttentionRecipe("mxfp8", BOTH_LAYOUTS, 0.0, BOTH_LAYOUTS, 0.0, (3, 1), 2 * MXFP8, READ)
# Beside products in 4 bits attention runs in blocks of 8. Source: Megatron-Bridge, recipes of DeepSeek V3 on GB300
# (NVTE_DPA_FP8_RECIPE: MXFP8BlockScaling). Transformer Engine has none for the other recipes.
ATTENTION_RECIPES = {
    GemmRecipe.FP8_DELAYED: DELAYED,
    GemmRecipe.FP8_TENSORWISE: CURRENT,
    GemmRecipe.MXFP8: BLOCKS,
    GemmRecipe.NVFP4: BLOCKS,
}


def attention_recipe(run: TrainingRun, kind: LayerKind) -> AttentionRecipe | None:
    """Return how a kind of layer computes attention in 8 bits; None where it does so in the step's precision."""
    if not (run.fp8_attention and kind.mixer.is_attention and recipe_of(run, kind)):
        return None
    assert run.gemm_recipe is not None
    return ATTENTION_RECIPES[run.gemm_recipe]


def attention_elements(model: Transformer, kind: LayerKind, call: LayerCall) -> tuple[int, int]:
    """Return the elements of queries, keys and values that attention reads on one rank, and of what it writes."""
    latent = model.latent_of(kind.mixer)
    if latent is not None:
        heads = call.tokens * call.heads_per_rank
        return heads * (2 * latent.key_width + latent.v_head_dim), heads * latent.v_head_dim
    keys = 2 * call.key_value_heads_per_rank * call.head_dim
    return call.tokens * (call.attention_width + keys), call.tokens * call.attention_width


def core_kernel(run: TrainingRun, kind: LayerKind) -> CoreKernel:
    """Return the kernel of a kind of layer's attention."""
    recipe = attention_recipe(run, kind)
    if recipe is None:
        return CoreKernel(run.attention_kernel or "")
    return CoreKernel(KERNEL, recipe.precision, recipe.kept)


def attention_casts(run: TrainingRun, kind: LayerKind, call: LayerCall) -> AttentionBytes | None:
    """Return the casts around attention in 8 bits; None where it runs in the step's precision.

    It keeps what it cast, also where its inputs are computed again. Where its core is computed again, from inputs in 16
    bits, that is not kept.
    """
    recipe = attention_recipe(run, kind)
    if recipe is None:
        return None
    operands, outputs = attention_elements(run.model, kind, call)
    forward = operands * recipe.operands + outputs * recipe.output
    backward = outputs * recipe.output_gradient + operands * recipe.gradients
    kept: tuple[Kept, ...] = (
        Kept(Role.QKV, -operands * float(call.element_bytes)),
        Kept(Role.SCORES, operands * recipe.kept),
        Kept(Role.CORE, outputs * (recipe.kept_output - call.element_bytes)),
    )
    runs_again = run.recompute is Recompute.SELECTIVE and RecomputeModule.CORE_ATTENTION in modules(run)
    return AttentionBytes((forward, backward), recipe.launches, () if runs_again or run.compiled else kept)
