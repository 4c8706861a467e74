"""The page: self-contained, well formed, everything of a log is escaped."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from predictor.watch.health import Explanation, Health
from predictor.watch.page import page
from tests.unit.watched_examples import AT, HEALTHY, SLOW_RANK, SLOWER, WAITING, series


def tree(text: str) -> ElementTree.Element:
    """Return a page as a tree, once its void elements are closed."""
    for name in ("meta", "br"):
        text = text.replace(f"<{name} ", f"<{name}_ ")
    start = text.index("<body>")
    return ElementTree.fromstring(text[start : text.index("</body>") + len("</body>")])


@pytest.mark.parametrize("health", [SLOWER, HEALTHY, WAITING])
def test_every_page_is_well_formed_and_alone(health: Health) -> None:
    buckets = series().at_most(500) if health.steps else []
    text = page(health, buckets, ["train.log"], AT)
    tree(text)
    assert "prefers-color-scheme: dark" in text
    assert "http-equiv" not in text
    assert not any(word in text for word in ("src=", "href=", "@import", "<script"))


def test_the_chart_has_the_band_the_steps_and_the_findings() -> None:
    text = page(SLOWER, series().at_most(500), [], AT)
    chart = next(element for element in tree(text).iter("svg") if element.get("class") == "chart")
    kinds = [element.get("class") for element in chart.iter()]
    assert [kinds.count(kind) for kind in ("band", "narrow", "predicted", "alarm", "usual", "steps")] == [1] * 6
    assert kinds.count("above") == 6  # a checkpoint every 100 steps
    alarm = next(element for element in chart.iter("rect") if element.get("class") == "alarm")
    assert float(str(alarm.get("x")).rstrip("%")) == pytest.approx(66.8, abs=0.1)


def test_the_numbers_of_the_chart_are_a_table() -> None:
    text = page(SLOWER, series(steps=20).at_most(500), [], AT)
    rows = [row for row in tree(text).iter("details") for row in row.iter("tr")]
    assert len(rows) == 21


def test_a_page_that_follows_reads_itself_again() -> None:
    assert '<meta http-equiv="refresh" content="60">' in page(SLOWER, [], [], AT, 60.0)


def test_words_of_a_log_are_no_html() -> None:
    evil = Explanation("x", "<script>alert(1)</script>", 1.0, ("<img src=x>",), remedy="<b>")
    text = page(replace(SLOWER, findings=(replace(SLOW_RANK, explanations=(evil,)),)), series().at_most(9), ["<i>"], AT)
    assert not any(word in text for word in ("<script", "<img", "<b>", "<i>"))


def test_steps_of_no_length_have_a_chart() -> None:
    kept = series(steps=1)
    assert "<svg" in page(HEALTHY, kept.at_most(9), [], AT)
