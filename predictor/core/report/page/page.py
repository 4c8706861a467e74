"""The HTML page of a prediction: step time, breakdown, timeline, memory and sources."""

from __future__ import annotations

from collections.abc import Container
from html import escape

from predictor.core.base.quantities import duration, span
from predictor.core.costs.cost import Source
from predictor.core.plan.loading import Loaded
from predictor.core.report.budget import prediction_bill
from predictor.core.report.json_document import notes
from predictor.core.report.page.charts import Bar, bars, interval, legend
from predictor.core.report.page.parts import section, table
from predictor.core.report.page.style import STYLE
from predictor.core.report.stage_table import LABELS
from predictor.core.report.text import header_rows, headline, sources_text
from predictor.core.step.breakdown import BY_BYTES, Answer, StageParts, answers, source_shares, stage_parts
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.prediction import Prediction

LISTED = 40
MEANING = {
    Source.MEASURED: "measured",
    Source.INTERPOLATED: "inside the measured range",
    Source.EXTRAPOLATED: "outside the measured range",
    Source.ANALYTIC: "derived, because no measured row was usable",
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
            answer.source.label,
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
        "source",
        "outside the measured range by",
    ]
    return table(head, rows)


def _meanings(shown: Container[Source]) -> str:
    """Return the meaning of each source."""
    return "; ".join(f"{source.label}: {words}" for source, words in MEANING.items() if source in shown)


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
    against = "".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in headline(prediction, loaded.system))
    meanings = _meanings(source_shares(prediction, loaded.system))
    shares = f"<p>Sources: {escape(sources_text(prediction, loaded.system))} ({escape(meanings)}).</p>"
    said = (
        f"predicted time of a training step on {loaded.system.name}, 90 % interval {duration(step.low_us)} – "
        f"{duration(step.high_us)}"
    )
    return (
        f"<h1>{escape(duration(step.us))} <small>{escape(said)}</small></h1>{against}{shares}"
        f"{interval(step.us, step.low_us, step.high_us)}{whole}<dl>{listed}</dl>"
    )


def page(prediction: Prediction, loaded: Loaded, picture: str, layouts: str = "") -> str:
    """Return the page.

    Args:
        prediction: of a step.
        loaded: its configuration.
        picture: of the pipeline, as SVG, for CONTENT_WIDTH.
        layouts: section on other layouts of the same GPUs; empty without a search.
    """
    system = loaded.system
    parts, memory = stage_parts(prediction), step_memory(prediction.tasks)
    listed = answers(prediction, system)
    limit = system.hardware.gpu.memory_gib
    time_bars, memory_bars = _time_bars(parts), [_memory_bar(i, needed) for i, needed in enumerate(memory)]
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(prediction, loaded, listed))
    sections = [
        section("Where the step goes", legend(time_bars), bars(time_bars, "ms", "time of every stage by part")),
        section("When: the pipeline", f'<div class="scroll">{picture}</div>'),
        section(
            "Memory of one GPU of every stage",
            legend(memory_bars),
            bars(memory_bars, "GiB", "memory of every stage by part", None if limit is None else limit.value),
            ""
            if limit is None
            else f"<p>The line is what a GPU has: {limit.value:.1f} GiB ({escape(limit.source)}).</p>",
        ),
        layouts,
        section(
            "Sources: every operator and collective",
            f"<p>{escape(_meanings({answer.source for answer in listed[:LISTED]}))}.</p>",
            _answer_table(listed, prediction.step.us),
        ),
        section("To know before trusting it", f"<ul>{said}</ul>" if said else "<p>Nothing beyond the above.</p>"),
    ]
    title = f"{duration(prediction.step.us)} on {system.name}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{_headline(prediction, loaded)}{''.join(sections)}</main></body></html>\n"
    )
