"""The page of verified runs: well formed, self-contained, with both timelines of every run on one axis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from predictor.core.report.page.parity import ParityPoint, log_ticks, parity
from predictor.core.timeline.picture import picture
from predictor.core.timeline.pipeline import Stream
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import StepTrace
from predictor.evidence.verification.answer import Failed, Verification
from predictor.evidence.verification.configurations import configured
from predictor.evidence.verification.page import measured_trace, page
from predictor.evidence.verification.runs import Verified, verified_launches
from predictor.replay.files.measured_run import MeasuredRun, read_launches
from predictor.replay.files.measured_step import MeasuredSteps
from tests.unit.examples import full_form
from tests.unit.measured_runs import OPERATORS, loaded_of, provenance, write_launch


def checked_text(text: str) -> str:
    """Return what a page shows; it is well formed, and takes nothing from elsewhere."""
    assert not re.search(r"https?://(?!www\.w3\.org)|<script|<link|<img", text)
    document = ElementTree.fromstring(re.sub(r"<!doctype html>|<meta [^>]*>", "", text))
    return "".join(document.itertext())


def run(folder: Path, **sections: Any) -> Verified:
    configuration = configured(folder.name, full_form(**sections), Path.cwd())
    layout = loaded_of(configuration).run.layout
    stages = [
        {"pipeline_stage": rank * layout.pipeline_parallel_size // layout.num_gpus} for rank in range(layout.num_gpus)
    ]
    write_launch(folder / "run-1", configuration.content, layout.num_gpus, OPERATORS, ranks=stages)
    return verified_launches(configuration, read_launches(folder))


def test_the_page_is_whole_and_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    runs = run(tmp_path / "piped", parallelism={"pipeline_parallel_size": 2}), run(tmp_path / "a<b")
    text = page(Verification(runs, (Failed("lost", "it broke & burnt"),)))
    shown = checked_text(text)
    for expected in ("Predicted and measured", "2 runs: median absolute error", "it broke & burnt", "a<b", "Stage 1"):
        assert expected in shown
    pictures = re.findall(r'<svg[^>]*class="pipeline".*?</svg>', text, re.DOTALL)
    assert len(pictures) == 4
    for drawn in pictures:
        ElementTree.fromstring(drawn)
    assert shown.count("measured, 2 × a made-up processor") >= 1


def test_the_two_timelines_of_a_run_have_one_axis(tmp_path: Path) -> None:
    verified = run(tmp_path / "piped", parallelism={"pipeline_parallel_size": 2})
    text = page(Verification((verified,)))
    axes = []
    for drawn in re.findall(r'<svg[^>]*class="pipeline".*?</svg>', text, re.DOTALL):
        ticks = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="middle">([0-9.,]+)</text>', drawn)
        axes.append(ticks)
    assert len(axes) == 2
    assert axes[0] == axes[1]
    assert len(axes[0]) > 2


def test_measured_parts_are_drawn_by_stage(tmp_path: Path) -> None:
    verified = run(tmp_path / "piped", parallelism={"pipeline_parallel_size": 2, "tensor_parallel_size": 2})
    trace = measured_trace(verified.launches[0])
    assert trace is not None
    assert trace.num_stages == 2
    assert [(span.rank, span.name) for span in trace.slots] == [
        (stage, name) for stage in range(2) for name in ("forward", "backward")
    ]
    assert sum(span.stream == Stream.OPTIMIZER for span in trace.spans) == 2
    assert 'class="slots"' in picture(trace)


def test_passes_of_a_pipeline_are_drawn_from_its_profile(tmp_path: Path) -> None:
    configuration = configured("piped", full_form(), Path.cwd())
    whole = {"data": 0.0, "forward": 900.0, "backward": 0.0, "optimizer": 100.0}
    told = provenance(configuration.content, parts=whole)
    spans = [Span("forward", 0, Stream.COMPUTE, 0.0, 900.0, category="forward")]
    passes = ("forward", "forward", "backward", "recompute", "forward", "end")
    for number, step_pass in enumerate(passes):
        times = (10.0 * number, 10.0 * number + 8.0)
        spans.append(Span("ffn_up", 0, "profiled", *times, category="operator", details={"pass": step_pass}))
    later = [span._replace(start_us=span.start_us + 500.0, end_us=span.end_us + 500.0) for span in spans[2:]]
    second = told.model_copy(update={"pipeline_stage": 1, "rank": 1})
    trace = measured_trace(MeasuredRun(tmp_path, (MeasuredSteps(spans, told), MeasuredSteps(later, second))))
    assert trace is not None
    assert {span.end_us for span in trace.spans if span.stream == Stream.OPTIMIZER} == {58.0}
    assert min(span.start_us for span in trace.spans if span.rank == 1) == pytest.approx(10.0)
    trace = StepTrace(trace.title, trace.step_us, [span for span in trace.spans if span.rank == 0])
    assert [(span.details["pass"], span.start_us, span.end_us) for span in trace.slots] == [
        ("forward", 0.0, 18.0),
        ("backward", 20.0, 38.0),
        ("forward", 40.0, 48.0),
    ]
    assert trace.step_us == 58.0
    assert trace.title.startswith("measured under the profiler")
    ElementTree.fromstring(picture(trace))


def test_ticks_are_round_and_inside() -> None:
    assert log_ticks(0.9, 12.0) == [1.0, 2.0, 5.0, 10.0]
    assert log_ticks(300.0, 800.0) == [300.0, 400.0, 500.0, 600.0, 700.0, 800.0], "one decade is no scale"
    assert log_ticks(0.5, 5e4) == [1.0, 10.0, 100.0, 1000.0, 10000.0]


def test_a_point_lies_where_its_times_say() -> None:
    points = [ParityPoint(1e3, 1e3, 9e2, 1.1e3, "equal"), ParityPoint(1e4, 2e4, 1.5e4, 3e4, "too slow")]
    drawn = parity(points, "step")
    ElementTree.fromstring(drawn)
    assert "step measured, ms" in drawn
    circle = re.search(r'<circle cx="([0-9.]+)%" cy="([0-9.]+)%"', drawn)
    square = re.search(r'<rect x="([0-9.]+)%" y="([0-9.]+)%"', drawn)
    assert circle is not None
    assert square is not None  # outside its interval: another mark and another colour
    x, y = float(circle[1]), float(circle[2])
    assert x == pytest.approx(100.0 - y, abs=0.02)  # on the diagonal
    assert float(square[1]) > x
    assert float(square[2]) < y
    assert "outside" in drawn
