"""Published best layouts are near the search's winner under the same framework's rules, or the reason is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accuracy.best_layouts import compared, is_explained, line, rows


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row["name"]))
def test_a_published_best_layout_is_near_the_winner_or_the_reason_is_known(row: dict[str, Any]) -> None:
    found = compared(row)
    told = "\n".join(line(found))
    assert found.is_searched, f"the search leaves it out:\n{told}"
    assert found.agrees != bool(found.reason), f"wrong, or no longer wrong:\n{told}"
    assert not found.reason or is_explained(row, found), f"the reason does not explain it:\n{told}"
