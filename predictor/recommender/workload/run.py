"""One training run of a recommender: model, plan, batch and settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.core.costs.collectives import Topology, topology_of
from predictor.core.costs.work import element_bytes
from predictor.recommender.workload.keys import UNIFORM, KeyDistribution
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.plan import ShardingPlan


class Engine(StrEnum):
    """What runs the step.

    HUGECTR: CUDA kernels launched from C++, the dense weights in one buffer that the optimizer updates in one kernel,
    gradients summed over ranks in the precision of the products. TORCHREC: PyTorch's operators, launched from Python,
    with fp32 gradients; this project's trainer ``hugectr``. SOK: TensorFlow with HugeCTR's SparseOperationKit, which
    exchanges the fp32 row of every key, unpooled; TensorFlow's own kernels do the rest.
    """

    HUGECTR = "hugectr"
    TORCHREC = "torchrec"
    SOK = "sok"


@dataclass(frozen=True, slots=True)
class RecommenderRun:
    """A run.

    Attributes:
        batch_size: samples of one step over all GPUs.
        precision: of matrix products and of pooled embeddings; "fp32", or "fp16" or "bf16" for mixed precision, in
            which weights, rows and optimizers keep fp32.
        tf32: fp32 matrix products run in TF32 (enable_tf32_compute).
        keys: assumed distribution of every slot's keys.
        key_bytes: of one key in the input, 4 or 8.
        cached_share: of every table's rows that device memory holds, the most frequent ones; the host has the others.
        overlap_input: keys of the next batch are copied and exchanged while this one computes.
        overlap_embeddings: exchanged embeddings travel beside the bottom network.
        overlap_gradients: the dense network's gradients are summed beside the rest of the backward pass.
        engine: what runs it.
        copies_input: a batch is copied from the host's memory; on a CPU it lies where it is computed with.
        cuda_graphs: kernels are launched as one graph per pass, so that short ones follow each other at once.
    """

    model: Recommender
    plan: ShardingPlan
    batch_size: int
    num_gpus: int
    gpus_per_node: int
    precision: str
    tf32: bool = False
    keys: KeyDistribution = UNIFORM
    key_bytes: int = 4
    cached_share: float = 1.0
    overlap_input: bool = True
    overlap_embeddings: bool = True
    overlap_gradients: bool = True
    engine: Engine = Engine.HUGECTR
    copies_input: bool = True
    cuda_graphs: bool = True

    @property
    def batch_per_gpu(self) -> int:
        """Return the samples that one GPU's dense network sees."""
        return self.batch_size // self.num_gpus

    @property
    def element_bytes(self) -> int:
        """Return the bytes of an activation and of a pooled embedding on its way."""
        return element_bytes(self.precision)

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of a dense weight's gradient."""
        return self.element_bytes if self.engine is Engine.HUGECTR else element_bytes("fp32")

    @property
    def is_mixed(self) -> bool:
        """Return whether weights are cast for the dense network's products."""
        return self.precision != "fp32"

    @property
    def num_nodes(self) -> int:
        """Return the nodes that all ranks span."""
        return -(-self.num_gpus // self.gpus_per_node)

    def node(self) -> Topology:
        """Return what the ranks of one node span."""
        return topology_of(((min(self.gpus_per_node, self.num_gpus), 1),), self.gpus_per_node, None, self.num_gpus)

    def rail(self) -> Topology:
        """Return what the ranks at the same place of every node span."""
        return topology_of(((self.num_nodes, self.gpus_per_node),), self.gpus_per_node, None, self.num_gpus)

    def group(self) -> Topology:
        """Return what all ranks span."""
        return topology_of(((self.num_gpus, 1),), self.gpus_per_node, None, self.num_gpus)
