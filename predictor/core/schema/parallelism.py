"""The section ``parallelism`` of a configuration file: how a model is laid out over GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from predictor.core.base.fields import Amount, Count, Switch, names, whole_number
from predictor.core.schema.section import Section
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.frameworks import DEEPSPEED
from predictor.core.workload.layout import RANK_ORDER
from predictor.core.workload.partition import METHODS


def _split(value: object) -> object:
    """Refuse a split that is no list, no name of a method and no string of layers; pydantic's message would be four."""
    if isinstance(value, str):
        if value in METHODS or "|" in value:
            return value
    elif isinstance(value, list | tuple):
        nested = [isinstance(chunks, list | tuple) for chunks in value]
        if not any(nested) or (all(nested) and all(_counts(chunks) for chunks in value)):
            return value
    raise ValueError(
        "expected a list of layers per stage, a list of such lists with the layers of each chunk, "
        f"{' or '.join(METHODS)}, or a string as of --pipeline-model-parallel-layout: Et*3|(tt|)*29,m|L"
    )


def _schedule(value: object) -> object:
    """Refuse what names no schedule."""
    if value is None or value in list(SCHEDULES):
        return value
    *names_but_last, last = (repr(name) for name in SCHEDULES)
    raise ValueError(f"input should be {', '.join(names_but_last)} or {last}")


def _counts(chunks: list[object] | tuple[object, ...]) -> bool:
    """Return whether a list has whole numbers from 0 on."""
    return all(isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0 for layers in chunks)


ScheduleName = Annotated[str, WithJsonSchema({"type": "string", "enum": list(SCHEDULES)})]


class ParallelismSection(Section):
    """How the model is laid out over GPUs."""

    tensor_parallel_size: Count = Field(default=1, description="ranks that split every layer")
    sequence_parallel: Switch = Field(
        default=False,
        description="tensor-parallel ranks split the tokens where they do not split a layer (Megatron-LM)",
    )
    context_parallel_size: Count = Field(default=1, description="ranks that split every sample (ring attention)")
    pipeline_parallel_size: Count = Field(default=1, description="stages")
    virtual_pipeline_parallel_size: Count = Field(default=1, description="model chunks per stage (interleaved)")
    data_parallel_size: Count = Field(default=1, description="replicas")
    expert_parallel_size: Count = Field(
        default=1, description="data- and context-parallel ranks that share out the experts"
    )
    expert_tensor_parallel_size: Count | None = Field(
        default=None, description="ranks that split every routed expert; tensor_parallel_size if absent"
    )
    expert_dispatcher: ExpertDispatcher = Field(default=ExpertDispatcher.ALL_TO_ALL, description="moves their tokens")
    overlap_expert_parallel: Switch = Field(default=False, description="it does so beside another micro-batch's pass")
    rank_order: Annotated[tuple[str, ...], BeforeValidator(names)] = Field(
        default=RANK_ORDER, description="dimensions of parallelism from the innermost"
    )
    gpus_per_node: Count | None = Field(default=None, description="GPUs used per node; the system's if absent")
    intra_node: Literal["measured", "switch"] = Field(
        default="measured", description="wiring of a node's GPUs: as on the measured system, or all behind a switch"
    )
    layers_per_stage: Annotated[tuple[Count, ...] | tuple[tuple[Amount, ...], ...] | str, BeforeValidator(_split)] = (
        Field(
            default="uniform",
            description="a list per stage, or per stage and chunk; or how a framework splits; or a string of layers "
            "(Megatron-LM's --pipeline-model-parallel-layout)",
        )
    )
    embedding_counts_as_layer: Switch = Field(
        default=False, description="an even split counts the embedding as one of the first chunk's layers"
    )
    loss_counts_as_layer: Switch = Field(
        default=False, description="an even split counts the output projection and the loss as one of the last chunk's"
    )
    schedule: Annotated[ScheduleName | None, BeforeValidator(_schedule)] = Field(
        default=None, description="pipeline schedule; 1f1b, interleaved where stages have several chunks, if absent"
    )
    micro_batch_group_size: Count | None = Field(
        default=None,
        description="interleaved, micro-batches that pass a chunk before the next chunk's turn; the stages if absent",
    )
    blocking_transfers: Switch | None = Field(
        default=None, description="neighbouring stages both wait for a message; if absent, where the schedule allows it"
    )
    zero_stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(whole_number)] = Field(
        default=1, description="replicas share out 1: optimizer states, 2: gradients too, 3: weights too (FSDP)"
    )
    gradient_bucket_elements: Count = Field(
        default=DEEPSPEED.bucket_elements(), description="gradient elements per reduction"
    )
    gradient_reduction: Literal["all_reduce", "reduce_scatter"] | None = Field(
        default=None, description="collective that sums gradients; reduce_scatter from ZeRO-2 on if absent"
    )
    fp32_gradients: Switch = Field(default=False, description="gradients are accumulated and reduced in fp32")
    overlap_gradient_reduction: Switch = Field(default=False, description="reduce during the backward pass")
    overlap_parameter_gather: Switch = Field(default=False, description="gather weights during the forward pass")
    overlap_tensor_parallel: Switch = Field(
        default=False, description="backward, tensor-parallel traffic runs beside weight gradients"
    )
    overlap_linear_traffic: Switch = Field(
        default=False,
        description="tensor-parallel traffic is cut into chunks beside the products that it feeds or follows "
        "(Megatron-LM's --tp-comm-overlap, torch's async tensor parallelism)",
    )
    zero_group_size: Count | None = Field(
        default=None, description="replicas that share out states, the groups replicated (HSDP); all if absent"
    )
    reshard_after_forward: Switch = Field(
        default=True, description="ZeRO-3 frees a layer's gathered weights after its forward pass (FULL_SHARD)"
    )
    prefetch_units: Amount = Field(default=1, description="layers whose weights ZeRO-3 gathers ahead; 0: none")
    gather_precision: Literal["bf16", "fp16", "fp32", "fp8"] | None = Field(
        default=None, description="of weights on their way to other ranks; training.precision if absent"
    )
    fp32_parameters: Switch = Field(
        default=False, description="the sharded weights are the optimizer's fp32 ones, with no 16-bit copy (FSDP)"
    )
