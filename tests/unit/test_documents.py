"""The documents: none is empty, every link leads somewhere, every command is told of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.__main__ import parser_with_commands

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_says_something_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) > 50
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_command_is_told_of() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(command in text for command in parser_with_commands()[1])
