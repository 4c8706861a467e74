"""A plan for machines (docs/json.md)."""

from __future__ import annotations

from math import isinf
from typing import Any

from predictor.core.report.not_modelled import not_modelled_entry
from predictor.core.step.highest_mfu import mfu_entry
from predictor.core.step.memory import GIB
from predictor.layout_search.answer import layout_fields
from predictor.training_plan.outcome import Outcome
from predictor.training_plan.plans import LeftOut, TrainingPlan
from predictor.training_plan.report.text import above_elsewhere, missed, trust

FORMAT = "estimate-train-time/plan/1"
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95)


def _finite(value: float | None) -> float | None:
    return None if value is None or isinf(value) else value


def _day(outcome: Outcome, hours: float) -> str | None:
    day = None if isinf(hours) else outcome.question.calendar.day(hours)
    return None if day is None else day.isoformat()


def _row(outcome: Outcome, plan: TrainingPlan) -> dict[str, Any]:
    """Return a plan as an entry of the table."""
    step, low, high = plan.winner.prediction.step, *plan.interval_hours
    return {
        "system": plan.case.offer.name,
        "num_gpus": plan.case.num_gpus,
        "spot": plan.purchase.is_spot,
        "precision": plan.case.precision,
        "global_batch_size": plan.answer.space.global_batch_size,
        "sequence_length": plan.answer.space.model.sequence_length,
        "price_per_gpu_hour": plan.purchase.price_per_gpu_hour,
        "time_us": step.us,
        "low_us": step.low_us,
        "high_us": step.high_us,
        "mfu": plan.winner.prediction.mfu,
        "memory_gib": plan.winner.ranked.memory_bytes / GIB,
        "tokens": plan.work.tokens,
        "steps": plan.work.steps,
        "hours": _finite(plan.hours),
        "low_hours": _finite(low),
        "high_hours": _finite(high),
        "done": _day(outcome, plan.hours),
        "price": _finite(plan.likely_price),
        "low_price": _finite(plan.price(low)),
        "high_price": _finite(plan.price(high)),
        "probability": plan.probability,
        "on_front": outcome.is_on_front(plan),
        "layout": layout_fields(plan.winner.ranked.plan),
    }


def _chosen(outcome: Outcome) -> dict[str, Any]:
    """Return the chosen plan with the distribution of its date and price."""
    plan, question = outcome.chosen, outcome.question
    walls, hours, work = plan.outlook.walls, question.calendar.hours, plan.work
    price = question.file.max_price
    in_budget = plan.chance(None, price) if price is not None and plan.price_per_hour else None
    return {
        **_row(outcome, plan),
        "probability_in_time": None if hours is None else plan.outlook.chance_within(hours),
        "probability_in_budget": in_budget,
        "distribution": [
            {
                "probability": quantile,
                "hours": _finite(plan.hours_at(quantile)),
                "done": _day(outcome, plan.hours_at(quantile)),
                "price": _finite(plan.price(plan.hours_at(quantile))),
            }
            for quantile in QUANTILES
        ],
        "work": {
            "step_hours": work.step_hours,
            "ramp_up_hours": work.ramp_up_hours,
            "evaluation_hours": work.evaluation_hours,
            "checkpoint_gb": work.checkpoint_bytes / 1e9,
        },
        "goodput": walls.goodput(0.5),
        "shares": {str(cause): share for cause, share in walls.shares().items()} if walls.goodput(0.5) else {},
        "risks": [{"cause": cause, "share": share} for cause, share in outcome.risks.items()],
        "not_modelled": not_modelled_entry(plan.winner.prediction),
        "published_mfu": mfu_entry(plan.winner.prediction),
    }


def _left_out(case: LeftOut) -> dict[str, Any]:
    offer, batch = case.case.offer, case.case.batch
    return {
        "system": offer.name,
        "num_gpus": case.case.num_gpus,
        "precision": case.case.precision,
        "global_batch_size": batch.samples,
        "global_batch_tokens": batch.tokens,
        "reason": case.reason,
    }


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return what ``plan --json`` prints."""
    file, calendar = outcome.question.file, outcome.question.calendar
    miss = missed(outcome)
    deadline = calendar.hours
    return {
        "format": FORMAT,
        "start": calendar.start.isoformat(),
        "deadline": None if deadline is None else _day(outcome, deadline),
        "deadline_hours": deadline,
        "max_price": file.max_price,
        "currency": file.currency,
        "probability": file.probability,
        "kept": outcome.is_kept,
        "missed": miss,
        "draws": file.draws,
        "seed": file.seed,
        "searched": len(outcome.considered.plans),
        "whole": outcome.considered.is_whole,
        "chosen": _chosen(outcome),
        "plans": [_row(outcome, plan) for plan in outcome.considered.plans],
        "left_out": [_left_out(case) for case in outcome.considered.left_out],
        "notes": [
            *([outcome.interrupted] if outcome.interrupted else []),
            *trust(outcome),
            *above_elsewhere(outcome),
            *outcome.notes,
        ],
    }
