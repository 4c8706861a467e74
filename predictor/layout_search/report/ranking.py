"""Report search results as text, JSON and CSV: ranking, why the first layout wins, its bottleneck."""

from __future__ import annotations

import csv
from io import StringIO
from typing import Any

from predictor.core.base.quantities import duration, span
from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.plan.framework_rules import RULES
from predictor.core.report.json_document import slow_network_notes
from predictor.core.report.not_modelled import not_modelled_note
from predictor.core.report.stage_table import LABELS
from predictor.core.report.text import above_published, wrapped
from predictor.core.step.breakdown import StageParts, answers
from predictor.core.step.composition import MACHINE_SPREAD
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MEMORY_ERROR, MemoryVerdict
from predictor.layout_search.answer import SearchAnswer, Winner, layout_fields
from predictor.layout_search.rank import described, experts_split, offloaded, recomputed, shared
from predictor.layout_search.report.search_bill import training_notes, training_of
from predictor.layout_search.watch import INTERRUPTED

FORMAT = "estimate-train-time/search/1"
NO_BOTTLENECK = ("forward_us", "backward_us", "optimizer_us", "not_modelled_us")
# Remedy for the largest part of the step beside computation.
REMEDIES = {
    "recompute_us": "more memory would spare recomputing",
    "tensor_parallel_us": "faster links inside a node, or less tensor parallelism, would help most",
    "context_parallel_us": "faster links between context-parallel ranks would help most",
    "expert_parallel_us": "faster links between the ranks that share experts would help most",
    "pipeline_us": "faster links between stages would help most",
    "host_link_us": "fewer layers whose activations are offloaded would help most",
    "host_us": "fewer or fused kernels would help most",
    "bubble_us": "more micro-batches (a larger global batch) or fewer stages would help most",
    "data_parallel_exposed_us": "a faster network, or more micro-batches between reductions, would help most",
    "parameter_gather_us": "a faster network would help most",
    "waiting_us": "a more even split of the layers would help most",
}


def _summary(answer: SearchAnswer, winner: Winner) -> dict[str, Any]:
    step, training = winner.prediction.step, training_of(answer, winner)
    whole = {} if training is None else {"training": training.as_dict()}
    return {
        "time_us": step.us,
        "low_us": step.low_us,
        "high_us": step.high_us,
        "source": step.source.label,
        "modelled_us": winner.prediction.modelled_us,
        "memory_gib": winner.ranked.memory_bytes / GIB,
        "fit": answer.verdict(winner),
        "mfu": winner.prediction.mfu,
        "tokens_per_s": winner.prediction.tokens_per_second,
        **whole,
        "frameworks": [rules.name for rules in RULES.values() if answer.space.runs(winner.ranked.plan, rules)],
        "layout": layout_fields(winner.ranked.plan),
    }


def _json_parts(parts: StageParts) -> dict[str, float]:
    return parts.as_dict(with_host_link=parts.host_link_us > 0.0)


def to_json(answer: SearchAnswer) -> dict[str, Any]:
    """Return the search for machines."""
    return {
        "format": FORMAT,
        "system": answer.system.name,
        "num_gpus": answer.space.num_gpus,
        "global_batch_size": answer.space.global_batch_size,
        "framework": None if answer.space.rules is None else answer.space.rules.name,
        "memory_gib": answer.memory_gib,
        "considered": answer.ranking.considered,
        "fitting": answer.ranking.fitting,
        "replayed": answer.ranking.replayed,
        "layouts": [
            {**_summary(answer, winner), "parts": _json_parts(winner.parts), "twins": _near_duplicates(winner)}
            for winner in answer.winners
        ],
        "unsure": [_summary(answer, winner) for winner in answer.unsure],
        "pareto": [_summary(answer, winner) for winner in answer.pareto],
        "why": why(answer),
        "bottleneck": bottleneck(answer.winners[0]),
        "notes": list(notes(answer)),
    }


def _near_duplicates(winner: Winner) -> list[dict[str, Any]]:
    """Return the near-duplicates of a layout, each with its step and what differs, null where it lacks a key."""
    own = layout_fields(winner.ranked.plan)
    found = []
    for near in winner.near_duplicates:
        other = layout_fields(near.plan)
        differs = {key: other.get(key) for key in {**own, **other} if other.get(key) != own.get(key)}
        time_us, memory_gib = near.step_us * winner.prediction.ratio, near.memory_bytes / GIB
        found.append({"time_us": time_us, "memory_gib": memory_gib, "layout": differs})
    return found


def above(answer: SearchAnswer) -> list[str]:
    """Return the sentences above the table: the search's end, what is not modelled, what speaks against its times."""
    fastest = answer.winners[0].prediction
    added, mfu = not_modelled_note(fastest), above_published(fastest, answer.system)
    interrupted = [] if answer.ranking.is_complete else [INTERRUPTED]
    return [*interrupted, *([] if added is None else [added]), *([] if mfu is None else [f"Layout 1: {mfu}"])]


def notes(answer: SearchAnswer) -> tuple[str, ...]:
    """Return the caveats of a ranking: what speaks against it, then the fastest layout's network and whole training."""
    fastest = answer.winners[0].prediction
    layout, known = fastest.run.layout, answers(fastest, answer.system)
    leaves = layout.num_gpus > layout.reach
    slow = slow_network_notes(answer.system, known, fastest.step.us, leaves)
    return (*above(answer), *answer.notes, *slow, *training_notes(answer))


def to_csv(answer: SearchAnswer) -> str:
    """Return the fastest layouts as a table, a line each."""
    text = StringIO()
    rows = [
        {**row, **row.pop("training", {}), **row.pop("layout")}
        for row in (_summary(answer, winner) for winner in answer.winners)
    ]
    lists = ("frameworks", "recompute_modules")
    rows = [{**row, **{key: " ".join(row[key]) for key in lists}} for row in rows]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _parts(parts: StageParts) -> dict[str, float]:
    return {name: getattr(parts, name) for name in LABELS}


def why(answer: SearchAnswer) -> str:
    """Return why the fastest layout is faster than the next layout of other parallel sizes."""
    first = answer.winners[0]
    others = (w for w in answer.winners[1:] if w.ranked.plan.degrees != first.ranked.plan.degrees)
    other = next(others, None)
    if other is None:
        return "No other way to spread the model is among those shown."
    parts, others_parts = _parts(first.parts), _parts(other.parts)
    more_us = {name: parts[name] - others_parts[name] for name in LABELS}
    *others_us, largest = sorted(LABELS, key=more_us.__getitem__)
    gains = [f"{LABELS[name]} −{-more_us[name] / 1e3:,.0f} ms" for name in others_us[:2] if more_us[name] < -500.0]
    losses = [f"{LABELS[largest]} +{more_us[largest] / 1e3:,.0f} ms"] if more_us[largest] > 500.0 else []
    difference = ", ".join([*gains, *losses]) or "less than half a millisecond in any one part"
    slower = other.prediction.step.us / first.prediction.step.us - 1.0
    close = f"; {slower:.1%} apart is less than one GPU model differs between machines, so try both"
    return f"Against {described(other.ranked.plan)}: {difference}{close if slower < MACHINE_SPREAD else ''}."


def bottleneck(winner: Winner) -> str:
    """Return the largest part of a layout's step beside computation, and its remedy."""
    parts = {name: us for name, us in _parts(winner.parts).items() if name not in NO_BOTTLENECK}
    name = max(parts, key=parts.__getitem__)
    share = parts[name] / winner.prediction.step.us
    if share < 0.01:
        return "Nothing but computing takes as much as 1 % of the step."
    return f"Next bottleneck: {LABELS[name]}, {share:.1%} of the step; {REMEDIES[name]}."


COLUMNS = ("step", "90 % interval", "source", "GiB", "MFU", "tp", "pp", "dp", "cp", "ep", "b", "m")


def _training_columns(answer: SearchAnswer) -> list[str]:
    """Return the columns on the whole training, where the search was told of it."""
    if answer.budget.train_tokens is None:
        return []
    return ["training"] if answer.budget.price_per_gpu_hour is None else ["training", "price"]


def _training_cells(answer: SearchAnswer, winner: Winner) -> list[str]:
    """Return the cells of these columns."""
    training = training_of(answer, winner)
    if training is None:
        return []
    return [span(training.hours), *([] if training.price is None else [f"{training.price:,.0f}"])]


def _cells(answer: SearchAnswer, winner: Winner) -> list[str]:
    plan, step = winner.ranked.plan, winner.prediction.step
    degrees = plan.degrees
    return [
        duration(step.us),
        f"{duration(step.low_us)} – {duration(step.high_us)}",
        step.source.label,
        *_training_cells(answer, winner),
        f"{winner.ranked.memory_bytes / GIB:.1f}",
        f"{winner.prediction.mfu:.1%}",
        *map(str, (degrees.tensor, degrees.pipeline, degrees.data, degrees.context, degrees.expert)),
        str(plan.micro_batch_size),
        str(plan.num_micro_batches),
    ]


def _rest(answer: SearchAnswer, winner: Winner) -> str:
    """Return the choices of a layout that no column has, whether it may not fit, and its near-duplicates."""
    plan, layers = winner.ranked.plan, winner.prediction.run.layers_per_stage
    words = ["uneven layers"] if len(set(layers)) > 1 else []
    if plan.degrees.pipeline > 1:
        words.append(plan.schedule + (f" × {plan.num_chunks}" if plan.num_chunks > 1 else ""))
    words.append(shared(plan))
    if plan.recompute != "none":
        words.append(f"recompute {recomputed(plan)}")
    words += offloaded(plan)
    words += ["sequence parallel"] if plan.sequence_parallel else []
    words += [experts] if (experts := experts_split(plan)) else []
    if answer.space.rules is None and not any(answer.space.runs(plan, rules) for rules in RULES.values()):
        words.append("outside every framework's rules")
    words += ["may not fit"] if answer.verdict(winner) is MemoryVerdict.MAY_NOT_FIT else []
    return ", ".join(words) + (f"; and {len(winner.near_duplicates)} like it" if winner.near_duplicates else "")


def table(answer: SearchAnswer, winners: list[Winner]) -> list[str]:
    """Return layouts as aligned lines."""
    head = ["#", *COLUMNS, ""]
    head[4:4] = _training_columns(answer)
    rows = [[str(i + 1), *_cells(answer, winner), _rest(answer, winner)] for i, winner in enumerate(winners)]
    return text_table([head, *rows], left=(-1,))


def _unsure(answer: SearchAnswer, width: int) -> list[str]:
    """Return the faster layouts that may not fit as lines; none where there are none."""
    if not answer.unsure:
        return []
    first, fastest = answer.winners[0].ranked.step_us, answer.unsure[0].ranked.step_us
    said = (
        f"Up to {1.0 - fastest / first:.1%} faster, but they may not fit, as measured peaks are met within "
        f"{MEMORY_ERROR:.0%}:"
    )
    return ["", *wrapped([said], width, 2), *table(answer, answer.unsure)]


def render(answer: SearchAnswer, width: int = 100) -> str:
    """Return the search as a page of text; its sentences no longer than ``width``, its table as wide as it is."""
    ranking, space = answer.ranking, answer.space
    of = "" if answer.memory_gib is None else f" of {answer.memory_gib:.1f} GiB"
    asked_for = f"{counted(space.global_batch_size, 'sample')} of {space.model.sequence_length:,} tokens a step"
    counts = f"{ranking.considered:,} layouts considered, {ranking.fitting:,} fit, {ranking.replayed:,} replayed"
    runs_on = "" if space.rules is None else f", run by {space.rules.label}"
    first = above(answer)
    lines = [
        f"{counted(space.num_gpus, 'GPU')} of {answer.system.name}{of}, {asked_for}{runs_on}",
        counts,
        *wrapped(first, width, 2),
        "",
        *table(answer, answer.winners),
        *_unsure(answer, width),
        "",
        *wrapped([why(answer), bottleneck(answer.winners[0])], width, 2),
    ]
    if answer.pareto:
        lines += ["", "No layout is both faster and leaner than one of these:", *table(answer, answer.pareto)]
    said = notes(answer)[len(first) :]
    lines += ["", *wrapped([f"Note: {note}" for note in said], width, 6)] if said else []
    return "\n".join(lines)
