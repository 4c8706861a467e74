"""The section ``parallelism`` of a configuration file: how a model is laid out over GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from predictor.core.base.fields import Amount, Count, Switch
from predictor.core.schema.section import Section
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.layout import LayoutKeys
from predictor.core.workload.parallelism_keys import ParallelismKeys
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


class ParallelismSection(Section, ParallelismKeys, LayoutKeys):  # type: ignore[misc]  # frozen by its configuration
    """How the model is laid out over GPUs."""

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
