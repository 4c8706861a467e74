"""A mixed job as text and as JSON, format ``estimate-train-time/mixed/1``; times in microseconds.

format
step_us, low_us, high_us   of the ranks as traced; the interval is null where no trace was moved to another GPU
ranks       rank, asked (TRACE or TRACE@GPU), device, step_us, busy_us, waiting_us, communicating_us, idle_us
waits       rank, for_rank, us
collectives name, group, size_bytes, last_rank, waits_us by rank, start_us, end_us
balance     null where no samples were given; else
  even, split               samples of each rank
  even_step_us, step_us     replayed with them
  ranks                     fixed_us, per_sample_us, source, local_us of the split
notes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from predictor.core.base.quantities import duration
from predictor.core.base.words import counted
from predictor.core.report.text import TITLE, wrapped
from predictor.replay.whatif.batch_split import Balance
from predictor.replay.whatif.mixed_question import MixedAnswer

FORMAT = "estimate-train-time/mixed/1"
PARTS = ("step_us", "busy_us", "waiting_us", "communicating_us", "idle_us")
LEAST_WAIT_US = 0.5  # that is worth a line
MOST_RANKS = 64  # that a table lists; --json has all


def render(answer: MixedAnswer, width: int = 100) -> str:
    """Return the answer as a page of text."""
    replay = answer.replay
    step = f"{'Step time':{len(TITLE)}}{duration(replay.step_us)}   predicted; {counted(len(replay.ranks), 'rank')}"
    if answer.bounds_us is not None:
        step += f", {duration(answer.bounds_us[0])} to {duration(answer.bounds_us[1])} by the other GPUs' intervals"
    lines = [*wrapped([step], width, len(TITLE)), "", *_ranks(answer), "", *_waits(answer)]
    if answer.balance is not None:
        lines += ["", *_split(answer.balance)]
    return "\n".join([*lines, *wrapped([f"Note: {note}" for note in answer.notes], width, 6)])


def _ranks(answer: MixedAnswer) -> Iterator[str]:
    widest = max(6, *(len(device) for device in answer.devices))
    head = "".join(f"{name:>12}" for name in ("step", "busy", "waiting", "traffic", "idle"))
    yield f"rank  {'device':{widest}}{head}"
    for rank, device in list(zip(answer.replay.ranks, answer.devices, strict=True))[:MOST_RANKS]:
        times = "".join(f"{duration(getattr(rank, part)):>12}" for part in PARTS)
        yield f"{rank.rank:4}  {device:{widest}}{times}"


def _waits(answer: MixedAnswer) -> Iterator[str]:
    waits = sorted(answer.replay.waited_for_us().items(), key=lambda wait: -wait[1])
    shown = [(pair, us) for pair, us in waits if us >= LEAST_WAIT_US]
    if not shown:
        yield "No rank waits for another one."
    for (waiting, last), us in shown[:MOST_RANKS]:
        met = [item for item in answer.replay.collectives if waiting in item.waits_us]
        times = sum(item.last_rank == last and item.waits_us[waiting] > 0.0 for item in met)
        yield f"Rank {waiting} waits {duration(us)} for rank {last}, at {times} of its {len(met)} collectives."


def _split(balance: Balance) -> Iterator[str]:
    ratio = balance.after.step_us / balance.before.step_us
    title = f"Split of {sum(balance.split)} samples: {duration(balance.after.step_us)}, {ratio:.3g} × the even split's"
    yield f"{title}; ranks start together"
    yield f"rank{'even':>9}{'split':>9}{'fixed':>12}{'per sample':>12}{'local':>12}"
    rows = zip(balance.even, balance.split, balance.times, strict=True)
    for rank, (even, split, time) in enumerate(list(rows)[:MOST_RANKS]):
        times = (time.fixed_us, time.per_sample_us, time.at(split))
        yield f"{rank:4}{even:9}{split:9}{''.join(f'{duration(us):>12}' for us in times)}"
    for source in dict.fromkeys(time.source for time in balance.times):
        yield f"Local times: {source}."


def to_json(answer: MixedAnswer) -> dict[str, Any]:
    """Return the document."""
    low, high = answer.bounds_us or (None, None)
    replay = answer.replay
    return {
        "format": FORMAT,
        "step_us": replay.step_us,
        "low_us": low,
        "high_us": high,
        "ranks": [
            {
                "rank": rank.rank,
                "asked": device,
                "device": rank.device_name,
                **{part: getattr(rank, part) for part in PARTS},
            }
            for rank, device in zip(replay.ranks, answer.devices, strict=True)
        ],
        "waits": [{"rank": pair[0], "for_rank": pair[1], "us": us} for pair, us in replay.waited_for_us().items()],
        "collectives": [
            {
                "name": item.collective.name,
                "group": item.collective.group,
                "size_bytes": item.collective.size_bytes,
                "last_rank": item.last_rank,
                "waits_us": {str(rank): us for rank, us in item.waits_us.items()},
                "start_us": item.start_us,
                "end_us": item.end_us,
            }
            for item in replay.collectives
        ],
        "balance": None if answer.balance is None else _balance(answer.balance),
        "notes": list(answer.notes),
    }


def _balance(balance: Balance) -> dict[str, Any]:
    return {
        "even": list(balance.even),
        "split": list(balance.split),
        "even_step_us": balance.before.step_us,
        "step_us": balance.after.step_us,
        "ranks": [
            {
                "fixed_us": time.fixed_us,
                "per_sample_us": time.per_sample_us,
                "source": time.source,
                "local_us": time.at(samples),
            }
            for time, samples in zip(balance.times, balance.split, strict=True)
        ],
    }
