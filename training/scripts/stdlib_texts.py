"""Write the sources of Python's standard library as JSON lines: texts that every machine has.

    python scripts/stdlib_texts.py texts

makes texts/train.jsonl and texts/validation.jsonl, which has every twentieth file.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from checkout import run, say

LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages"}
VALIDATION_EVERY = 20


def main(argv: Sequence[str] | None = None) -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write the sources of Python's standard library as JSON lines.")
    parser.add_argument("folder", type=Path, help="made where it is not there")
    parser.add_argument("--max_characters", type=int, default=6_000_000, help="after which reading ends")
    arguments = parser.parse_args(argv)
    library = Path(sysconfig.get_path("stdlib"))
    sources = [path for path in sorted(library.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(library).parts)]
    lines: dict[str, list[str]] = {"train": [], "validation": []}
    characters = 0
    for number, path in enumerate(sources):
        if characters >= arguments.max_characters:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        characters += len(text)
        split = "validation" if number % VALIDATION_EVERY == 0 else "train"
        lines[split].append(json.dumps({"text": text}))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for split, rows in lines.items():
        (arguments.folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        say(f"{arguments.folder / split}.jsonl: {len(rows)} files")


if __name__ == "__main__":
    sys.exit(run(main))
