"""Parts of a run that its framework decides where ``training`` does not say them."""

from __future__ import annotations

from typing import Any

from predictor.core.schema.sections import TrainingSection
from predictor.core.transforms.lora import Lora
from predictor.core.workload.frameworks import defaults_of


def host_update(training: TrainingSection) -> dict[str, Any]:
    """Return how the host updates states that it keeps, as fields of a run; nothing where it keeps none."""
    if not training.offload_optimizer:
        return {}
    return {key: getattr(training, key) for key in ("host_threads", "host_simd", "pinned_offload")}


def adapters(training: TrainingSection, zero_stage: int) -> Lora | None:
    """Return the adapters of a run, in the precision in which its framework keeps them where none is said."""
    if training.lora is None:
        return None
    given = training.lora.model_dump()
    if given["fp32"] is None:
        given["fp32"] = training.framework is not None and defaults_of(training.framework, zero_stage).fp32_adapters
    return Lora(**given)
