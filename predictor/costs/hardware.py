"""A system's hardware as data, ``system.yaml``: the unit in every key, a source on every number."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Quantity(BaseModel):
    """A number and where it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(gt=0)
    source: str = Field(min_length=1)


class Gpu(BaseModel):
    """Peaks of one GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="torch.cuda.get_device_name(0) without spaces")
    num_multiprocessors: Quantity
    peak_tflop_per_s: dict[str, Quantity] = Field(description="dense matrix peak by precision")
    memory_bandwidth_gb_per_s: Quantity
    l2_cache_mb: Quantity


class Links(BaseModel):
    """What connects GPUs, per GPU and direction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    intra_node_gb_per_s: Quantity
    inter_node_gb_per_s: Quantity


class System(BaseModel):
    """One cluster: its GPU, its nodes and its links."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    gpus_per_node: int = Field(gt=0)
    gpu: Gpu
    links: Links
    host: dict[str, Quantity] = Field(description="what the host adds to every kernel, in microseconds")
