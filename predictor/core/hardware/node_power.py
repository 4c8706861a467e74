"""A GPU's share of its node's power: CPUs, memory, network cards, switches, fans and losses of power supplies."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Gpu, Quantity

DATA = Path(__file__).with_name("node_power.yaml")
ASSUMED = "assumed"


class NodePower(Quantity):
    """A node's power beside its boards' limits, per GPU, with the least and the most of nodes that were measured."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)


@lru_cache(maxsize=1)
def _sheets() -> dict[str, NodePower]:
    return {name: NodePower.model_validate(sheet) for name, sheet in read_mapping(DATA).items()}


def node_power_per_gpu_w(gpu: Gpu) -> NodePower:
    """Return a node's power beside the limits of its GPUs' boards, per GPU; assumed where no node was measured."""
    return _sheets().get(gpu.name, _sheets()[ASSUMED])
