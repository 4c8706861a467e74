"""The HTML page of a prediction: step time, breakdown, timeline, memory and sources."""

from __future__ import annotations

from html import escape

from predictor.configuration.loading import Loaded
from predictor.costs.cost import Source
from predictor.report.budget import prediction_bill
from predictor.report.json_document import notes
from predictor.report.page.charts import Bar, Point, bars, interval, legend, scatter
from predictor.report.page.style import STYLE
from predictor.report.ranking import bottleneck, why
from predictor.report.text import LABELS, duration, header_rows, span
from predictor.search.answer import SearchAnswer, Winner
from predictor.search.rank import described
from predictor.step.breakdown import BY_BYTES, Answer, StageParts, answers, stage_parts
from predictor.step.fit import Fit
from predictor.step.memory import GIB, StageMemory, step_memory
from predictor.step.prediction import Prediction

LISTED = 40
STRENGTHS = {
    Source.MEASURED: "measured",
    Source.INTERPOLATED: "inside what was measured",
    Source.EXTRAPOLATED: "beyond what was measured",
    Source.ANALYTIC: "derived, not measured",
}


def _time_bars(parts: list[StageParts]) -> list[Bar]:
    return [
        Bar(f"stage {i}", {LABELS[name]: getattr(stage, name) / 1e3 for name in LABELS if getattr(stage, name) > 50.0})
        for i, stage in enumerate(parts)
    ]


def _memory_bar(i: int, memory: StageMemory) -> Bar:
    sizes = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer states": memory.optimizer,
        "activations": memory.activations,
        "at work": memory.working,
        "buffers": memory.buffers,
        "allowance": memory.allowance,
    }
    return Bar(f"stage {i}", {name: size / GIB for name, size in sizes.items()})


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; cells are text."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _outside(answer: Answer) -> str:
    if answer.source is Source.ANALYTIC or answer.outside is None:
        return ""
    if answer.outside == "operator":
        return f"transferred from {answer.donor}"
    return answer.outside if answer.factor is None else f"{answer.outside} {answer.factor:.3g} ×"


def _answer_table(listed: list[Answer], step_us: float) -> str:
    rows = [
        [
            answer.operator.removesuffix(BY_BYTES) + (", by its bytes" if answer.operator.endswith(BY_BYTES) else ""),
            answer.direction,
            f"{answer.step_us / 1e3:,.1f}",
            f"{answer.step_us / step_us:.1%}",
            f"± {answer.width_us / 2 / 1e3:,.1f}",
            STRENGTHS[answer.source],
            _outside(answer),
        ]
        for answer in listed[:LISTED]
    ]
    head = [
        "operator or collective",
        "pass",
        "ms of the step",
        "share",
        "half its interval, ms",
        "foundation",
        "outside",
    ]
    return _table(head, rows)


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def _search_section(answer: SearchAnswer) -> str:
    """Return the layouts of a search: a plot of time over memory, and the fastest ones as a table."""
    front = {winner.ranked.plan for winner in answer.pareto}
    everything: list[Winner] = [*answer.winners, *(w for w in answer.pareto if w not in answer.winners)]
    points = [
        Point(
            winner.ranked.memory_bytes / GIB,
            winner.prediction.step.us / 1e6,
            f"{described(winner.ranked.plan)}: {duration(winner.prediction.step.us)}",
            winner.ranked.plan in front,
        )
        for winner in everything
    ]
    rows = [
        [
            duration(winner.prediction.step.us),
            f"{duration(winner.prediction.step.low_us)} – {duration(winner.prediction.step.high_us)}",
            f"{winner.ranked.memory_bytes / GIB:.1f}{', may not fit' if answer.fit(winner) is Fit.MAY_NOT_FIT else ''}",
            f"{winner.prediction.mfu:.1%}",
            described(winner.ranked.plan),
        ]
        for winner in answer.winners
    ]
    counted = f"{answer.ranking.considered:,} layouts considered, {answer.ranking.fitting:,} fit into memory."
    return _section(
        "Other layouts on the same GPUs",
        f"<p>{escape(counted)} {escape(why(answer))} {escape(bottleneck(answer.winners[0]))}</p>",
        scatter(points, "memory of the fullest GPU, GiB", "step time, s"),
        "<p>Filled: no layout is both faster and leaner. Point at a dot to see what it is.</p>",
        _table(["step", "90 % interval", "GiB", "MFU", "layout"], rows),
    )


def _headline(prediction: Prediction, loaded: Loaded) -> str:
    step = prediction.step
    rows = header_rows(prediction, loaded)
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows.items() if name != "Step time"
    )
    bill = prediction_bill(prediction, loaded)
    whole = ""
    if loaded.budget.train_tokens is not None:
        tokens = f"{loaded.budget.train_tokens:.3g} tokens"
        whole = f"<p>{tokens} take {escape(span(bill.hours))}, {bill.gpu_hours:,.0f} GPU-hours.</p>"
    weakest = f"<p>Its weakest part is {escape(STRENGTHS[step.source])}.</p>"
    return (
        f"<h1>{escape(duration(step.us))} <small>a step, 90 % interval {escape(duration(step.low_us))} – "
        f"{escape(duration(step.high_us))}</small></h1>{weakest}{interval(step.us, step.low_us, step.high_us)}"
        f"{whole}<dl>{listed}</dl>"
    )


def page(prediction: Prediction, loaded: Loaded, picture: str, search_answer: SearchAnswer | None = None) -> str:
    """Return the page.

    Args:
        prediction: of a step.
        loaded: its configuration.
        picture: of the pipeline, as SVG.
        search_answer: a search over the same GPUs; None without one.
    """
    system = loaded.system
    parts, memory = stage_parts(prediction), step_memory(prediction.tasks)
    listed = answers(prediction, system)
    limit = system.hardware.gpu.memory_gib
    time_bars, memory_bars = _time_bars(parts), [_memory_bar(i, needed) for i, needed in enumerate(memory)]
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(prediction, loaded, listed))
    sections = [
        _section("Where the step goes", legend(time_bars), bars(time_bars, "ms", "time of every stage by part")),
        _section("When: the pipeline", f'<div class="scroll">{picture}</div>'),
        _section(
            "Memory of one GPU of every stage",
            legend(memory_bars),
            bars(memory_bars, "GiB", "memory of every stage by part", None if limit is None else limit.value),
            ""
            if limit is None
            else f"<p>The line is what a GPU has: {limit.value:.1f} GiB ({escape(limit.source)}).</p>",
        ),
        _search_section(search_answer) if search_answer is not None else "",
        _section("How well founded: every operator and collective", _answer_table(listed, prediction.step.us)),
        _section("To know before trusting it", f"<ul>{said}</ul>" if said else "<p>Nothing beyond the above.</p>"),
    ]
    title = f"{duration(prediction.step.us)} on {system.name}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{_headline(prediction, loaded)}{''.join(sections)}</main></body></html>\n"
    )
