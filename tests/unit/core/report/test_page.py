"""The report page and the files of the timeline: complete, well formed, and nothing fetched from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from predictor.__main__ import main
from predictor.core.base.drawing import ticks
from predictor.core.plan.loading import prepare, read_config
from predictor.core.report.page.charts import COLOURS, Bar, Mark, Point, bars, scatter
from predictor.core.report.stage_table import LABELS
from predictor.core.step.breakdown import answers, stage_parts
from predictor.core.step.prediction import predict
from predictor.core.step.spans import step_trace
from predictor.replay.files.execution_trace import read_execution_trace
from tests.unit.examples import full_form, short_form, write

EMPTY = {"meta", "br", "img", "hr", "line", "rect", "circle", "path", "use"}


class _Checker(HTMLParser):
    """Holds a page to balanced tags and to nothing from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert name not in {"src", "href"} or (value or "").startswith("#"), f"{tag} takes {name} from elsewhere"
        assert tag not in {"script", "link", "iframe"}
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


CONFIGS = {
    "pipeline": full_form(parallelism={"pipeline_parallel_size": 4, "data_parallel_size": 2}),
    "one GPU": full_form(),
    "interleaved": full_form(
        parallelism={"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    ),
    "zero bubble": full_form(parallelism={"pipeline_parallel_size": 4, "schedule": "zero_bubble_h1"}),
    "short form": short_form(),
    "data sheet": full_form(system="B200", parallelism={"data_parallel_size": 8, "zero_stage": 3}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_page_is_whole_and_says_what_the_prediction_says(name: str, tmp_path: Path) -> None:
    path, out = write(CONFIGS[name], tmp_path / "c.yml"), tmp_path / "page.html"
    assert main(["report", str(path), "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    checker = _Checker()
    checker.feed(page)
    assert not checker.open
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    loaded = prepare(*read_config(path))
    prediction = predict(loaded.run, loaded.system)
    for stage in range(len(prediction.stages)):
        assert f"stage {stage}" in checker.text
    assert answers(prediction, loaded.system)[0].operator.split(" ")[0] in checker.text
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)


def test_page_with_a_search_lists_other_layouts(tmp_path: Path) -> None:
    path, out = write(CONFIGS["pipeline"], tmp_path / "c.yml"), tmp_path / "page.html"
    assert main(["report", str(path), "--out", str(out), "--search"]) == 0
    page = out.read_text(encoding="utf-8")
    assert "Other layouts on the same GPUs" in page
    assert page.count("<circle") > 5
    assert page.count(f'<path d="M0 -8L8 0L0 8L-8 0z" class="{Mark.OWN}">') == 1
    assert re.search(
        r"Your layout is (the fastest of \d+|\d+(st|nd|rd|th) of \d+, [\d.]+% slower than the fastest)\.", page
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_trace_and_picture_end_with_the_step(name: str, tmp_path: Path) -> None:
    path = write(CONFIGS[name], tmp_path / "c.yml")
    trace, picture = tmp_path / "step.json", tmp_path / "step.svg"
    assert main(["timeline", str(path), "--trace", str(trace), "--svg", str(picture)]) == 0
    loaded = prepare(*read_config(path))
    step_us = predict(loaded.run, loaded.system).modelled_us
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    ended = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert ended == pytest.approx(step_us, rel=1e-6)
    ElementTree.fromstring(picture.read_text(encoding="utf-8"))


def test_timeline_writes_chakra_traces_of_every_stage_and_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = write(CONFIGS["pipeline"], tmp_path / "c.yml"), tmp_path / "chakra"
    assert main(["timeline", str(path), "--chakra", str(folder)]) == 0
    layout = prepare(*read_config(path)).run.layout
    ranks = layout.pipeline_parallel_size * layout.gradient_ranks
    assert f"Chakra traces of {ranks} ranks" in capsys.readouterr().out
    for rank in range(ranks):
        assert read_execution_trace(folder / f"step.{rank}.et").nodes


@pytest.mark.parametrize("name", CONFIGS)
def test_slots_of_a_trace_add_up_to_the_breakdown(name: str, tmp_path: Path) -> None:
    loaded = prepare(*read_config(write(CONFIGS[name], tmp_path / "c.yml")))
    prediction = predict(loaded.run, loaded.system)
    trace = step_trace(prediction)
    parts = stage_parts(prediction)
    for stage, timed in enumerate(parts):
        slots = [slot for slot in trace.slots if slot.rank == stage]
        computing = timed.forward_us + timed.recompute_us + timed.backward_us + timed.host_us
        inside = computing + timed.tensor_parallel_us + timed.context_parallel_us + timed.expert_parallel_us
        inside += timed.pipeline_us - prediction.timeline.communicating[stage]
        inside += timed.data_parallel_exposed_us - prediction.stages[stage].exposed_reduction.us
        assert sum(slot.duration_us for slot in slots) == pytest.approx(inside)
        named = sum(span.duration_us for span in trace.spans if span.rank == stage and span.depth == 1)
        assert named == pytest.approx(inside)


def test_files_that_cannot_be_written_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    absent = str(tmp_path / "absent" / "file")
    for command in (
        ["report", str(path), "--out", absent],
        ["timeline", str(path), "--trace", absent],
        ["timeline", str(path), "--chakra", str(path)],
        ["timeline", str(path)],
    ):
        assert main(command) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("largest", [0.0, 0.003, 1.0, 7.7, 99.0, 1e6])
def test_ticks_reach_the_largest_value_and_are_few(largest: float) -> None:
    marks = ticks(largest)
    assert marks[0] == 0
    assert marks[-1] >= largest
    assert len(marks) <= 8


def test_every_part_of_a_step_has_a_colour() -> None:
    assert set(LABELS.values()) <= COLOURS.keys()


def test_charts_survive_text_that_looks_like_markup() -> None:
    ElementTree.fromstring(bars([Bar("<&>", {"forward": 1.0})], "<ms>", '"label"', limit=2.0))
    ElementTree.fromstring(scatter([Point(1.0, 2.0, "<a & b>", mark) for mark in Mark], "x <", "y &"))


def test_outputs_never_overwrite_inputs_or_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    before = path.read_bytes()
    same = str(tmp_path / "same")
    for command in (
        ["report", str(path), "--out", str(path)],
        ["timeline", str(path), "--trace", str(path)],
        ["timeline", str(path), "--trace", same, "--svg", same],
    ):
        assert main(command) == 2
        assert "name another file" in capsys.readouterr().err
    assert path.read_bytes() == before
