"""Published best layouts are near the search's winner under the same framework's rules, or the reason is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accuracy.best_layouts import compared, line, rows


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row["name"]))
def test_a_published_best_layout_is_near_the_winner_or_the_reason_is_known(row: dict[str, Any]) -> None:
    found = compared(row)
    told = "\n".join(line(found))
    assert found.is_searched, f"the search leaves it out:\n{told}"
    assert found.agrees != bool(found.reason), f"wrong, or no longer wrong:\n{told}"
    if found.reason:
        alternative = compared(row, instead=True)
        assert alternative.agrees, "the reason does not explain it:\n" + "\n".join(line(alternative))
