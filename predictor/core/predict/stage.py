"""One pipeline stage of a predicted step: time breakdown and memory."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.breakdown import StageParts, stage_parts
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.memory_verdict import MemoryVerdict, fits_in_memory, memory_verdict_on
from predictor.core.step.prediction import Prediction


@dataclass(frozen=True, slots=True)
class PredictedStage:
    """One pipeline stage.

    Attributes:
        stage: from 0.
        num_layers: of the stage.
        parameters_per_gpu: of one of its ranks.
        parts: breakdown of the step, in microseconds, that adds up to the step.
        memory: peak bytes on one of its GPUs.
        fit: into the GPU's memory; None where that is not known.
    """

    stage: int
    num_layers: int
    parameters_per_gpu: int
    parts: StageParts
    memory: StageMemory
    fit: MemoryVerdict | None

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None where that cannot be told, or the GPU's memory is not known."""
        return fits_in_memory(self.fit)

    @property
    def memory_gib(self) -> float:
        """Return the total memory in GiB (2³⁰ bytes)."""
        return self.memory.total / GIB


def predicted_stages(prediction: Prediction, system: PublishedSystem) -> tuple[PredictedStage, ...]:
    """Return every pipeline stage, in order."""
    stages = zip(prediction.stages, stage_parts(prediction), step_memory(prediction.tasks), strict=True)
    return tuple(
        PredictedStage(
            stage=index,
            num_layers=stage.num_layers,
            parameters_per_gpu=stage.parameters,
            parts=parts,
            memory=memory,
            fit=memory_verdict_on(memory.total, system),
        )
        for index, (stage, parts, memory) in enumerate(stages)
    )
