"""Check a plan against limits: its own deadline and price with a probability, and those of its chosen training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import HOURS_PER_DAY
from predictor.core.predict.check import Check, Limits, Rule
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MemoryVerdict
from predictor.training_plan.interface import PlanResult, plan_of
from predictor.training_plan.outcome import USUALLY_SHOWN
from predictor.training_plan.outlook import HIGH
from predictor.training_plan.plans import LIKELY, silent
from predictor.training_plan.question import calendar_of, same_system
from predictor.training_plan.report.text import missed, sentence
from predictor.training_plan.section import PlanFile, as_keys, choices, laid_over, read_plan, validated


def check_plan(path: Path, limits: Limits, system: str | None = None, changes: Sequence[str] = ()) -> Check:
    """Plan and compare with limits.

    Args:
        path: of the plan's file.
        limits: they take part in the choice; the probability is the plan's own where they have none; ``certain`` limits
            of time and price are those that 95 % of trainings keep.
        system: that alone may be chosen, with the GPUs and the price that the plan gives it; None: those of the plan.
        changes: KEY=VALUE, of the configuration and of the hardware.

    Raises:
        ConfigError: a limit needs a price that the plan lacks, or the plan is not possible.
    """
    content, base = read_plan(path)
    content = laid_over(content, {"set": as_keys(changes)})
    if system is not None:
        systems = choices(content)
        content["systems"] = {system: systems.get(same_system(system, systems, base) or system, {})}
    own = validated(content, f"{path}: ")
    asked = limits.min_probability or own.probability
    result = plan_of(content | _narrowed(own, limits, asked), base, f"{path}: ", USUALLY_SHOWN, silent)
    outcome = result.outcome
    chance = result.chosen.chance(calendar_of(own).hours, own.max_price)
    rules = [Rule("min_probability", asked, chance, chance >= asked)]
    for name, value in _values(result, limits.certain).items():
        limit = getattr(limits, name)
        if limit is None:
            continue
        if value is None:
            raise ConfigError(f"{path}: {name} needs a price: systems.NAME.price_per_gpu_hour, or prices")
        rules.append(Rule(name, limit, value, value >= limit if name.startswith("min_") else value <= limit))
    rules += _fits(result, limits)
    said = [sentence(outcome), missed(outcome)]
    return Check(f"{path}", tuple(rules), limits.certain, tuple(each for each in said if each is not None))


def _narrowed(own: PlanFile, limits: Limits, asked: float) -> dict[str, Any]:
    """Return the keys of a plan that limits narrow, so that it is chosen to keep them.

    Args:
        own: the plan's file.
        limits: of which those of days and price are deadline and price of the plan.
        asked: with which its own deadline and price are to be kept.
    """
    deadline, price = calendar_of(own).hours, own.max_price
    keys: dict[str, Any] = {"probability": asked}
    if limits.max_days is not None and (deadline is None or limits.max_days * HOURS_PER_DAY < deadline):
        keys["deadline"] = limits.max_days
    if limits.max_price is not None and (price is None or limits.max_price < price):
        keys["max_price"] = limits.max_price
    if limits.certain and len(keys) > 1:
        keys["probability"] = max(asked, HIGH)
    return keys


def _values(result: PlanResult, is_certain: bool) -> dict[str, float | None]:
    """Return what limits are compared with, by their keys: of the chosen plan."""
    chosen = result.chosen
    prediction, hours = chosen.winner.prediction, chosen.hours_at(HIGH if is_certain else LIKELY)
    us = prediction.step.high_us if is_certain else prediction.step.us
    slower = us / prediction.step.us
    return {
        "max_step_s": us / 1e6,
        "min_tokens_per_second": prediction.tokens_per_second / slower,
        "min_mfu": prediction.mfu / slower,
        "max_memory_gib": chosen.winner.ranked.memory_bytes / GIB,
        "max_days": hours / HOURS_PER_DAY,
        "max_gpu_hours": hours * chosen.case.num_gpus,
        "max_price": chosen.price(hours),
    }


def _fits(result: PlanResult, limits: Limits) -> list[Rule]:
    """Return the rule on memory; none where it is not asked for, or not known."""
    chosen = result.chosen
    memory, verdict = chosen.answer.memory_gib, chosen.answer.verdict(chosen.winner)
    if not limits.must_fit or memory is None:
        return []
    kept = verdict is MemoryVerdict.FITS or (not limits.certain and verdict is MemoryVerdict.MAY_NOT_FIT)
    return [Rule("must_fit", memory, chosen.winner.ranked.memory_bytes / GIB, kept)]
