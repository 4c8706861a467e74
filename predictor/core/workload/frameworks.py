"""Defaults of training frameworks, as values with their sources: a run's switches where its configuration has none.

Keys are those of a configuration. What a framework does not decide has none: the configuration's own default holds
there. ``defaults_of`` says which value a framework has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from predictor.core.workload.run_choices import AttentionKernel, Recompute
from predictor.core.workload.software import Framework

SECTIONS = {
    "model": ("fused_side_kernels", "fused_rope", "normalization", "loss"),
    "parallelism": (
        "layers_per_stage",
        "zero_stage",
        "overlap_gradient_reduction",
        "overlap_parameter_gather",
        "overlap_tensor_parallel",
        "overlap_linear_traffic",
        "blocking_transfers",
        "gradient_reduction",
        "gradient_bucket_elements",
        "fp32_gradients",
        "fp32_parameters",
        "reshard_after_forward",
    ),
    "training": (
        "precision",
        "recompute",
        "synchronize_each_layer",
        "fused_gradient_accumulation",
        "compiled",
        "attention_kernel",
        "host_threads",
        "pinned_offload",
    ),
}


class FrameworkDefaults(NamedTuple):
    """What one framework does by default.

    Attributes:
        name: as its users write it.
        source: where its code or documentation says so.
        keys: of ``SECTIONS``; beside them ``bucket_elements_per_replica``, the least elements of a gradient bucket per
            replica, and ``fp32_adapters``, whether adapters of a base in 16 bits are in fp32.
    """

    name: str
    source: str
    keys: dict[str, Any]

    def section(self, name: str) -> dict[str, Any]:
        """Return what the framework decides of a configuration's section (model, parallelism or training)."""
        return {key: self.keys[key] for key in SECTIONS[name] if key in self.keys}

    def bucket_elements(self, data_parallel_size: int = 1) -> int:
        """Return the gradient elements of one reduction.

        Raises:
            ValueError: this framework reduces without buckets of a set size.
        """
        if "gradient_bucket_elements" not in self.keys:
            raise ValueError(f"{self.name} sets no size of gradient buckets")
        elements: int = self.keys["gradient_bucket_elements"]
        least: int = self.keys.get("bucket_elements_per_replica", 0) * data_parallel_size
        return max(elements, least)

    def changed(self, name: str, source: str = "", **keys: Any) -> FrameworkDefaults:
        """Return the defaults of a like framework, where they differ."""
        return FrameworkDefaults(name, source or self.source, {**self.keys, **keys})


PYTORCH = FrameworkDefaults(
    "PyTorch", "none: a program of one's own does what its configuration says, and nothing else", keys={}
)
# Optimizer states in host memory are pageable unless pin_memory is set, and a rank's Adam has one thread: torchrun and
# accelerate launch set OMP_NUM_THREADS to 1 where a node has several ranks.
DEEPSPEED = PYTORCH.changed(
    "DeepSpeed",
    source=(
        "deepspeed/runtime/zero/config.py: reduce_scatter, reduce_bucket_size, overlap_comm (stage 3 only); "
        "offload_config.py: pin_memory false; torch/distributed/run.py, accelerate/commands/launch.py: OMP_NUM_THREADS"
    ),
    overlap_gradient_reduction=False,
    overlap_parameter_gather=False,
    gradient_reduction="reduce_scatter",
    gradient_bucket_elements=500_000_000,
    host_threads=1,
    pinned_offload=False,
)
DEEPSPEED_ZERO_3 = DEEPSPEED.changed("DeepSpeed ZeRO-3", overlap_gradient_reduction=True, overlap_parameter_gather=True)
# The layers' split: deepspeed/runtime/pipe/module.py before 0.11, pipe_partition_method "type:transformer|mlp".
GPT_NEOX = PYTORCH.changed(
    "GPT-NeoX on DeepSpeed",
    source=(
        "gpt-neox megatron/neox_arguments/neox_args.py (pipe_partition_method) and configs/*.yml "
        "(checkpoint-activations, checkpoint-num-layers 1, synchronize-each-layer)"
    ),
    layers_per_stage="gpt_neox",
    recompute=Recompute.FULL.value,
    synchronize_each_layer=True,
)
MEGATRON_LM = PYTORCH.changed(
    "Megatron-LM",
    source="Megatron-LM megatron/core/distributed/distributed_data_parallel.py, megatron/training/arguments.py",
    overlap_gradient_reduction=False,
    overlap_parameter_gather=False,
    overlap_tensor_parallel=False,
    gradient_bucket_elements=40_000_000,
    bucket_elements_per_replica=1_000_000,
)
# How it trains in bf16 today, its distributed optimizer included: traffic beside computing wherever it can be, side
# kernels fused, gradients in fp32 and scattered. 1F1B's messages block (overlap_p2p_comm is for interleaved stages
# only). NVIDIA's recipes fuse the loss, of whose two implementations releases from core 0.18.2 on accept their own
# (--cross-entropy-fusion-impl native).
MEGATRON_LM_BF16 = MEGATRON_LM.changed(
    "Megatron-LM in bf16",
    fused_side_kernels=True,
    fused_rope=True,
    normalization="fused_rms_norm",
    overlap_gradient_reduction=True,
    overlap_parameter_gather=True,
    overlap_tensor_parallel=True,
    gradient_reduction="reduce_scatter",
    fp32_gradients=True,
    precision="bf16",
    fused_gradient_accumulation=True,
    loss="fused_native",
)
# flash-attn, and torch's scaled_dot_product_attention without a mask; on Hopper NVIDIA's libraries have others.
# Source: PyTorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
TORCH_ATTENTION = AttentionKernel.FLASH_2.value
IN_TORCH = {"precision": "bf16", "loss": "torch", "attention_kernel": TORCH_ATTENTION}
FSDP2 = PYTORCH.changed(
    "PyTorch FSDP2",
    source="torch/distributed/fsdp/_fully_shard: fully_shard(reshard_after_forward=True), prefetch of one layer",
    zero_stage=3,
    overlap_gradient_reduction=True,
    overlap_parameter_gather=True,
    gradient_reduction="reduce_scatter",
)
TORCHTITAN_FSDP2 = FSDP2.changed(
    "torchtitan with FSDP2",
    source="torchtitan/config: mixed_precision_reduce knows float32 only; torch/distributed/fsdp/_fully_shard",
    fp32_gradients=True,
)
TORCHTITAN_DDP = PYTORCH.changed(
    "torchtitan with DDP",
    source="torchtitan/models/llama3/infra/parallelize.py: replicate(bucket_cap_mb=100), gradients in float32",
    zero_stage=0,
    overlap_gradient_reduction=True,
    gradient_reduction="all_reduce",
    gradient_bucket_elements=100 * 2**20 // 4,
    fp32_gradients=True,
)
PYTORCH_DDP = TORCHTITAN_DDP.changed(
    "PyTorch DDP",
    source="torch/nn/parallel/distributed.py: bucket_cap_mb=25; torch.autocast leaves gradients in float32",
    gradient_bucket_elements=25 * 2**20 // 4,
)
# torchtitan compiles, and its FSDP2 shards the optimizer's own fp32 weights.
TORCHTITAN = TORCHTITAN_FSDP2.changed(
    "torchtitan",
    fp32_parameters=True,
    **IN_TORCH,
    compiled=True,
)
TORCHTITAN_REPLICATED = TORCHTITAN_DDP.changed(
    "torchtitan, replicated",
    **IN_TORCH,
    compiled=True,
)
# Its users set overlap_comm (docs/_pages/config-json.md); stage 3 gathers weights layer by layer. The model is of the
# hub: no kernel of it is fused.
DEEPSPEED_BF16 = DEEPSPEED.changed(
    "DeepSpeed in bf16",
    overlap_gradient_reduction=True,
    **IN_TORCH,
)
DEEPSPEED_BF16_ZERO_3 = DEEPSPEED_ZERO_3.changed(
    "DeepSpeed ZeRO-3 in bf16",
    **IN_TORCH,
)
NEOX = GPT_NEOX.changed(
    "GPT-NeoX",
    source=f"{GPT_NEOX.source}; configs/*.yml: zero_optimization stage 1, reduce_scatter, fp16, rope_fusion off",
    zero_stage=1,
    overlap_gradient_reduction=False,  # the pipeline engine reduces when all micro-batches are through
    overlap_parameter_gather=False,
    gradient_reduction="reduce_scatter",
    gradient_bucket_elements=DEEPSPEED.bucket_elements(),
    host_threads=1,
    pinned_offload=False,
    attention_kernel=TORCH_ATTENTION,
)
MEGATRON_DEEPSPEED = DEEPSPEED.changed(
    "Megatron-DeepSpeed",
    source="Megatron-DeepSpeed megatron/arguments.py: bias, dropout and GELU fused; deepspeed/runtime/pipe/engine.py",
    fused_side_kernels=True,
    precision="bf16",
    attention_kernel=TORCH_ATTENTION,
)
# Trainer: weights in their files' precision under torch.autocast, models' kernels one operation at a time, fused AdamW.
TRANSFORMERS = PYTORCH_DDP.changed(
    "Hugging Face Transformers with DDP",
    source=(
        "transformers src/transformers/models/llama/modeling_llama.py (LlamaRMSNorm, apply_rotary_pos_emb, LlamaMLP), "
        "loss/loss_utils.py (ForCausalLMLoss: logits.float()), trainer.py; torch/nn/parallel/distributed.py: "
        "bucket_cap_mb=25; peft src/peft/tuners/tuners_utils.py (cast_adapter_dtype)"
    ),
    gradient_bucket_elements=25 * 2**20 // 2,
    fp32_gradients=False,
    **IN_TORCH,
    fp32_adapters=True,
    host_threads=1,
    pinned_offload=False,
)
# Accelerate widens the weights that train to fp32, and gathers and reduces in 16 bits.
TRANSFORMERS_FSDP = FSDP2.changed(
    "Hugging Face Transformers with FSDP",
    source="accelerate src/accelerate/utils/dataclasses.py (set_mixed_precision), accelerator.py (prepare_model)",
    fp32_parameters=True,
    fp32_gradients=False,
    **IN_TORCH,
    fp32_adapters=True,
)
# DeepSpeed's engine narrows the whole model, adapters too.
TRANSFORMERS_DEEPSPEED = DEEPSPEED_BF16.changed("Hugging Face Transformers with DeepSpeed")
# bf16-mixed: weights and gradients in fp32, narrowed by torch.autocast in every pass.
LIGHTNING = PYTORCH_DDP.changed(
    "Lightning with DDP",
    source="lightning src/lightning/fabric/plugins/precision/amp.py (torch.autocast), fabric/strategies/ddp.py",
    fp32_parameters=True,
    **IN_TORCH,
)
LIGHTNING_FSDP = TRANSFORMERS_FSDP.changed(
    "Lightning with FSDP",
    source="lightning src/lightning/fabric/plugins/precision/fsdp.py (mixed_precision_config)",
    fp32_adapters=False,
)
LIGHTNING_DEEPSPEED = DEEPSPEED_BF16.changed(
    "Lightning with DeepSpeed",
    source="lightning src/lightning/fabric/strategies/deepspeed.py: overlap_comm, allgather and reduce buckets of 2e8",
    gradient_bucket_elements=200_000_000,
)
LITGPT = LIGHTNING_FSDP.changed(
    "LitGPT",
    source="litgpt litgpt/pretrain.py: FSDPStrategy(auto_wrap_policy={Block}), torch.compile, bf16-mixed, fused AdamW",
    compiled=True,
)
LLM_FOUNDRY = LIGHTNING_FSDP.changed(
    "LLM Foundry on Composer",
    source=(
        "llm-foundry scripts/train/yamls/pretrain (FULL_SHARD, mixed_precision PURE), "
        "llmfoundry/models/mpt/configuration_mpt.py (loss_fn fused_crossentropy)"
    ),
    loss="fused",
)
FMS_FSDP = LIGHTNING_FSDP.changed(
    "fms-fsdp",
    source="fms-fsdp fms_fsdp/policies/mixed_precision.py (bfSixteen), config/training.py (use_torch_compile)",
    compiled=True,
)
INTERNEVO = PYTORCH.changed(
    "InternEvo",
    source="InternEvo configs/7B_sft.py: zero1 size -1, overlap_sync_grad, overlap_sync_param off, reduce_bucket_size",
    zero_stage=1,
    overlap_gradient_reduction=True,
    overlap_parameter_gather=False,
    gradient_bucket_elements=512 * 2**20 // 2,
    **IN_TORCH,
)
BY_FRAMEWORK = {
    Framework.MEGATRON_LM: MEGATRON_LM_BF16,
    Framework.MEGATRON_BRIDGE: MEGATRON_LM_BF16,
    Framework.NEMO: MEGATRON_LM_BF16,
    Framework.TORCHTITAN: TORCHTITAN,
    Framework.DEEPSPEED: DEEPSPEED_BF16,
    Framework.GPT_NEOX: NEOX,
    Framework.MEGATRON_DEEPSPEED: MEGATRON_DEEPSPEED,
    Framework.TRANSFORMERS: TRANSFORMERS,
    Framework.LIGHTNING: LIGHTNING,
    Framework.LITGPT: LITGPT,
    Framework.LLM_FOUNDRY: LLM_FOUNDRY,
    Framework.FMS_FSDP: FMS_FSDP,
    Framework.INTERNEVO: INTERNEVO,
}
# Of a ZeRO stage that the framework runs with another wrapper or other buckets.
AT_ZERO_STAGE = {
    (Framework.TORCHTITAN, 0): TORCHTITAN_REPLICATED,
    (Framework.DEEPSPEED, 3): DEEPSPEED_BF16_ZERO_3,
    (Framework.TRANSFORMERS, 1): TRANSFORMERS_DEEPSPEED,  # FSDP knows no such stage
    (Framework.TRANSFORMERS, 2): TRANSFORMERS_DEEPSPEED,
    (Framework.TRANSFORMERS, 3): TRANSFORMERS_FSDP,
    (Framework.LIGHTNING, 1): LIGHTNING_DEEPSPEED,
    (Framework.LIGHTNING, 2): LIGHTNING_DEEPSPEED,
    (Framework.LIGHTNING, 3): LIGHTNING_FSDP,
}


def defaults_of(framework: Framework, zero_stage: object = None) -> FrameworkDefaults:
    """Return what a framework does by default; of one whose defaults are not known what PyTorch does.

    >>> defaults_of(Framework.NEMO).name
    'Megatron-LM in bf16'
    """
    other = AT_ZERO_STAGE.get((framework, zero_stage)) if isinstance(zero_stage, int) else None
    return BY_FRAMEWORK.get(framework, PYTORCH) if other is None else other
