"""The parts of the trainer's specification: its blocks by section, and its inventory."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ROOT.parent / "shared" / "spec" / "llm-trainer-api.md"
INVENTORY = SPECIFICATION.with_suffix(".inventory.json")
FENCE = re.compile(r"^#{2,4} ([^\n]*)$|^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Sizes of the documents, and what they are in a test; a pattern that matches nothing fails a test.
SMALLER = {
    r"\b(50000|32000)\b": "300", r"d_model=(768|512)": "d_model=32", r"n_heads=(12|8)\b": "n_heads=2",
    r"n_layers=(12|6)\b": "n_layers=1", r"d_ff=3072": "d_ff=64", r"(max_seq_len|max_length)=(1024|512)\b": r"\1=32",
    r"\bmax_length=(100|50)\b": "max_length=28", r"num_epochs=(10|3)\b": "num_epochs=1",
    r"batch_size=(32|16)\b": "batch_size=4", r"(num_workers|preprocessing_num_workers)=\d+": r"\1=0",
    r"compile_model=True,\n    quantize": "compile_model=False,\n    quantize",
    r'"wikitext"': '"{texts}"', r"--max_length 100": "--max_length 28",
}  # fmt: skip
# Of the YAML and JSON files: key, and the value of a test.
SMALL_VALUES = {"vocab_size": 300, "d_model": 32, "n_heads": 2, "n_layers": 1, "d_ff": 64, "max_seq_len": 32,
                "max_length": 32, "batch_size": 4, "num_epochs": 1}  # fmt: skip


class Block(NamedTuple):
    """A code block: the section's title, the language and the text."""

    title: str
    language: str
    text: str


class Signature(NamedTuple):
    """A documented callable: the names of its parameters, and their defaults where it has some."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    takes_more: bool


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language in order; none where the specification is not at hand."""
    if not SPECIFICATION.is_file():
        return []
    title, gathered = "", []
    for match in FENCE.finditer(SPECIFICATION.read_text(encoding="utf-8")):
        title = match[1] or title
        if match[2] == language:
            gathered.append(Block(title, language, match[3]))
    return gathered


def smaller(text: str, texts: Path) -> str:
    """Return a block with texts from a folder and small sizes."""
    for pattern, small in SMALLER.items():
        text = re.sub(pattern, small, text)
    return text.replace("{texts}", str(texts))


@cache
def inventory() -> list[dict[str, Any]]:
    """Return the documented items; none where they are not at hand."""
    if not INVENTORY.is_file():
        return []
    items: list[dict[str, Any]] = json.loads(INVENTORY.read_text(encoding="utf-8"))["items"]
    return items


def signature(text: str) -> Signature:
    """Return what a documented call says, with or without the name before it.

    >>> signature("generate(prompt, config=None)").defaults
    {'config': None}
    """
    inside = text[text.index("(") + 1 : text.rindex(")")]
    names, defaults, takes_more = [], {}, False
    for part in filter(None, (part.strip() for part in inside.split(","))):
        name, _, value = part.partition("=")
        if name.startswith("*"):
            takes_more = True
            continue
        names.append(name.partition(":")[0].strip())
        if value:
            defaults[names[-1]] = ast.literal_eval(value)
    return Signature(tuple(names), defaults, takes_more)
