"""A replayed step as JSON, format ``estimate-train-time/replay/1``; times in microseconds.

format
traces            the files and patterns that were asked for
step              label, ranks (rank, world_size, backend, device, step_us, backlog_us, tasks, operators, collectives)
                  step_us: to the end of all that it started; backlog_us: how long the device still ran earlier steps,
                  and this one after the host's end of it
measured          step_us: the profiler's, without backlog; and ranks as in « changed »
replayed          alone_us: the measured step again, error: of it over the measured step, minus one; and what
                  « changed » has, where a device lags behind its host in a run of many alike
changes           set, what, before_us, after_us, notes
changed           null without changes; else
  step_us, ratio  over replayed.step_us
  low_us, high_us, source   90 % interval; null where every time is measured or was asked for
  critical_rank   that ends the step
  ranks           rank, step_us, parts by their printed names, hidden_us,
                  gaps (of the row that computes most: row, and µs launch-bound, sync-bound, dependency-bound, no work)
  critical_path   operator, kind, path_us, total_us, tasks (on the path)
  operators       likewise of all operators, by total_us
  collectives     name, part, group, rank, calls, size_bytes, us, waiting_us
  waits           rank, waited_for (rank), us: in the collectives that several traced ranks share
moved             operator, kind, how (joined, left, longer, shorter), before_us, after_us
bottleneck        one sentence
notes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.replay.answer import ReplayAnswer, Replayed, measured
from predictor.replay.collectives import collective_totals, waits_between
from predictor.replay.critical import PathShare
from predictor.replay.text import bottleneck
from predictor.replay.whatif.traced_step import TracedStep

FORMAT = "estimate-train-time/replay/1"


def to_json(answer: ReplayAnswer, traces: Sequence[str]) -> dict[str, Any]:
    """Return the document."""
    before = answer.before
    ranks = before.step.ranks
    as_measured = measured(before.step)
    return {
        "format": FORMAT,
        "traces": list(traces),
        "step": {"label": ranks[0].label, "ranks": _traced(before.step)},
        "measured": {"step_us": answer.measured_us, "ranks": _ranks(as_measured)},
        "replayed": {**_replayed(before), "alone_us": answer.replay_us, "error": answer.error},
        "changes": [
            {
                "set": applied.text,
                "what": applied.touched.what,
                "before_us": applied.touched.before_us,
                "after_us": applied.touched.after_us,
                "notes": list(applied.touched.notes),
            }
            for applied in answer.applied
        ],
        "changed": None if answer.after is None else {**_replayed(answer.after), "ratio": answer.ratio},
        "moved": [{**move._asdict(), "how": move.how} for move in answer.moves],
        "bottleneck": bottleneck(answer),
        "notes": list(answer.notes),
    }


def _traced(step: TracedStep) -> list[dict[str, object]]:
    return [
        {
            "rank": local.rank,
            "world_size": local.world_size,
            "backend": local.backend,
            "device": local.device_name,
            "step_us": local.step_us,
            "backlog_us": list(local.backlog_us),
            "tasks": len(local.tasks),
            "operators": len(local.operators),
            "collectives": len(local.collectives),
        }
        for local in step.ranks
    ]


def _ranks(replay: Replayed) -> list[dict[str, object]]:
    return [
        {
            "rank": local.rank,
            "step_us": part.step_us,
            "parts": part.parts,
            "hidden_us": part.hidden_us,
            "gaps": {"row": gaps.row, **{kind.value: us for kind, us in gaps.us.items()}},
        }
        for local, part, gaps in zip(replay.step.ranks, replay.parts, replay.gaps, strict=True)
    ]


def _replayed(replay: Replayed) -> dict[str, object]:
    low_us, high_us = replay.bounds_us or (None, None)
    return {
        "step_us": replay.step_us,
        "low_us": low_us,
        "high_us": high_us,
        "source": replay.source.label,
        "critical_rank": replay.step.ranks[replay.critical_rank].rank,
        "ranks": _ranks(replay),
        "critical_path": _shares(replay.path),
        "operators": _shares(replay.operators),
        "collectives": [total._asdict() for total in collective_totals(replay.step, replay.replay.spans)],
        "waits": [wait._asdict() for wait in waits_between(replay.step, replay.replay.spans)],
    }


def _shares(shares: Sequence[PathShare]) -> list[dict[str, object]]:
    return [
        {
            "operator": share.operator,
            "kind": share.kind,
            "path_us": share.path_us,
            "total_us": share.total_us,
            "tasks": share.calls,
        }
        for share in shares
    ]
