"""Keys of the section ``training`` that a run has as they stand in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Amount, Count, Switch, names, words
from predictor.core.costs.work import FP8_PRECISIONS, STEP_PRECISIONS
from predictor.core.transforms.lora import Lora
from predictor.core.workload.run_choices import (
    AttentionKernel,
    GemmRecipe,
    GraphModule,
    OffloadModule,
    Optimizer,
    Recompute,
    RecomputeModule,
    Reference,
)
from predictor.core.workload.software import Framework, framework_named

Precision = Literal["fp16", "bf16", "fp32"]


def _step_precision(value: object) -> object:
    """Refuse precisions of single operators only; pydantic's message would not explain it."""
    if value in FP8_PRECISIONS:
        known = f"{', '.join(STEP_PRECISIONS[:-1])} or {STEP_PRECISIONS[-1]}"
        raise ValueError(f"whole steps in fp8 are not predicted, single operators only; expected {known}")
    return value


def _graph_modules(value: object) -> object:
    """Refuse what is neither a switch nor a list of modules; pydantic's message would be two."""
    known = list(GraphModule)
    if isinstance(value, bool) or (isinstance(value, list | tuple) and value and all(name in known for name in value)):
        return value
    raise ValueError(f"expected false, true or a list of modules: {', '.join(known)}")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a base alone
class TrainingKeys:
    """How the software trains. The section checks the keys as a file is read, a run has them.

    Attributes:
        partition_activations: checkpointed inputs are gathered again before they are used.
        fused_experts: with the gate and the casts to low precision.
        framework: None: not said. A run of ``pytorch`` is one of no framework.
    """

    micro_batch_size: Annotated[Count, Field(description="samples per micro-batch and replica")]
    precision: Annotated[
        Precision,
        BeforeValidator(_step_precision),
        Field(description="element type of activations; another if the system does not answer in it"),
    ] = "bf16"
    recompute: Annotated[Recompute, Field(description="activation recomputation")] = Recompute.NONE
    partition_activations: Annotated[Switch, Field(description="checkpoints split over tensor-parallel ranks")] = False
    recompute_stops_early: Annotated[
        Switch,
        Field(
            description="a layer is computed again up to its last saved activation only (torch's non-reentrant "
            "checkpoint)"
        ),
    ] = False
    synchronize_each_layer: Annotated[Switch, Field(description="host waits for the device after every layer")] = False
    gemm_recipe: Annotated[
        GemmRecipe | None,
        Field(description="low precision of the linear layers' products (Transformer Engine's recipes)"),
    ] = None
    fp8_attention: Annotated[
        Switch,
        Field(
            description="exact attention runs in 8 bits too, in the layers of gemm_recipe (Transformer Engine's "
            "fp8_dpa)"
        ),
    ] = False
    layers_in_16_bits_at_start: Annotated[Amount, Field(description="first layers that the recipe leaves out")] = 0
    layers_in_16_bits_at_end: Annotated[Amount, Field(description="last layers that the recipe leaves out")] = 0
    tf32: Annotated[Switch, Field(description="products of fp32 matrices run in TF32")] = False
    recompute_num_layers: Annotated[
        Count | None, Field(description="layers of each model chunk that recompute applies to; all if absent")
    ] = None
    recompute_every: Annotated[Count, Field(description="recompute applies to every such layer (torchtitan: 2)")] = 1
    recompute_group_layers: Annotated[
        Count, Field(description="layers that full recomputation runs at once; only the first one's input is kept")
    ] = 1
    recompute_modules: Annotated[
        tuple[RecomputeModule, ...],
        BeforeValidator(names),
        Field(description="modules of a layer that selective recomputation covers; core_attn if empty"),
    ] = ()
    lora: Annotated[
        Lora | None, BeforeValidator(words), Field(description="adapters train, base weights do not; all if absent")
    ] = None
    compiled: Annotated[Switch, Field(description="torch.compile: element-wise kernels are fused")] = False
    fused_gradient_accumulation: Annotated[
        Switch,
        Field(
            description="products of weight gradients add to those of earlier micro-batches themselves (Megatron-LM)"
        ),
    ] = False
    attention_kernel: Annotated[
        AttentionKernel | None,
        Field(description="kernel of flash attention; the one that the system was measured with if absent"),
    ] = None
    blocking_launches: Annotated[
        Switch, Field(description="the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1)")
    ] = False
    cuda_graphs: Annotated[
        bool | tuple[GraphModule, ...],
        BeforeValidator(_graph_modules),
        Field(description="kernels, or modules, launched by CUDA graphs"),
    ] = False
    fused_experts: Annotated[Switch, Field(description="the products of all experts are one kernel each")] = False
    offload_optimizer: Annotated[
        float,
        Field(
            strict=True,
            ge=0.0,
            le=1.0,
            description="share of the optimizer's states that is kept and updated in host memory (Adam on the CPU)",
        ),
    ] = 0.0
    overlap_optimizer_offload: Annotated[
        Switch,
        Field(
            description="gradients and weights travel beside the CPU's update (Megatron-LM's "
            "--overlap-cpu-optimizer-d2h-h2d)"
        ),
    ] = False
    host_threads: Annotated[
        Count | None,
        Field(
            description="threads of a rank's Adam on the CPU (OMP_NUM_THREADS); as many as stream its share of the "
            "memory if absent"
        ),
    ] = None
    host_simd: Annotated[
        Switch,
        Field(description="that Adam computes with vectors; false: as some builds of DeepSpeed 0.14.1 and 0.14.2"),
    ] = True
    pinned_offload: Annotated[
        Switch, Field(description="host memory of offloaded states is pinned (DeepSpeed's pin_memory)")
    ] = True
    offload_parameters: Annotated[
        Switch,
        Field(
            description="a rank's shards of the weights are kept in host memory, from where ZeRO-3 gathers them "
            "(DeepSpeed's offload_param, FSDP's CPUOffload)"
        ),
    ] = False
    offload_activation_layers: Annotated[
        Amount, Field(description="layers of each model chunk whose activations travel to host memory and back")
    ] = 0
    offload_activations: Annotated[
        Switch,
        Field(
            description="activations of all layers travel so; with full recomputation the inputs that it keeps (TRL's "
            "and torchtune's activation offloading)"
        ),
    ] = False
    overlap_activation_offload: Annotated[
        Switch,
        Field(
            description="activations travel beside the computing; false: in its stream (Unsloth's gradient "
            "checkpointing)"
        ),
    ] = True
    offload_modules: Annotated[
        tuple[OffloadModule, ...],
        BeforeValidator(names),
        Field(description="modules of every layer whose inputs do (Megatron-LM's fine-grained offloading)"),
    ] = ()
    reference_model: Annotated[
        Reference | None,
        Field(
            description="model whose pass without gradients follows every micro-batch's forward pass (DPO, KTO); none "
            "if absent"
        ),
    ] = None
    reference_passes: Annotated[
        Count, Field(description="passes without gradients of a micro-batch; KTO's two models have 3 in all")
    ] = 1
    optimizer: Annotated[
        Optimizer,
        Field(
            description="adam, or muon: matrices of layers by orthogonalised momentum, which is their only state, all "
            "else by Adam"
        ),
    ] = Optimizer.ADAM
    optimizer_state_bytes: Annotated[
        float | None,
        Field(
            strict=True,
            ge=0,
            le=64,
            description="bytes of optimizer state per parameter; fp32 weights and two fp32 moments if absent",
        ),
    ] = None
    framework: Annotated[
        Framework | None,
        BeforeValidator(framework_named),
        Field(
            description="software that trains: its defaults are those of the run, the interval is that of its "
            "published runs, and what only its own code does is counted; pytorch: a program of one's own, with no "
            "such defaults"
        ),
    ] = None
