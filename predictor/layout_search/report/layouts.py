"""The page's section on other layouts of the same GPUs: a plot of time over memory, one's own layout in it."""

from __future__ import annotations

from html import escape

from predictor.core.base.quantities import duration
from predictor.core.report.page.charts import OWN, Mark, Point, scatter, scatter_legend
from predictor.core.report.page.parts import section, table
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MemoryVerdict, memory_verdict
from predictor.layout_search.answer import SearchAnswer, Winner
from predictor.layout_search.own_layout import LayoutRank
from predictor.layout_search.rank import described
from predictor.layout_search.report.ranking import bottleneck, why

MEANINGS = {
    Mark.OWN: OWN,
    Mark.FRONT: "no layout is both faster and leaner",
    Mark.PLAIN: "other fast layouts",
}


def ordinal(number: int) -> str:
    """Return an ordinal number.

    >>> ordinal(1), ordinal(12), ordinal(1003)
    ('1st', '12th', '1,003rd')
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def rank_words(own: LayoutRank, verdict: MemoryVerdict | None) -> str:
    """Return a sentence on where one's own layout stands.

    Args:
        own: where it stands.
        verdict: on the memory of its fullest GPU; None where the GPU's memory is not known.
    """
    slower = f"{own.slower:.1%} slower than the fastest"
    if verdict is MemoryVerdict.DOES_NOT_FIT or not own.others:
        what = "does not fit" if verdict is MemoryVerdict.DOES_NOT_FIT else "has none to stand beside"
        return f"Your layout {what}; {own.faster:,} of the {own.others:,} that fit are faster."
    if own.rank == 1:
        return f"Your layout is the fastest of {own.others + 1:,}."
    doubt = ", if it fits" if verdict is MemoryVerdict.MAY_NOT_FIT else ""
    return f"Your layout is {ordinal(own.rank)} of {own.others + 1:,}{doubt}, {slower}."


def against(why: str) -> str:
    """Return why the fastest layout wins, as a sentence that names it: the page is about one's own layout."""
    return f"The fastest, against{why.removeprefix('Against')}" if why.startswith("Against") else why


def layouts(answer: SearchAnswer, own: LayoutRank, memory_bytes: float) -> str:
    """Return the section.

    Args:
        answer: of a search over the same GPUs.
        own: where the predicted layout stands.
        memory_bytes: that the predicted layout takes on its fullest GPU.
    """
    front = {winner.ranked.plan for winner in answer.pareto}
    shown = sorted([*answer.unsure, *answer.winners], key=lambda winner: winner.ranked.step_us)
    everything: list[Winner] = [*shown, *(w for w in answer.pareto if w not in shown)]
    points = [
        Point(
            winner.ranked.memory_bytes / GIB,
            winner.prediction.step.us / 1e6,
            f"{described(winner.ranked.plan)}: {duration(winner.prediction.step.us)}",
            Mark.FRONT if winner.ranked.plan in front else Mark.PLAIN,
        )
        for winner in everything
    ]
    points.append(Point(memory_bytes / GIB, own.step_us / 1e6, f"{OWN}: {duration(own.step_us)}", Mark.OWN))
    rows = [
        [
            duration(winner.prediction.step.us),
            described(winner.ranked.plan),
            f"{duration(winner.prediction.step.low_us)} – {duration(winner.prediction.step.high_us)}",
            f"{winner.ranked.memory_bytes / GIB:.1f}"
            + (", may not fit" if answer.verdict(winner) is MemoryVerdict.MAY_NOT_FIT else ""),
            f"{winner.prediction.mfu:.1%}",
        ]
        for winner in shown
    ]
    rules, ranking = answer.space.rules, answer.ranking
    run_by = "" if rules is None else f" of those that {rules.label} runs"
    counted = f"{ranking.considered:,} layouts{run_by} considered, {ranking.fitting:,} fit into memory."
    words = rank_words(own, memory_verdict(memory_bytes, answer.memory_gib))
    present = {point.mark for point in points}
    return section(
        "Other layouts on the same GPUs",
        f"<p><strong>{escape(words)}</strong></p>",
        f"<p>{escape(counted)} {escape(against(why(answer)))} {escape(bottleneck(answer.winners[0]))}</p>",
        scatter_legend({mark: meaning for mark, meaning in MEANINGS.items() if mark in present}),
        scatter(points, "memory of the fullest GPU, GiB", "step time, s"),
        "<p>Point at a mark to see which layout it is.</p>",
        table(["step", "layout", "90 % interval", "GiB", "MFU"], rows, wraps="layout"),
    )
