"""Parts of a run that its framework decides where ``training`` does not say them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from predictor.core.schema.sections import TrainingSection
from predictor.core.transforms.lora import Lora
from predictor.core.workload.frameworks import defaults_of
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Conditions
from predictor.core.workload.software import TUNED
from predictor.core.workload.training_keys import TrainingKeys

HOST_UPDATE = ("host_threads", "host_simd", "pinned_offload")


def host_update(training: TrainingSection) -> dict[str, Any]:
    """Return keys of the host's update as a run has them that keeps no states there: at their defaults."""
    offloads = training.offload_optimizer or training.offload_parameters
    return {} if offloads else {key: getattr(TrainingKeys, key) for key in HOST_UPDATE}


def adapters(training: TrainingSection, zero_stage: int) -> Lora | None:
    """Return the adapters of a run, in the precision in which its framework keeps them where none is said."""
    if training.lora is None or training.lora.fp32 is not None or training.framework is None:
        return training.lora
    return replace(training.lora, fp32=defaults_of(training.framework, zero_stage).keys.get("fp32_adapters", False))


def conditions_of(training: TrainingSection) -> Conditions:
    """Return the conditions of a run that may not say them: tuned with a framework whose tuned runs were published."""
    if training.conditions is not None:
        return training.conditions
    return Conditions.TUNED if training.framework in TUNED else Conditions.ORDINARY


def with_routing(run: TrainingRun) -> TrainingRun:
    """Return a run whose experts have an even load where it is not given, but for natural routing in ordinary runs."""
    experts = run.model.experts
    if experts is None or experts.load_imbalance is not None or run.conditions is Conditions.ORDINARY:
        return run
    return replace(run, model=replace(run.model, experts=replace(experts, load_imbalance=1.0)))
