"""How a model is laid out over ranks, and which nodes each group of ranks spans."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.collectives import Topology, group_topology


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism. Ranks fill nodes in order: tensor innermost, then data, then pipeline.

    ``switched_as`` is None where nodes are wired as the measured ones; see ``Topology``.

    Source of the order: DeepSpeed ``PipeModelDataParallelTopology`` and Megatron-LM ``initialize_model_parallel``
    (tp-dp-pp).
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    gpus_per_node: int
    switched_as: int | None = None

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of the run."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def tensor_group(self) -> Topology:
        """Return what a tensor-parallel group spans."""
        return group_topology(self.tensor_parallel_size, 1, self.gpus_per_node, self.switched_as)

    def data_group(self) -> Topology:
        """Return what a data-parallel group spans."""
        stride = self.tensor_parallel_size
        return group_topology(self.data_parallel_size, stride, self.gpus_per_node, self.switched_as)

    def _one_node(self) -> bool:
        stages = self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size
        return stages <= self.gpus_per_node

    def pipeline_hop(self) -> Topology:
        """Return what a message between neighbouring stages crosses: a link in a node if all stages share one.

        Between nodes all ranks of a stage on one node send at once, and so share what leads out of it.
        """
        if self._one_node():
            return Topology(1, 2, self.switched_as)
        return Topology(2, min(self.tensor_parallel_size * self.data_parallel_size, self.gpus_per_node))

    def first_and_last_stage(self) -> Topology:
        """Return what the two ranks span that hold the same part of a shared embedding."""
        return Topology(1, 2, self.switched_as) if self._one_node() else Topology(2, 1)
