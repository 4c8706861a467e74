"""Keys of the section ``parallelism`` that a run has as they stand in a file, those of its layout aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Amount, Count, Switch, whole_number
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.frameworks import DEEPSPEED

ZeroStage = Literal[0, 1, 2, 3]
GatherPrecision = Literal["bf16", "fp16", "fp32", "fp8"]
BUCKET_ELEMENTS = DEEPSPEED.bucket_elements()


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a base alone
class ParallelismKeys:
    """How ranks share out states and hide traffic. The section checks the keys as a file is read, a run has them.

    Attributes:
        zero_stage: Rajbhandari et al. 2019, arXiv:1910.02054.
        gradient_bucket_elements: largest number that one collective reduces.
        overlap_gradient_reduction: during that of the last micro-batch, and of every one where gradients are shared
            out; otherwise after it.
        overlap_parameter_gather: of updated weights; ZeRO-3 gathers a layer's while the layer before it computes.
    """

    sequence_parallel: Annotated[
        Switch,
        Field(description="tensor-parallel ranks split the tokens where they do not split a layer (Megatron-LM)"),
    ] = False
    virtual_pipeline_parallel_size: Annotated[Count, Field(description="model chunks per stage (interleaved)")] = 1
    expert_dispatcher: Annotated[ExpertDispatcher, Field(description="moves their tokens")] = (
        ExpertDispatcher.ALL_TO_ALL
    )
    overlap_expert_parallel: Annotated[Switch, Field(description="it does so beside another micro-batch's pass")] = (
        False
    )
    zero_stage: Annotated[
        ZeroStage,
        BeforeValidator(whole_number),
        Field(description="replicas share out 1: optimizer states, 2: gradients too, 3: weights too (FSDP)"),
    ] = 1
    gradient_bucket_elements: Annotated[Count, Field(description="gradient elements per reduction")] = BUCKET_ELEMENTS
    gradient_reduction: Annotated[
        Literal["all_reduce", "reduce_scatter"] | None,
        Field(description="collective that sums gradients; reduce_scatter from ZeRO-2 on if absent"),
    ] = None
    fp32_gradients: Annotated[Switch, Field(description="gradients are accumulated and reduced in fp32")] = False
    overlap_gradient_reduction: Annotated[Switch, Field(description="reduce during the backward pass")] = False
    overlap_parameter_gather: Annotated[Switch, Field(description="gather weights during the forward pass")] = False
    overlap_tensor_parallel: Annotated[
        Switch, Field(description="backward, tensor-parallel traffic runs beside weight gradients")
    ] = False
    overlap_linear_traffic: Annotated[
        Switch,
        Field(
            description="tensor-parallel traffic is cut into chunks beside the products that it feeds or follows "
            "(Megatron-LM's --tp-comm-overlap, torch's async tensor parallelism)"
        ),
    ] = False
    zero_group_size: Annotated[
        Count | None,
        Field(description="replicas that share out states, the groups replicated (HSDP); all if absent"),
    ] = None
    reshard_after_forward: Annotated[
        Switch, Field(description="ZeRO-3 frees a layer's gathered weights after its forward pass (FULL_SHARD)")
    ] = True
    prefetch_units: Annotated[Amount, Field(description="layers whose weights ZeRO-3 gathers ahead; 0: none")] = 1
    gather_precision: Annotated[
        GatherPrecision | None,
        Field(description="of weights on their way to other ranks; training.precision if absent"),
    ] = None
    fp32_parameters: Annotated[
        Switch,
        Field(description="the sharded weights are the optimizer's fp32 ones, with no 16-bit copy (FSDP)"),
    ] = False
