"""Hooks of the documents' site (mkdocs.yml): pages from the repository's root, decisions, links that leave the site.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages. A link to any other file of the repository becomes its text,
since the site holds documents only; links between documents stay, and strict mode checks them.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ROOT_PAGES = {name: f"{Path(name).stem.lower()}.page.md" for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
SHOWN = (".md", ".png", ".svg")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r'(<img src=")docs/')


def linked(markdown: str, folder: str) -> str:
    """Return a page, of a folder as seen from the repository's root, with links that hold on the site."""

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = normpath(join(folder, target))
        if path in ROOT_PAGES:
            up = "../" * folder.count("/")
            return f"{mark}[{text}]({up}{ROOT_PAGES[path]}{anchor})"
        if path.startswith("docs/") and path.endswith(SHOWN):
            own = target if folder.startswith("docs") else path.removeprefix("docs/")
            return f"{mark}[{text}]({own}{anchor})"
        return text

    return IMAGE.sub(r"\1", LINK.sub(link, markdown))


def on_config(config: Any) -> Any:
    """Add the decisions to the navigation, in their order."""
    for section in config.nav:
        if "Decisions" in section:
            section["Decisions"] = [f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("*.md"))]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    for name, page in ROOT_PAGES.items():
        content = linked((ROOT / name).read_text(encoding="utf-8"), "")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep the links of a page of docs that hold on the site."""
    if page.file.src_uri in ROOT_PAGES.values():
        return markdown
    return linked(markdown, join("docs", Path(page.file.src_uri).parent.as_posix()).removesuffix("/."))
