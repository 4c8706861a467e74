"""Breakdown of a step as a table: a column per pipeline stage, no wider than the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from predictor.core.base.quantities import milliseconds
from predictor.core.base.text_table import text_table
from predictor.core.step.breakdown import StageParts, busiest_stage
from predictor.core.step.prediction import Prediction

LABELS = {
    "forward_us": "forward",
    "recompute_us": "recompute",
    "backward_us": "backward",
    "tensor_parallel_us": "tensor-parallel traffic",
    "context_parallel_us": "context-parallel traffic",
    "expert_parallel_us": "expert-parallel traffic",
    "pipeline_us": "pipeline traffic",
    "host_link_us": "host-link traffic",
    "host_us": "waiting for the host",
    "bubble_us": "bubble",
    "data_parallel_exposed_us": "data-parallel, exposed",
    "optimizer_us": "optimizer",
    "parameter_gather_us": "parameter gather",
    "waiting_us": "waiting for other stages",
    "not_modelled_us": "not modelled",
}
SHOWN_US = 0.05  # a part of a step that is longer has a row


def stage_table(prediction: Prediction, parts: Sequence[StageParts], width: int) -> tuple[list[str], list[str]]:
    """Return the parts of the step by stage, the critical stage's shares first, and the sentences below the table.

    Of many stages as many as the width holds: critical, busiest, first, last, and others evenly between.
    """
    critical, busiest = prediction.critical_stage, busiest_stage(prediction)
    step_us = parts[critical].step_us
    many = len(parts) > 1
    shown = [name for name in LABELS if any(abs(getattr(part, name)) > SHOWN_US for part in parts)]
    labels = ["ms", *(LABELS[name] for name in shown), "step"]
    shares = [f"{getattr(parts[critical], name) / step_us:.1%}" for name in shown]
    share = ["share*" if many else "", *shares, "100.0%"]

    def times(stage: int) -> list[str]:
        numbers = [*(getattr(parts[stage], name) for name in shown), parts[stage].step_us]
        title = f"stage {stage}{'*' if many and stage == critical else ''}"
        return [title, *(milliseconds(us, step_us) for us in numbers)]

    def table(stages: Sequence[int]) -> list[str]:
        columns = [share, *map(times, stages)] if many else [times(critical), share]
        return text_table(list(zip(labels, *columns, strict=True)))

    most = min(len(parts), width // len("  stage 0"))
    choices = [sorted({critical, busiest, *_evenly(len(parts), count)}) for count in range(most, 1, -1)]
    fitting = (stages for stages in choices if max(map(len, table(stages))) <= width)
    chosen = next(fitting, [critical])
    said = []
    if many:
        bubble = parts[critical].bubble_us / step_us
        said.append(f"* the critical stage: its end ends the step. Bubble: {bubble:.1%}.")
    if busiest != critical:
        idle_us = parts[busiest].bubble_us + parts[busiest].waiting_us
        said.append(f"Stage {busiest} is the busiest, {1.0 - idle_us / step_us:.1%} of the step: it sets the pace.")
    if len(chosen) < len(parts):
        said.append(f"{len(chosen)} of {len(parts)} stages; --json has all.")
    return table(chosen), said


def _evenly(stages: int, count: int) -> Iterator[int]:
    """Return the first, the last, and stages evenly between them, ``count`` in all."""
    return (round(i * (stages - 1) / (count - 1)) for i in range(count))
