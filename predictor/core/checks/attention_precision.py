"""Check attention in 8 bits against the recipe, the model's attention and the GPU.

Source: Transformer Engine, common/fused_attn/fused_attn.cpp, nvte_get_fused_attn_backend;
pytorch/attention/dot_product_attention/utils.py, get_attention_backend.
"""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.costs.attention_precision import KERNEL, WIDEST_HEAD, precision_ratios
from predictor.core.costs.published import PublishedSystem
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.attention_precision import ATTENTION_RECIPES
from predictor.core.workload.run_choices import GemmRecipe
from predictor.core.workload.switches import Attention

KEY = "training.fp8_attention is true"
HEAD_MULTIPLE = 16
HOPPER = "wgmma"


def _without(model: ModelSection, training: TrainingSection) -> str | None:
    """Return what the kernel in 8 bits does not do and the model has."""
    latent = model.latent_attention
    given = {
        "model.sliding_window": model.sliding_window,
        "model.attention_chunk": model.attention_chunk,
        "model.attention_sinks": model.attention_sinks,
        "model.latent_attention.indexer": latent is not None and latent.indexer is not None,
        "training.document_tokens": training.document_tokens,
    }
    return next((key for key, value in given.items() if value), None)


def head_width(model: ModelSection) -> int:
    """Return the width of a head's queries and keys."""
    latent = model.latent_attention
    if latent is not None:
        return latent.qk_nope_head_dim + latent.qk_rope_head_dim
    return model.head_dim or model.hidden_size // model.num_attention_heads


def check_fp8_attention(training: TrainingSection, model: ModelSection) -> None:
    """Refuse attention in 8 bits that no recipe or no kernel computes.

    Raises:
        ConfigError: none does.
    """
    if not training.fp8_attention:
        return
    if training.gemm_recipe not in ATTENTION_RECIPES or training.compiled:
        *others, last = ATTENTION_RECIPES
        raise ConfigError(
            f"{KEY}; it is Transformer Engine's, beside gemm_recipe {', '.join(others)} or {last}, and without compiled"
        )
    if training.attention_kernel not in (None, KERNEL) or model.attention is not Attention.FLASH:
        raise ConfigError(f"{KEY}; {KERNEL}'s kernel computes it: attention is flash, and attention_kernel is left out")
    absent = _without(model, training)
    if absent is not None:
        raise ConfigError(f"{KEY} with {absent}, which the kernel in 8 bits does not have; leave out fp8_attention")
    width = head_width(model)
    if width % HEAD_MULTIPLE or (width > WIDEST_HEAD and model.latent_attention is None):
        raise ConfigError(
            f"{KEY}; heads are {width} wide, and the kernel in 8 bits takes multiples of {HEAD_MULTIPLE} up to "
            f"{WIDEST_HEAD}; leave it out"
        )


def check_fp8_attention_on(training: TrainingSection, model: ModelSection, system: PublishedSystem) -> None:
    """Refuse attention in 8 bits on a GPU that does not train with it.

    Raises:
        ConfigError: it does not.
    """
    if not training.fp8_attention or training.gemm_recipe not in ATTENTION_RECIPES:
        return
    instruction = system.hardware.gpu.matrix_instruction
    known = precision_ratios(instruction).get(ATTENTION_RECIPES[training.gemm_recipe].precision)
    if known is None:
        raise ConfigError(
            f"{KEY}; {system.name} does not train with attention in 8 bits, Hopper and data-centre Blackwell do; leave "
            "it out"
        )
    if instruction != HOPPER:
        return
    if training.gemm_recipe is not GemmRecipe.FP8_DELAYED:
        raise ConfigError(
            f"{KEY} and gemm_recipe is {training.gemm_recipe}; on {system.name} it needs fp8_delayed, Blackwell takes "
            "others; leave it out"
        )
    if head_width(model) != WIDEST_HEAD or model.latent_attention is not None:
        raise ConfigError(
            f"{KEY}; heads are {head_width(model)} wide, and on {system.name} the kernel in 8 bits trains heads of "
            f"{WIDEST_HEAD} only; leave it out"
        )
