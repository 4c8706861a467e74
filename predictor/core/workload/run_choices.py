"""Choices of a training run: recomputation, offloading, low precision, attention kernels, graphs, conditions."""

from __future__ import annotations

from enum import StrEnum


class Recompute(StrEnum):
    """Which activations the backward pass computes again. Korthikanti et al. 2022, arXiv:2205.05198."""

    NONE = "none"
    SELECTIVE = "selective"
    PER_OP = "per_op"
    FULL = "full"


class RecomputeModule(StrEnum):
    """Modules that Megatron-LM's selective recomputation knows (--recompute-modules)."""

    CORE_ATTENTION = "core_attn"
    MLP_ACTIVATION = "mlp_act"
    MOE_ACTIVATION = "moe_act"
    NORMS = "layernorm"
    MLA_UP_PROJECTION = "mla_up_proj"
    MLP = "mlp"
    MOE = "moe"
    SHARED_EXPERTS = "shared_experts"


class OffloadModule(StrEnum):
    """Modules whose inputs Megatron-LM's fine-grained offloading sends to host memory (--offload-modules)."""

    ATTENTION_NORM = "attn_norm"
    QKV_PROJECTION = "qkv_linear"
    CORE_ATTENTION = "core_attn"
    ATTENTION_OUTPUT = "attn_proj"
    MLP_NORM = "mlp_norm"
    EXPERT_UP = "expert_fc1"
    MOE_ACTIVATION = "moe_act"
    FUSED_EXPERTS = "fused_group_mlp"


class GemmRecipe(StrEnum):
    """Low precision of the linear layers' products, in the words of Transformer Engine and Megatron-LM's --fp8-recipe.

    ``fp8_delayed``: one scale a tensor, from the largest values of earlier steps; ``fp8_tensorwise``: from this step's
    (current scaling); ``fp8_rowwise``: a scale a row (torchao); ``fp8_blockwise``: 1 × 128 and 128 × 128 blocks
    (DeepSeek-V3); ``mxfp8``: blocks of 32 (OCP, Blackwell); ``nvfp4``: four bits, blocks of 16 (Blackwell).
    """

    FP8_DELAYED = "fp8_delayed"
    FP8_TENSORWISE = "fp8_tensorwise"
    FP8_ROWWISE = "fp8_rowwise"
    FP8_BLOCKWISE = "fp8_blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class AttentionKernel(StrEnum):
    """Implementation of exact attention in one kernel.

    ``memory_efficient``: xFormers' in torch, which takes a mask and computes all of its scores, causal or not.
    """

    FLASH_2 = "flash_2"
    FLASH_3 = "flash_3"
    CUDNN = "cudnn"
    TRITON = "triton"
    MEMORY_EFFICIENT = "memory_efficient"


class GraphModule(StrEnum):
    """Parts of a layer that Megatron-LM puts into CUDA graphs (--cuda-graph-scope)."""

    ATTENTION = "attn"
    MLP = "mlp"
    MAMBA = "mamba"
    MOE = "moe"
    MOE_ROUTER = "moe_router"
    MOE_PREPROCESS = "moe_preprocess"


class Optimizer(StrEnum):
    """What updates weights: Adam, or Muon, whose embeddings, norms and output projection are Adam's."""

    ADAM = "adam"
    MUON = "muon"


class Reference(StrEnum):
    """Model whose log-probabilities stand beside those of the one that trains (DPO, arXiv:2305.18290; KTO).

    ``separate``: a second set of frozen weights; ``adapters_off``: the same weights, without their adapters.
    """

    SEPARATE = "separate"
    ADAPTERS_OFF = "adapters_off"


class Conditions(StrEnum):
    """Conditions of a run, which decide what is added to its modelled time (core/step/discrepancy.py).

    ``tuned``: as vendors' benchmarks run, on synthetic or cached data, without evaluation and with balanced routing;
    ``ordinary``: as users' runs, with data loading, logging and checkpoints; ``model``: nothing is added.
    """

    TUNED = "tuned"
    ORDINARY = "ordinary"
    MODEL = "model"
