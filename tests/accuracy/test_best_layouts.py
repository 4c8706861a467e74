"""Published best layouts are near the search's winner under the same framework's rules, or the reason is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.accuracy.best_layouts import compared, is_explained, line, rows


def cases() -> Iterator[Any]:
    """Yield the rows; those whose search takes longest, of a model that other systems have too, are thorough ones."""
    for row in rows():
        is_long = row["model"] == "deepseek-v3" and row["system"].startswith("GB")
        yield pytest.param(row, id=row["name"], marks=pytest.mark.thorough if is_long else ())


@pytest.mark.parametrize("row", [*cases()])
def test_a_published_best_layout_is_near_the_winner_or_the_reason_is_known(row: dict[str, Any]) -> None:
    found = compared(row)
    told = "\n".join(line(found))
    assert found.is_searched, f"the search leaves it out:\n{told}"
    assert found.agrees != bool(found.reason), f"wrong, or no longer wrong:\n{told}"
    assert not found.reason or is_explained(row, found), f"the reason does not explain it:\n{told}"
