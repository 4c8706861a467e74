"""A replayed step as text: time, changes, breakdown, critical path, collectives."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.core.base.quantities import duration, milliseconds
from predictor.core.base.text_table import text_table
from predictor.core.report.text import TITLE, wrapped
from predictor.replay.answer import ReplayAnswer, Replayed
from predictor.replay.bottleneck import LEAST
from predictor.replay.breakdown import PRINTED, RankParts
from predictor.replay.collectives import CollectiveTotals, collective_totals, waits_between
from predictor.replay.critical import PathShare

TOP = 10
NUMBER, SHARE = 11, 9
NARROWEST_LABEL = 16
SMALLEST_PART = 1e-4
MOST_RANKS = 16
SMALLEST_LAG = 0.01  # of a step, by which the steady one differs from it


def render(answer: ReplayAnswer, width: int = 100, top: int = TOP) -> str:
    """Return the answer as a page of text.

    Args:
        answer: to show.
        width: of the output in columns.
        top: operators, moves and collectives to list.
    """
    lines = wrapped([f"{name:{len(TITLE)}}{words}" for name, words in header(answer).items()], width, len(TITLE))
    lines += _changes(answer, width)
    lines += ["", "Where the step goes", *_parts(answer, width)]
    lines += wrapped(_sentences(answer), width, 2)
    lines += ["", *_path(answer, top, width)]
    if answer.after is not None:
        lines += ["", *_moves(answer, top, width)]
    lines += _collectives(answer.shown, top)
    lines += ["", *_operators(answer.shown, top, width)]
    return "\n".join([*lines, *wrapped([f"Note: {note}" for note in answer.notes], width, 6)])


def header(answer: ReplayAnswer) -> dict[str, str]:
    """Return measured step, replay, changed step and the steady one where it differs, each with its title."""
    ranks = answer.before.step.ranks
    first = ranks[0]
    device = first.device_name or first.backend.upper()
    traced = f"{len(ranks)} of {first.world_size} ranks" if first.world_size > 1 else "1 rank"
    before, after = answer.before, answer.after
    own = sorted(local.profiled_us for local in ranks)
    each = f" ({duration(own[0])} to {duration(own[-1])} a rank)" if len(ranks) > 1 else ""
    rows = {"Step time": f"{duration(answer.measured_us)}   measured; {first.label}{each}, {traced}, {device}"}
    if backlog_words(answer):
        rows["Backlog"] = backlog_words(answer)
    rows["Replay"] = f"{duration(answer.replay_us)}   {answer.error_words} beside the measured step"
    in_a_run = "what the step adds to a run of many alike"
    if is_steady(answer):
        rows["Steady"] = f"{duration(before.step_us)}   {in_a_run}"
    if after is not None:
        rows["Changed"] = f"{duration(after.step_us)}   {changed_words(answer)}"
    alone = [] if before.step.is_behind else [replay for replay in (before, after) if replay is not None]
    steady = [(replay.steady_us, replay.step_us) for replay in alone]
    if any(abs(us - step_us) > SMALLEST_LAG * step_us for us, step_us in steady):
        rows["Steady"] = f"{' → '.join(duration(us) for us, _ in steady)}   {in_a_run}"
    return rows


def is_steady(answer: ReplayAnswer) -> bool:
    """Return whether a step among many alike takes another time than the measured one."""
    return abs(answer.before.step_us - answer.replay_us) > SMALLEST_LAG * answer.replay_us


def backlog_words(answer: ReplayAnswer) -> str:
    """Return how far the device of the rank that lags most is behind its host; empty where it hardly is."""
    before, behind = max((local.backlog_us for local in answer.before.step.ranks), key=max)
    if max(before, behind) <= SMALLEST_LAG * answer.measured_us:
        return ""
    return (
        f"not counted: {duration(before)} that the device still ran earlier steps, {duration(behind)} that it ran "
        "this one after the host's end of it"
    )


def changed_words(answer: ReplayAnswer) -> str:
    """Return the ratio of the changed step, with its interval and its source where times are not measured."""
    after = answer.after
    assert after is not None
    words = f"{answer.ratio:.4g} × the {'steady' if is_steady(answer) else 'replayed'} step"
    if after.bounds_us is not None:
        low, high = after.bounds_us
        words += f"   90 % interval {duration(low)} – {duration(high)}   {after.source.label}"
    return words


def _changes(answer: ReplayAnswer, width: int) -> list[str]:
    if not answer.applied:
        return []
    lines = ["", "Changes"]
    for applied in answer.applied:
        what, before, after, notes = applied.touched
        lines += wrapped([f"  {applied.text}: {what}, {duration(before)} → {duration(after)}"], width, 4)
        lines += wrapped([f"    {note}" for note in notes], width, 4)
    return lines


def _table(labels: Sequence[str], columns: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """Return rows with labels to the left and right-aligned columns; labels that are too wide are cut."""
    wide = max(map(len, labels))
    if width:
        numbers = sum(max(map(len, column)) + 2 for column in columns)
        wide = max(min(wide, width - numbers), NARROWEST_LABEL)
    return text_table(list(zip([_cut(label, wide) for label in labels], *columns, strict=True)))


def shown_parts(parts: Sequence[RankParts]) -> list[str]:
    """Return the parts that any rank spends a ten-thousandth of its step in, or more."""
    return [name for name in PRINTED if any(part.parts[name] > SMALLEST_PART * part.step_us for part in parts)]


def _parts(answer: ReplayAnswer, width: int) -> list[str]:
    """Return the breakdown: of every rank, or of the critical rank before and after."""
    before = answer.before
    if answer.after is not None:
        return _before_and_after(answer)
    names = shown_parts(before.parts)
    critical = before.parts[before.critical_rank]
    labels = ["ms", *names, "step"]
    many = len(before.parts) > 1
    share = [
        "share*" if many else "share",
        *(f"{critical.parts[name] / before.step_us:.1%}" for name in names),
        "100.0%",
    ]
    ranks = [
        [
            f"rank {local.rank}" + ("*" if many and at == before.critical_rank else ""),
            *(milliseconds(part.parts[name], before.step_us) for name in names),
            milliseconds(part.step_us, before.step_us),
        ]
        for at, (local, part) in enumerate(zip(before.step.ranks, before.parts, strict=True))
        if at in _shown_ranks(before)
    ]
    room = max(1, (width - max(map(len, labels)) - SHARE) // NUMBER)
    lines: list[str] = []
    for first in range(0, len(ranks), room):
        block = ranks[first : first + room]
        lines += [*([""] if first else []), *_table(labels, [share, *block] if not first else block)]
    return lines


def _shown_ranks(replay: Replayed) -> set[int]:
    """Return the ranks that a table shows: the one that ends the step, and as many of the others as it has room for."""
    others = [at for at in range(len(replay.parts)) if at != replay.critical_rank]
    return {replay.critical_rank, *others[: MOST_RANKS - 1]}


def _before_and_after(answer: ReplayAnswer) -> list[str]:
    before, after = answer.before, answer.shown
    rank = after.critical_rank
    pair = [replay.parts[rank] for replay in (before, after)]
    names = shown_parts(pair)
    labels = [f"ms, rank {after.step.ranks[rank].rank}", *names, "step"]
    columns = [["before", "after", "change"]]
    rows = [[part.parts[name] for part in pair] for name in names] + [[before.step_us, after.step_us]]
    columns += [
        [
            milliseconds(old, after.step_us),
            milliseconds(new, after.step_us),
            milliseconds(new - old, after.step_us, sign="+"),
        ]
        for old, new in rows
    ]
    return _table(labels, list(zip(*columns, strict=True)))


def bottleneck(answer: ReplayAnswer) -> str:
    """Return the part that shortens the step most when it is shorter, and which part did before a change."""
    found, before = answer.shown.bottleneck, answer.before.bottleneck
    if found is None:
        return f"Bottleneck: no part alone; a tenth less of any shortens the step by less than {LEAST:.1%}."
    gain = f"{found.part}; a tenth less of it shortens the step by {found.gain:.1%}"
    if answer.after is None:
        return f"Bottleneck: {gain}."
    if before is None:
        return f"New bottleneck: {gain}; before no part alone did."
    if before.part == found.part:
        return f"Bottleneck as before: {gain}, before by {before.gain:.1%}."
    return f"New bottleneck: {gain}; before it was {before.part}, {before.gain:.1%}."


def _sentences(answer: ReplayAnswer) -> list[str]:
    shown = answer.shown
    parts = shown.parts[shown.critical_rank]
    lines = [bottleneck(answer)]
    if answer.after is not None and shown.critical_rank != answer.before.critical_rank:
        ended = answer.before.step.ranks[answer.before.critical_rank].rank
        lines.append(f"Rank {shown.step.ranks[shown.critical_rank].rank} ends the step; before it was rank {ended}.")
    whole = parts.exposed_us + parts.hidden_us
    if whole:
        share = parts.exposed_us / shown.step_us
        exposed = f"{milliseconds(parts.exposed_us, shown.step_us)} ms of it exposed ({share:.1%} of the step)"
        lines.append(f"Traffic: {milliseconds(whole, shown.step_us)} ms, {exposed}.")
    lines.append(gap_words(shown))
    if answer.after is None:
        lines += ["* the rank that ends the step."] if len(shown.parts) > 1 else []
        hidden = len(shown.parts) - MOST_RANKS
        lines += [f"{hidden} more ranks: --json has all."] if hidden > 0 else []
    return lines


def gap_words(shown: Replayed) -> str:
    """Return why the busiest row of the rank that ends the step was idle."""
    row, us = shown.gaps[shown.critical_rank]
    listed = [f"{milliseconds(idle, shown.step_us)} ms {kind.value}" for kind, idle in us.items() if idle > 0.0]
    whole = sum(us.values())
    if not listed:
        return f"Gaps of {row}: none."
    share = whole / shown.step_us
    return f"Gaps of {row}: {milliseconds(whole, shown.step_us)} ms ({share:.1%} of the step): {', '.join(listed)}."


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def path_cells(share: PathShare, step_us: float) -> list[str]:
    """Return the cells of a row of the critical path."""
    return [
        share.kind,
        f"{share.path_us / 1e3:,.3f}",
        f"{share.path_us / step_us:.1%}",
        f"{share.total_us / 1e3:,.3f}",
        f"{share.calls:,}",
    ]


PATH_HEAD = ["kind", "ms on it", "of step", "ms in all", "tasks"]


def _path(answer: ReplayAnswer, top: int, width: int) -> list[str]:
    shown = answer.shown
    listed = shown.path[:top]
    labels = ["Critical path", *(f"  {share.operator}" for share in listed)]
    rows = [PATH_HEAD, *(path_cells(share, shown.step_us) for share in listed)]
    lines = _table(labels, list(zip(*rows, strict=True)), width)
    rest = shown.path[top:]
    if rest:
        lines.append(f"  and {len(rest)} more, {sum(share.path_us for share in rest) / 1e3:,.3f} ms")
    return lines


OPERATOR_HEAD = ["kind", "ms in all", "of step", "ms on the path"]


def operator_cells(share: PathShare, step_us: float) -> list[str]:
    """Return the cells of a row of operators."""
    total = [milliseconds(share.total_us, step_us), f"{share.total_us / step_us:.1%}"]
    return [share.kind, *total, milliseconds(share.path_us, step_us)]


def _operators(shown: Replayed, top: int, width: int) -> list[str]:
    """Return the operators with the most time in all, on the path or not."""
    listed = shown.operators[:top]
    labels = ["Operators of a rank", *(f"  {share.operator}" for share in listed)]
    rows = [OPERATOR_HEAD, *(operator_cells(share, shown.step_us) for share in listed)]
    return _table(labels, list(zip(*rows, strict=True)), width)


def _moves(answer: ReplayAnswer, top: int, width: int) -> list[str]:
    if not answer.moves:
        return ["Nothing moved on the critical path."]
    listed = answer.moves[:top]
    labels = ["What moved on the critical path", *(f"  {move.operator}" for move in listed)]
    rows = [["kind", "", "before, µs", "after, µs", "change, µs"]]
    rows += [
        [move.kind, move.how, f"{move.before_us:,.1f}", f"{move.after_us:,.1f}", f"{move.change_us:+,.1f}"]
        for move in listed
    ]
    more = len(answer.moves) - len(listed)
    return _table(labels, list(zip(*rows, strict=True)), width) + ([f"  and {more} more, each smaller"] if more else [])


COLLECTIVE_HEAD = ["calls", "MB", "ms", "waiting, ms", "for"]


def collective_cells(total: CollectiveTotals) -> list[str]:
    """Return the cells of a row of collectives."""
    size = f"{total.size_bytes / 1e6:,.2f}" if total.size_bytes else "-"
    waiting = "-" if total.waiting_us is None else f"{total.waiting_us / 1e3:,.3f}"
    return [f"{total.calls:,}", size, f"{total.us / 1e3:,.3f}", waiting, total.part]


def _collectives(replay: Replayed, top: int) -> list[str]:
    totals = collective_totals(replay.step, replay.replay.spans)
    if not totals:
        return []
    listed = totals[:top]
    labels = ["Collectives of a rank", *(f"  {total.name}" for total in listed)]
    rows = [COLLECTIVE_HEAD, *map(collective_cells, listed)]
    return ["", *_table(labels, list(zip(*rows, strict=True))), *wait_lines(replay, top)]


def wait_lines(replay: Replayed, top: int) -> list[str]:
    """Return who waits for whom in collectives, a line each."""
    return [
        f"Collectives of rank {wait.rank} wait {milliseconds(wait.us, replay.step_us)} ms for rank {wait.waited_for}, "
        "beside other work or not."
        for wait in waits_between(replay.step, replay.replay.spans)[:top]
        if wait.us > SMALLEST_PART * replay.step_us
    ]
