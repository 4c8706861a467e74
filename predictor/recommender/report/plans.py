"""Report sharding plans as text, JSON and CSV: ranking, gain of the fastest, place of each table."""

from __future__ import annotations

import csv
from collections import Counter
from io import StringIO
from typing import Any

from predictor.core.base.quantities import duration
from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.report.text import wrapped
from predictor.core.step.memory import GIB
from predictor.recommender.hugectr.plan_file import plan_entries
from predictor.recommender.sharding.answer import HUGECTR, PlanSearch, PlanWinner
from predictor.recommender.workload.plan import ShardedTable, Sharding

FORMAT = "estimate-train-time/sharding-search/1"
COLUMNS = ("step", "90 % interval", "GiB", "samples/s", *(str(sharding) for sharding in Sharding))
MOST_TABLES = 40


def _counts(winner: PlanWinner) -> list[int]:
    counts = Counter(sharded.sharding for sharded in winner.plan.tables)
    return [counts[sharding] for sharding in Sharding]


def _summary(winner: PlanWinner) -> dict[str, Any]:
    step = winner.prediction.step
    return {
        "name": winner.name or "searched",
        "time_us": step.us,
        "low_us": step.low_us,
        "high_us": step.high_us,
        "source": step.source.label,
        "memory_gib": winner.memory_bytes / GIB,
        "samples_per_s": winner.prediction.samples_per_second,
    }


def to_json(answer: PlanSearch) -> dict[str, Any]:
    """Return the search for machines."""
    return {
        "format": FORMAT,
        "system": answer.system.name,
        "num_gpus": answer.run.num_gpus,
        "batch_size": answer.run.batch_size,
        "memory_gib": answer.memory_gib,
        "gap": answer.gap,
        "plans": [{**_summary(winner), "plan": plan_entries(winner.plan)} for winner in answer.winners],
        "too_large": [_summary(winner) for winner in answer.too_large],
        "why": why(answer),
    }


def to_csv(answer: PlanSearch) -> str:
    """Return the plans as a table, a line each."""
    text = StringIO()
    rows = [
        {**_summary(winner), **dict(zip(map(str, Sharding), _counts(winner), strict=True))} for winner in answer.winners
    ]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _bound(answer: PlanSearch) -> str:
    if answer.gap <= 0.0:
        return "No plan is faster, by the times that the search adds up."
    return f"No plan saves more than another {answer.gap:.1%}, by the times that the search adds up."


def why(answer: PlanSearch) -> str:
    """Return what the fastest plan saves against HugeCTR's placement, and what is proven."""
    first = answer.winners[0]
    other = next(winner for winner in (*answer.winners, *answer.too_large) if HUGECTR in winner.names)
    if other is first:
        return f"HugeCTR's placement is the fastest known. {_bound(answer)}"
    saved = 1.0 - first.prediction.step.us / other.prediction.step.us
    unfit = "" if other.fits is not False else ", which does not fit"
    return f"Against HugeCTR's placement{unfit}: {saved:.1%} of the step saved. {_bound(answer)}"


def _cells(winner: PlanWinner) -> list[str]:
    step = winner.prediction.step
    return [
        duration(step.us),
        f"{duration(step.low_us)} – {duration(step.high_us)}",
        f"{winner.memory_bytes / GIB:.1f}",
        f"{winner.prediction.samples_per_second:,.0f}",
        *map(str, _counts(winner)),
    ]


def _table(winners: tuple[PlanWinner, ...]) -> list[str]:
    rows = [[str(number), *_cells(winner), winner.name] for number, winner in enumerate(winners, 1)]
    return text_table([["#", *COLUMNS, ""], *rows], left=(-1,))


def _ranks(sharded: ShardedTable, num_ranks: int) -> str:
    ranks = sharded.ranks
    if len(ranks) == num_ranks:
        return "all ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _places(winner: PlanWinner) -> list[str]:
    tables = sorted(winner.plan.tables, key=lambda sharded: -sharded.table.parameters)
    lines = [
        f"  {sharded.table.name:<28} {sharded.table.rows:>12,} × {sharded.table.width:<4} "
        f"{sharded.sharding:<14} {_ranks(sharded, winner.plan.num_ranks)}"
        for sharded in tables[:MOST_TABLES]
    ]
    return lines + ([f"  and {len(tables) - MOST_TABLES} smaller tables"] if len(tables) > MOST_TABLES else [])


def render(answer: PlanSearch, width: int = 100) -> str:
    """Return the search as a page of text; its sentences no longer than ``width``, its tables as wide as they are."""
    run = answer.run
    of = "" if answer.memory_gib is None else f" of {answer.memory_gib:.1f} GiB"
    asked_for = f"{counted(run.batch_size, 'sample')} a step, {counted(len(run.plan.tables), 'embedding table')}"
    lines = [
        f"{counted(run.num_gpus, 'GPU')} of {answer.system.name}{of}, {asked_for}",
        "",
        *_table(answer.winners),
        "",
        *wrapped([why(answer)], width, 2),
        "",
        "The fastest plan, the largest tables first:",
        *_places(answer.winners[0]),
    ]
    if answer.too_large:
        lines += ["", "Do not fit:", *_table(answer.too_large)]
    return "\n".join(lines)
