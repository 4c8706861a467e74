"""Reports of any health: whatever numbers a log led to, every output is made."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.base.json_text import as_json
from predictor.watch.comparison import Compared
from predictor.watch.comparison_report import comparison_json, render
from predictor.watch.health import Change, ChangeKind, Expected, Explanation, Finding, Health, State
from predictor.watch.json_document import to_json
from predictor.watch.page import page
from predictor.watch.prometheus import exposition
from predictor.watch.series import StepSeries
from predictor.watch.text import render as render_text
from predictor.watch.words import brief, line, slowdown

NUMBERS = st.floats() | st.none()
STEPS = st.integers(-(10**18), 10**18)
TEXTS = st.text(max_size=20)
PARTS = st.dictionaries(TEXTS, st.floats(), max_size=3)
CHANGES = st.builds(
    Change,
    st.sampled_from(ChangeKind),
    STEPS,
    STEPS | st.none(),
    st.floats(),
    st.floats(),
    st.floats(),
    STEPS,
    NUMBERS,
)
CAUSES = st.builds(Explanation, TEXTS, TEXTS, st.floats(), st.lists(TEXTS, max_size=2).map(tuple), TEXTS, TEXTS)
FINDINGS = st.builds(Finding, CHANGES, st.lists(CAUSES, min_size=1, max_size=3).map(tuple), st.booleans())
# A prediction is above 0 and finite.
POSITIVE = st.floats(1e-9, 1e9)
EXPECTED = st.builds(Expected, POSITIVE, POSITIVE, POSITIVE, POSITIVE | st.none(), parts=PARTS, source=TEXTS)
HEALTH = st.builds(
    Health,
    st.sampled_from(State),
    EXPECTED | st.none(),
    *(STEPS | st.none(), STEPS | st.none(), STEPS, *[NUMBERS] * 8, PARTS),
    st.lists(FINDINGS, max_size=4).map(tuple),
    st.floats(),
    NUMBERS,
    STEPS | st.none(),
    NUMBERS,
    STEPS,
    st.lists(TEXTS, max_size=2).map(tuple),
)


@settings(max_examples=200)
@given(health=HEALTH, other=HEALTH, at=st.floats())
def test_every_report_of_any_health_is_made(health: Health, other: Health, at: float) -> None:
    for text in (render_text(health, ["x"], 80), line(health, at), brief(health), page(health, [], ["x"], at)):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert exposition(health).endswith("\n")
    compared = Compared(health, other, ("a", "b"), ())
    json.loads(as_json(to_json(health, [], at)))
    json.loads(as_json(comparison_json(compared, ([], []), at)))
    render(compared, 80)
    slowdown(health)


@settings(max_examples=100)
@given(steps=st.lists(st.tuples(STEPS, NUMBERS, NUMBERS), max_size=50))
def test_any_steps_have_a_chart(steps: list[tuple[int, float | None, float | None]]) -> None:
    from predictor.watch.events import Step

    series = StepSeries(16)
    for number, seconds, at in steps:
        series.take(Step(number, seconds, at=at))
    page(Health(State.HEALTHY), series.at_most(8), [], 0.0)
