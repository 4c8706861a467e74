"""Check the keys that choose kernels against each other, and against the GPU that runs them."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.attention_precision import KERNEL, WIDEST_HEAD, precision_ratios
from predictor.core.costs.fp32 import Fp32System
from predictor.core.costs.low_precision import peak_tflop_per_s
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.work import BLACKWELL_PRECISIONS
from predictor.core.hardware.hardware import Gpu
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.attention_precision import ATTENTION_RECIPES
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.recipes import RECIPES
from predictor.core.workload.run_choices import AttentionKernel, GemmRecipe
from predictor.core.workload.switches import Attention

# Check attention in 8 bits against the recipe, the model's attention and the GPU. Source: Transformer Engine,
# common/fused_attn/fused_attn.cpp, nvte_get_fused_attn_backend; pytorch/attention/dot_product_attention/utils.py,
# get_attention_backend.
KEY = "training.fp8_attention is true"
HEAD_MULTIPLE = 16
HOPPER = "wgmma"
BLACKWELL_INSTRUCTION = "tcgen05"
# What each of NVIDIA's own attention kernels needs: wgmma (Shah et al. 2024, arXiv:2407.08608), and the tensor cores of
# Ampere or later (NVIDIA, cuDNN frontend documentation, scaled dot product attention).
NVIDIA_ALONE = {AttentionKernel.FLASH_3: "Hopper", AttentionKernel.CUDNN: "Ampere"}
AMD = "AMD"  # begins the names of its devices


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


def _check_recipe(training: TrainingSection, parallelism: ParallelismSection, num_layers: int) -> None:
    """Check what a recipe of low precision reaches, and what is without effect where there is none."""
    kept = {key: getattr(training, key) for key in ("layers_in_16_bits_at_start", "layers_in_16_bits_at_end")}
    if training.gemm_recipe is None:
        if parallelism.gather_precision == "fp8":
            raise ConfigError("parallelism.gather_precision is fp8; it needs training.gemm_recipe, so give one of both")
        for key, count in kept.items():
            if count:
                raise ConfigError(f"training.{key} is {count}; it needs training.gemm_recipe, or leave it out")
    elif sum(kept.values()) >= num_layers:
        raise ConfigError(
            f"training.{' and '.join(key for key, count in kept.items() if count)} leave gemm_recipe "
            f"{training.gemm_recipe} none of the {num_layers} layers; leave the recipe out, or lower them"
        )


def _check_expert_keys(training: TrainingSection, parallelism: ParallelismSection, has_experts: bool) -> None:
    """Refuse keys that speak of experts where there are none, and a fused kernel that does not exist."""
    given = {
        "parallelism.expert_dispatcher": parallelism.expert_dispatcher is not ExpertDispatcher.ALL_TO_ALL,
        "parallelism.overlap_expert_parallel": parallelism.overlap_expert_parallel,
        "training.fused_experts": training.fused_experts,
    }
    for key, is_given in given.items():
        if is_given and not has_experts:
            raise ConfigError(f"{key} is given; the model has no experts (model.moe), so leave it out")
    if training.fused_experts and training.gemm_recipe is not GemmRecipe.MXFP8:
        raise ConfigError(
            f"training.fused_experts is true and gemm_recipe is {training.gemm_recipe or 'none'}; the fused kernels "
            "multiply in mxfp8, so give gemm_recipe: mxfp8, or leave it out"
        )


def check_kernels(training: TrainingSection, parallelism: ParallelismSection, model: ModelSection) -> None:
    """Refuse keys that would be without effect, or contradict each other.

    Raises:
        ConfigError: they do.
    """
    _check_recipe(training, parallelism, model.num_layers)
    _check_expert_keys(training, parallelism, model.moe is not None)
    if training.tf32 and training.precision != "fp32":
        raise ConfigError(
            f"training.tf32 is true and precision is {training.precision}; it speaks of fp32 matrices, so leave it out"
        )
    if training.attention_kernel is not None and model.attention is not Attention.FLASH:
        raise ConfigError(
            f"training.attention_kernel is {training.attention_kernel} and model.attention is {model.attention}; it "
            "needs attention: flash"
        )
    if training.cuda_graphs and training.blocking_launches:
        raise ConfigError(
            "training has cuda_graphs and blocking_launches; a graph's kernels are not launched one by one, so leave "
            "one out"
        )


def _multiplies_in(gpu: Gpu, precision: str) -> bool:
    """Return whether a GPU has tensor cores for a precision."""
    if precision in BLACKWELL_PRECISIONS:
        return gpu.matrix_instruction == BLACKWELL_INSTRUCTION or precision in gpu.peak_tflop_per_s
    try:
        peak_tflop_per_s(gpu, precision)
    except PublishedError:
        return False
    return True


def _check_tensor_cores(recipe: GemmRecipe, system: PublishedSystem) -> None:
    gpu, precision = system.hardware.gpu, RECIPES[recipe].product
    if _multiplies_in(gpu, precision):
        return
    if precision in BLACKWELL_PRECISIONS and _multiplies_in(gpu, "fp8"):
        raise ConfigError(
            f"training.gemm_recipe is {recipe}; {system.name} has no {precision} tensor cores, Blackwell has; choose "
            "an fp8 recipe, or leave it out"
        )
    cores = "fp8" if precision.startswith("fp8") else precision
    raise ConfigError(f"training.gemm_recipe is {recipe}; {system.name} has no {cores} tensor cores; leave it out")


def check_gpu_kernels(training: TrainingSection, system: PublishedSystem) -> None:
    """Refuse kernels that the GPU does not have.

    A GPU of another vendor has the portable ones, and so has one whose own attention was not measured and that does not
    say its matrix instruction.

    Raises:
        ConfigError: it does not have them.
    """
    if training.tf32 and isinstance(system, Fp32System) and not system.tf32:
        raise ConfigError(f"training.tf32 is true; {system.name} has no TF32 by its data sheet, so leave it out")
    if training.gemm_recipe is not None:
        _check_tensor_cores(training.gemm_recipe, system)
    kernel = training.attention_kernel
    if kernel is None or kernel not in NVIDIA_ALONE or system.hardware.gpu.matrix_instruction is not None:
        return
    if system.gpu.startswith(AMD) or system.operator_donor() is not None:
        others = " or ".join(name for name in AttentionKernel if name not in NVIDIA_ALONE)
        raise ConfigError(
            f"training.attention_kernel is {kernel}, of NVIDIA's tensor cores since {NVIDIA_ALONE[kernel]}; "
            f"{system.name} has others; choose {others}, or leave it out"
        )
