"""The documents: none is empty, every link leads somewhere, the index lists every page, README stays a front page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.__main__ import COMMANDS
from predictor.__main__ import main as predictor_main
from tests.gallery import same_number, words_and_numbers

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*AT_THE_ROOT, *sorted(DOCS.rglob("*.md"))]
FRONT_PAGE_LINES = 150
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)|<img src=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_says_something_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) > 50
    for target, anchor, image in LINK.findall(text):
        if "://" not in target:
            found = path.parent / (target or image) if target or image else path
            assert found.exists(), f"{path.name} links to {target or image}"
            assert not anchor or anchor in anchors(found), f"{path.name} links to {target}#{anchor}"


def test_the_front_page_is_short_and_shows_both_pictures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FRONT_PAGE_LINES
    assert "docs/pictures/timeline.svg" in text
    assert "docs/pictures/report.png" in text


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {target for target, _, _ in LINK.findall(index)}
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert pages | {"../CONTRIBUTING.md", "../CHANGELOG.md", "../README.md"} <= listed


def test_the_site_lists_every_page() -> None:
    """Strict mode says so too, where ``make docs`` runs; decisions are listed by themselves."""
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {path.name for path in DOCS.glob("*.md")} <= listed


def test_the_picture_of_the_timeline_is_todays(tmp_path: Path) -> None:
    """Its words and numbers; the report's picture is a photograph of the same run (make pictures)."""
    (options,) = re.findall(r"^PICTURED := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert predictor_main(["timeline", *options.split(), "--svg", str(tmp_path / "timeline.svg")]) == 0
    now, shown = (
        words_and_numbers(" ".join(re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))))
        for path in (tmp_path / "timeline.svg", DOCS / "pictures" / "timeline.svg")
    )
    assert now[0] == shown[0], "make pictures draws it again"
    assert all(map(same_number, now[1], shown[1])), "make pictures draws it again"


def test_contributors_are_sent_to_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", text) if not path.startswith(".venv")}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_command_is_told_of() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(command in text for command in COMMANDS)
