"""Published systems predict the stored numbers."""

from __future__ import annotations

import json

import pytest

from tests.golden.predictions import STORED, predictions


def test_predictions_are_the_stored_ones() -> None:
    stored, now = json.loads(STORED.read_text(encoding="utf-8")), predictions()
    assert set(stored) == set(now)
    changed = [name for name in now if now[name] != pytest.approx(stored[name], rel=1e-7)]
    table = [f"{name:34} {stored[name][1] / 1e6:9.4f} s -> {now[name][1] / 1e6:9.4f} s" for name in changed]
    assert not changed, "\n".join(["predictions moved; if that was meant, store them anew", *table])
