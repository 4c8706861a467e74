"""How candidates divide: layers over pipeline stages as their framework splits them, and sizes by their divisors."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.plan.framework_rules import FrameworkRules
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.partition import chunk_layers, uniform


class Split(NamedTuple):
    """Layers per stage, and per chunk where chunks differ."""

    stages: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...] | None = None


@lru_cache(maxsize=4096)
def split_of(
    rules: FrameworkRules | None, num_layers: int, num_mtp_layers: int, stages: int, chunks: int, v_shaped: bool
) -> Split | None:
    """Return how layers are split; None where the framework, or the chunks, cannot split so.

    Args:
        rules: of the framework; None: of none.
        num_layers: of the model.
        num_mtp_layers: of its multi-token prediction.
        stages: of the pipeline.
        chunks: of every stage.
        v_shaped: the second chunks come back up the stages.
    """
    if rules is None:
        shares = uniform(num_layers, stages)
        return Split(tuple(shares)) if all(share % chunks == 0 for share in shares) else None
    layers = rules.in_order(num_layers, stages, chunks, num_mtp_layers)
    if layers is None:
        return None
    schedule = SCHEDULES["dualpipe_v" if v_shaped else "interleaved_1f1b"]
    places = [[schedule.virtual_stage(stage, chunk, stages) for chunk in range(chunks)] for stage in range(stages)]
    placed = tuple(tuple(layers[place] for place in own) for own in places)
    counts = tuple(map(sum, placed))
    return Split(counts, None if _follows(counts, placed) else placed)


def _follows(stages: tuple[int, ...], placed: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether the layers of stages' chunks follow from those of the stages, as a configuration reads them.

    Of an even split, which a configuration need not say, no chunk may be empty.
    """
    least = int(list(stages) == uniform(sum(stages), len(stages)))
    try:
        return all(chunk_layers(stages, stage, len(own), least) == own for stage, own in enumerate(placed))
    except ConfigError:
        return False


def nests(first: int, second: int) -> bool:
    """Return whether either of two numbers divides the other."""
    return first % second == 0 or second % first == 0


def divisors(number: int, largest: int) -> list[int]:
    """Return the divisors of a number up to a limit, in order."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return [d for d in sorted({*small, *(number // d for d in small)}) if d <= largest]
