"""The parts of the specification: its code blocks by section, its YAML, and its signatures."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ROOT.parent / "shared" / "spec" / "model-training-framework-api.md"
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
HEADING = re.compile(r"^(#{2,5}) (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A code block: language, text, and the class and the method whose section it is in."""

    language: str
    text: str
    owner: str
    method: str


class Signature(NamedTuple):
    """A documented callable: its parameters' names and the text of their defaults."""

    owner: str
    name: str
    parameters: tuple[str, ...]
    defaults: dict[str, str]


def blocks() -> list[Block]:
    """Return all blocks in order; none where the specification is not at hand."""
    if not SPECIFICATION.is_file():
        return []
    text = SPECIFICATION.read_text(encoding="utf-8")
    headings = [(match.start(), match[1], match[2].strip("`() ")) for match in HEADING.finditer(text)]
    found = []
    for match in FENCE.finditer(text):
        before = [(level, name) for at, level, name in headings if at < match.start()]
        owner = next((name for level, name in reversed(before) if level == "###"), "")
        method = before[-1][1] if before and before[-1][0] == "#####" else ""
        found.append(Block(match[1], match[2], owner, method))
    return found


def runnable() -> list[Block]:
    """Return the Python blocks that import what they show."""
    return [block for block in blocks() if block.language == "python" and "import" in block.text]


def signatures() -> list[Signature]:
    """Return the callables that stand as a call or as methods to override."""
    found = []
    for block in blocks():
        if block.language != "python" or "import" in block.text:
            continue
        text = block.text.replace("@contextmanager\n", "").strip()
        if not text.startswith(("def ", "@dataclass")):
            text = "def " + (text if text.rstrip().endswith("pass") else f"{text}:\n    pass")
            text = re.sub(r":\n    #", ":\n    #", text)
        nodes = ast.parse(text).body
        found += [_signature(block.owner, node) for node in nodes if isinstance(node, ast.FunctionDef)]
    return found


def _signature(owner: str, node: ast.FunctionDef) -> Signature:
    names = [argument.arg for argument in node.args.args]
    given = node.args.defaults
    defaults = dict(zip(names[len(names) - len(given) :], map(ast.unparse, given), strict=True))
    name = "__init__" if node.name == owner else node.name
    return Signature(owner, name, tuple(name for name in names if name != "self"), defaults)
