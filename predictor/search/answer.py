"""Answer a question: the fastest layouts, each with its whole prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from predictor.configuration.loading import merged
from predictor.costs.published import PublishedSystem
from predictor.search.question import Asked
from predictor.search.rank import Ranked, Ranking, rank
from predictor.search.space import Plan, Space
from predictor.step.breakdown import StageParts, stage_parts
from predictor.step.composition import Prediction, predict


@dataclass(frozen=True, slots=True)
class Winner:
    """One of the fastest layouts with its whole prediction."""

    ranked: Ranked
    prediction: Prediction
    parts: StageParts


@dataclass(frozen=True, slots=True)
class Found:
    """A search with its answers.

    Attributes:
        winners: the fastest layouts, the fastest first.
        pareto: those that no other beats in both time and memory, the leanest first.
    """

    space: Space
    system: PublishedSystem
    memory_gib: float | None
    ranking: Ranking
    winners: list[Winner]
    pareto: list[Winner]
    notes: tuple[str, ...]
    content: dict[str, Any]


def _winner(space: Space, system: PublishedSystem, ranked: Ranked) -> Winner:
    prediction = predict(space.run(ranked.plan), system)
    return Winner(ranked, prediction, stage_parts(prediction, system)[prediction.critical_stage])


def search(asked: Asked, top: int, pareto: bool = False) -> Found:
    """Answer a question.

    Raises:
        ConfigError: nothing multiplies to the GPUs, or nothing fits.
    """
    ranking = rank(asked.space, asked.system, asked.memory_gib, top, pareto)
    winners = [_winner(asked.space, asked.system, ranked) for ranked in ranking.best]
    front = [_winner(asked.space, asked.system, ranked) for ranked in ranking.pareto]
    return Found(asked.space, asked.system, asked.memory_gib, ranking, winners, front, asked.notes, asked.content)


def layout_fields(plan: Plan) -> dict[str, Any]:
    """Return what a search chose under the names of a configuration."""
    degrees = plan.degrees
    return {
        "tensor_parallel_size": degrees.tensor,
        "sequence_parallel": plan.sequence_parallel,
        "context_parallel_size": degrees.context,
        "pipeline_parallel_size": degrees.pipeline,
        "virtual_pipeline_parallel_size": plan.pieces,
        "data_parallel_size": degrees.data,
        "expert_parallel_size": degrees.expert,
        "schedule": plan.schedule,
        "zero_stage": plan.zero_stage,
        "micro_batch_size": plan.micro_batch_size,
        "num_micro_batches": plan.num_micro_batches,
        "recompute": str(plan.recompute),
    }


def configuration(found: Found) -> str:
    """Return the fastest layout as a configuration that ``predict`` takes."""
    row = layout_fields(found.winners[0].ranked.plan)
    training = {key: row.pop(key) for key in ("micro_batch_size", "num_micro_batches", "recompute")}
    if not found.winners[0].prediction.run.scatters_gradients:
        row["gradient_reduction"] = "all_reduce"
    elif row["zero_stage"] == 1:
        row["gradient_reduction"] = "reduce_scatter"
    chosen = {"parallelism": row, "training": training}
    return yaml.safe_dump(merged(found.content, chosen), sort_keys=False)
