"""Lightning Fabric's strategy for a layout: how ranks connect, and which of them share samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_fabric.strategies import ModelParallelStrategy, ParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from llm_trainer.parallel.mesh import DATA, ParallelLayout, make_mesh


class LayoutStrategy(ModelParallelStrategy):
    """Fabric's ModelParallelStrategy on a mesh of three axes, pipeline, data and tensor."""

    def __init__(self, layout: ParallelLayout, parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]) -> None:
        """Take a layout, and what splits a module over its mesh."""
        super().__init__(parallelize, layout.data_parallel_size, layout.tensor_parallel_size)
        self._layout = layout

    def setup_environment(self) -> None:
        """Set up the ranks' connections and the mesh."""
        ParallelStrategy.setup_environment(self)
        self._setup_distributed()
        self._device_mesh = make_mesh(self._layout, self.root_device.type)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return over how many ranks samples are shared out, and this one's place."""
        data = self.device_mesh[DATA]
        return {"num_replicas": data.size(), "rank": data.get_local_rank()}
