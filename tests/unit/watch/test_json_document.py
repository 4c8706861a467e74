"""The JSON of a run: every key is documented, numbers are finite."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from predictor.core.base.json_text import as_json
from predictor.watch.comparison import Compared, stretches
from predictor.watch.comparison_report import comparison_json
from predictor.watch.json_document import to_json
from tests.unit.watched_examples import AT, HEALTHY, SLOWER, WAITING, series

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "json.md"


def keys(value: object) -> set[str]:
    """Return every key of a document, those of ``parts_s`` aside, which are names."""
    if isinstance(value, dict):
        inner = [keys(item) for key, item in value.items() if key != "parts_s"]
        return set(value).union(*inner) if inner else set(value)
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_every_key_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text[text.index("## A watched run") :]
    compared = Compared(SLOWER, HEALTHY, ("new", "old"), stretches(series(), series(seed=1)))
    document = comparison_json(compared, (["train.log"], []), AT)  # which has two runs in it
    assert [key for key in keys(document) if f"`{key}`" not in section] == []


def test_runs_without_prediction_or_step_have_the_same_keys() -> None:
    whole = to_json(SLOWER, [], AT)
    assert whole.keys() == to_json(HEALTHY, [], AT).keys() == to_json(WAITING, [], AT).keys()
    assert whole["state"] == "slower"
    assert whole["end_at"] == "2026-11-30T12:00:00Z"


def test_numbers_that_json_does_not_have_are_null() -> None:
    content = to_json(replace(SLOWER, tokens_per_second=float("inf"), lost_s=float("nan")), [], AT)
    assert json.loads(as_json(content))["lost_s"] is None
