"""One training run, as the prediction sees it: model, layout and everything that a framework decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.costs.layer_call import LayerCall
from predictor.costs.work import element_bytes
from predictor.workloads.layout import Layout
from predictor.workloads.transformer import Transformer


class Recompute(StrEnum):
    """Which activations the backward pass computes again. Korthikanti et al. 2022, arXiv:2205.05198."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run of one model on one layout.

    Attributes:
        layers_per_stage: how the pipeline splits the model.
        zero_stage: 0 replicates the optimizer, 1 shards it over the data-parallel group.
        gradient_bucket_elements: largest number of gradient elements that one collective reduces.
        overlap_gradient_reduction: reduce during the last micro-batch's backward pass instead of after it.
        blocking_transfers: pipeline neighbours both wait for a message; otherwise it overlaps the sender's next slot.
        partition_activations: checkpointed inputs are stored split over the tensor-parallel group and gathered again.
        synchronize_each_layer: the host waits for the device after every layer's pass.
    """

    model: Transformer
    layout: Layout
    layers_per_stage: tuple[int, ...]
    micro_batch_size: int
    num_micro_batches: int
    precision: str
    recompute: Recompute
    schedule: str
    zero_stage: int
    gradient_bucket_elements: int
    overlap_gradient_reduction: bool = False
    blocking_transfers: bool = True
    partition_activations: bool = False
    synchronize_each_layer: bool = False

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one activation, weight or gradient outside the optimizer."""
        return element_bytes(self.precision)

    def call(self) -> LayerCall:
        """Return the sizes that operators see for one micro-batch on one rank."""
        return self.model.call(self.micro_batch_size, self.layout.tensor_parallel_size, self.element_bytes)

    @property
    def global_batch_size(self) -> int:
        """Return the sequences of one step."""
        return self.micro_batch_size * self.num_micro_batches * self.layout.data_parallel_size

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one step."""
        return self.global_batch_size * self.model.sequence_length

    def stage_parameters(self, stage: int) -> int:
        """Return the parameters that one rank of a stage holds."""
        tp = self.layout.tensor_parallel_size
        model = self.model
        parameters = self.layers_per_stage[stage] * model.layer_parameters(tp)
        last = stage == len(self.layers_per_stage) - 1
        if stage == 0:
            parameters += model.embedding_parameters(tp) + model.position_parameters()
        if last:
            parameters += model.norm_parameters(1)
        if last and not (model.tied_embeddings and stage == 0):
            parameters += model.embedding_parameters(tp)
        return parameters
