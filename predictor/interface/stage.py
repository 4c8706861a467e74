"""One pipeline stage of a predicted step: time breakdown and memory."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.published import PublishedSystem
from predictor.step.breakdown import StageParts, stage_parts
from predictor.step.composition import Prediction
from predictor.step.memory import GIB, StageMemory, step_memory


@dataclass(frozen=True, slots=True)
class PredictedStage:
    """One pipeline stage.

    Attributes:
        stage: from 0.
        num_layers: that it holds.
        parameters_per_gpu: that one of its ranks computes with.
        parts: where it spends the step, in microseconds; they add up to the step.
        memory: bytes on one of its GPUs at the fullest moment.
        fits: whether they fit; None where the system does not say how much a GPU has.
    """

    stage: int
    num_layers: int
    parameters_per_gpu: int
    parts: StageParts
    memory: StageMemory
    fits: bool | None

    @property
    def memory_gib(self) -> float:
        """Return all of its memory in GiB (2³⁰ bytes)."""
        return self.memory.total / GIB


def predicted_stages(prediction: Prediction, system: PublishedSystem) -> tuple[PredictedStage, ...]:
    """Return every pipeline stage, in order."""
    limit = system.hardware.gpu.memory_gib
    found = zip(prediction.stages, stage_parts(prediction), step_memory(prediction.tasks), strict=True)
    return tuple(
        PredictedStage(
            stage=index,
            num_layers=stage.num_layers,
            parameters_per_gpu=stage.parameters,
            parts=parts,
            memory=memory,
            fits=None if limit is None else memory.total <= limit.value * GIB,
        )
        for index, (stage, parts, memory) in enumerate(found)
    )
