"""The picture of a step: well-formed, inside its frame, with everything that the step has."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.picture import COLOURS, picture, shade
from predictor.core.timeline.pipeline import pipeline_tasks
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.spans import parts_of
from predictor.core.timeline.step_end import StageEnd, ending_tasks
from predictor.core.timeline.trace import RECOMPUTE, StepTrace
from tests.property.test_schedules import Case, cases
from tests.unit.core.timeline.test_trace import traced

SVG = "{http://www.w3.org/2000/svg}"
SHAPE = re.compile(r"M(?P<x>[-\d.]+) (?P<y>[-\d.]+)h(?P<width>[-\d.]+)v(?P<height>[-\d.]+)H[-\d.]+z")


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def shapes(svg: str, fill: str) -> list[re.Match[str]]:
    """Return the rectangles of one colour."""
    paths = (path for path in ET.fromstring(svg).iter(f"{SVG}path") if path.get("fill") == fill)
    return [shape for path in paths for shape in SHAPE.finditer(path.get("d") or "")]


def step(name: str, stages: int, micro_batches: int, chunks: int = 1, blocking: bool = False) -> StepTrace:
    schedule = SCHEDULES[name]
    one, two = [[1000.0] * chunks] * stages, [[2000.0] * chunks] * stages
    case = (schedule, micro_batches, one, two, one if schedule.splits_backward else [], 50.0, blocking)
    tasks = pipeline_tasks(*case)
    ends = [StageEnd(900.0, 3, 600.0, 0.0, 400.0, 200.0, 0.0)] * stages
    graph = replay_graph(tasks + ending_tasks(tasks, ends, blocking))
    return StepTrace("a run", graph.makespan_us, graph.spans, blocking)


@settings(max_examples=50)
@given(cases())
def test_a_picture_is_well_formed_and_inside_its_frame(case: Case) -> None:
    svg = picture(traced(case), width=900)
    root = ET.fromstring(svg)
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for shape in SHAPE.finditer(svg):
        assert 0 <= float(shape["x"]) <= float(shape["x"]) + float(shape["width"]) <= width
        assert 0 <= float(shape["y"]) <= float(shape["y"]) + float(shape["height"]) <= height


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_slot_is_drawn_once(name: str) -> None:
    chunks = 2 if SCHEDULES[name].chunks else 1
    trace = step(name, 4, 8, chunks)
    svg = picture(trace)
    for kind in SCHEDULES[name].passes:
        for chunk in range(chunks):
            colour = shade(COLOURS[{0: "forward", 1: "backward", 2: "weight gradient"}[kind]], chunk, chunks)
            assert len(shapes(svg, colour)) == 4 * 8


def test_a_slot_is_as_long_as_it_takes() -> None:
    trace = step("1f1b", 2, 2)
    svg = picture(trace, width=1000)
    widths = {float(shape["width"]) for colour in ("forward", "backward") for shape in shapes(svg, COLOURS[colour])}
    assert len(widths) == 2
    assert max(widths) == pytest.approx(2 * min(widths), rel=1e-3)
    assert min(widths) == pytest.approx(1000.0 * (1000 - 80) / trace.step_us, rel=1e-3)


def test_numbers_stand_where_they_fit() -> None:
    numbered = [text for text in texts(picture(step("1f1b", 4, 8))) if text.isdecimal()]
    assert {str(i) for i in range(8)} <= set(numbered)
    large = picture(step("1f1b", 64, 128))
    assert not ET.fromstring(large).findall(f".//{SVG}g[@class='number']/{SVG}text")
    assert len(large) < 1_500_000


def test_the_title_has_the_step_and_is_escaped() -> None:
    svg = picture(replace(step("1f1b", 2, 2), title="<70B> & more"))
    assert "<70B> & more: 10.0 ms" in texts(svg)
    assert ET.fromstring(svg).get("aria-label") == "<70B> & more: 10.0 ms"
    long = picture(replace(step("1f1b", 2, 2), title="long " * 40))
    assert "10.0 ms" in texts(long)


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    plain = texts(picture(step("1f1b", 2, 2)))
    assert {"forward", "backward", "data-parallel traffic", "optimizer", "idle"} <= set(plain)
    assert not {"weight gradient", RECOMPUTE, "message between stages"} & set(plain)
    assert "weight gradient" in texts(picture(step("zero_bubble_h1", 2, 2)))
    assert "message between stages" in texts(picture(step("1f1b", 2, 2, blocking=True)))
    assert "chunks 0 to 2: dark to light" in texts(picture(step("interleaved_1f1b", 2, 2, 3)))
    trace = step("1f1b", 2, 2)
    backwards = [slot for slot in trace.slots if slot.details["pass"] == "backward"]
    recomputed = [part for slot in backwards for part in parts_of(slot, [(RECOMPUTE, 1000.0)])]
    again = picture(replace(trace, spans=[*trace.spans, *recomputed]))
    assert RECOMPUTE in texts(again)
    assert len(shapes(again, "url(#recompute)")) == 4


def test_the_axis_is_in_milliseconds_and_reaches_the_end() -> None:
    trace = step("1f1b", 4, 16)
    labels = texts(picture(trace))
    assert "time, ms" in labels
    ticks = [float(text) for text in labels[: labels.index("time, ms")] if text.replace(".", "").isdecimal()]
    end = trace.step_us / 1000
    assert max(tick for tick in ticks if tick <= end) > 0.8 * end


def test_chunks_get_lighter() -> None:
    assert shade("#000000", 0, 1) == "#000000"
    shades = [shade("#0072b2", chunk, 4) for chunk in range(4)]
    assert shades[0] == "#0072b2"
    assert shades == sorted(shades)


def test_reductions_beside_slots_are_thin() -> None:
    svg = picture(step("1f1b", 2, 2))
    heights = sorted({float(shape["height"]) for shape in shapes(svg, COLOURS["data-parallel traffic"])})
    assert len(heights) == 2
    assert heights[0] == pytest.approx(heights[1] / 4, rel=0.01)


@pytest.mark.parametrize("micro_batches", [2_000, 4_000])
def test_slots_too_narrow_to_tell_apart_are_drawn_once_in_each_column(micro_batches: int) -> None:
    stages, width = 2, 900
    svg = picture(step("1f1b", stages, micro_batches), width)
    drawn = [shape for colour in set(COLOURS.values()) for shape in shapes(svg, colour)]
    assert stages * width < len(drawn) <= stages * 2 * width
    assert max(float(shape["x"]) + float(shape["width"]) for shape in drawn) > 0.9 * width
