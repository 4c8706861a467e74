"""Made-up records of measured runs, written through the schema that runners write through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from predictor.core.plan.loading import Loaded
from predictor.core.timeline.pipeline import Stream
from predictor.core.timeline.spans import Span
from predictor.evidence.verification.configurations import Configured
from predictor.evidence.verification.transformers import TransformerWorkload
from predictor.replay.files.measured_step import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    OPERATOR,
    OPTIMIZER,
    OperatorTime,
    StepProvenance,
    write_measured_steps,
)

PARTS_US = {"data": 0.0, FORWARD: 300.0, BACKWARD: 600.0, OPTIMIZER: 100.0}
OPERATORS = (
    OperatorTime(step_pass="forward", name="ffn_up", count=8, samples_us=(30.0, 34.0, 32.0)),
    OperatorTime(step_pass="backward", name="ffn_up", count=8, samples_us=(64.0, 66.0, 65.0)),
    OperatorTime(step_pass="end", name="optimizer_step", count=1, samples_us=(90.0, 90.0, 91.0)),
    OperatorTime(step_pass="forward", name="made_up", count=1, samples_us=(20.0, 20.0, 20.0)),
)


def part_spans(parts_us: dict[str, float], rank: int, num_micro_batches: int = 1) -> list[Span]:
    """Return the parts of a step as spans, micro-batch after micro-batch."""
    spans: list[Span] = []
    clock = 0.0
    for micro_batch in range(num_micro_batches):
        for part in (FORWARD, BACKWARD):
            end = clock + parts_us[part] / num_micro_batches
            details = {"pass": part, "micro_batch": micro_batch, "chunk": 0}
            spans.append(Span(part, rank, Stream.COMPUTE, clock, end, category=part, details=details))
            clock = end
    spans.append(Span(OPTIMIZER, rank, Stream.OPTIMIZER, clock, clock + parts_us[OPTIMIZER], category=OPTIMIZER))
    return spans


def provenance(configuration: dict[str, Any], **changes: Any) -> StepProvenance:
    """Return the provenance of a record whose parts scale with its samples."""
    samples = changes.setdefault("samples_us", (1000.0, 1010.0, 990.0))
    parts = changes.pop("parts", PARTS_US)
    whole = sum(parts.values())
    text = json.dumps(configuration, sort_keys=True)
    settings: dict[str, Any] = {
        "title": "measured",
        "step_us": sorted(samples)[len(samples) // 2],
        "parts_us": {part: tuple(us * sample / whole for sample in samples) for part, us in parts.items()},
        "first_step": 3,
        "warm_up": 2,
        "rank": 0,
        "world_size": 1,
        "num_micro_batches": 4,
        "precision": "32-true",
        "strategy": "single",
        "device": "a made-up processor",
        "device_kind": "cpu",
        "threads": 1,
        "host": "here",
        "commit": "unknown",
        "versions": {"torch": "2.13.0"},
        "configuration": configuration,
        "config_hash": sha256(text.encode()).hexdigest(),
        "finished": "2026-11-22T06:00:00+00:00",
    }
    return StepProvenance(**{**settings, **changes})


def write_launch(
    folder: Path,
    configuration: dict[str, Any],
    num_ranks: int = 1,
    operators: Sequence[OperatorTime] = (),
    ranks: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> Path:
    """Write the records of one launch; ``ranks`` changes those of single ranks."""
    for rank in range(num_ranks):
        own = {**changes, **(ranks[rank] if ranks else {})}
        told = provenance(configuration, rank=rank, world_size=num_ranks, operators=tuple(operators), **own)
        spans = part_spans({part: samples[0] for part, samples in told.parts_us.items()}, rank)
        for number, operator in enumerate(operators):
            category = OPERATOR if operator.name != "all_reduce" else COLLECTIVE
            begin = 10.0 * number
            spans.append(Span(operator.name, rank, "operators", begin, begin + 5.0, category=category))
        write_measured_steps(folder, spans, told)
    return folder


def loaded_of(configuration: Configured) -> Loaded:
    """Return a transformer's run and its system."""
    assert isinstance(configuration.workload, TransformerWorkload)
    return configuration.workload.loaded
