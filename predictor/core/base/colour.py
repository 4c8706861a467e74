"""Colours for answers on a terminal: codes around words, never another word.

SGR codes of ECMA-48 (5th edition, 8.3.117). NO_COLOR: no-color.org, 2017.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

RESET = "\x1b[0m"
CODES = {"heading": "\x1b[1m", "dim": "\x1b[2m", "good": "\x1b[32m", "doubtful": "\x1b[33m", "bad": "\x1b[1;31m"}
TIME = r"[\d.,]+ (?:s|ms|µs|us)"
# What is coloured how; the first pattern that matches at a place counts.
PATTERNS = {
    "heading": rf"(?<=^Step time  ){TIME}|^(?:Where the step goes|Findings, the costliest first)$"
    r"|^Note(?: on [^:\n]+)?:",
    "dim": rf"90 % interval\s+{TIME}\s+[–-]\s+{TIME}|{TIME} [–-] {TIME}|^[–-] (?:low end|high end)\b.*$",
    "good": r"(?<=^Health    )Healthy|(?<=: )fits(?=\s+\()|^ *ok(?=  )|(?<=^fits )(?: +yes)+$",
    "doubtful": r"\b(?:MAY NOT FIT|[Mm]ay not fit)\b",
    "bad": r"(?<=^Health    )(?:Slower than it should be|No step for long)"
    r"|\bDOES NOT FIT\b|^Does not fit\b|\bNO\b(?= *$)|^ *FAIL(?=  )",
}
WORDS = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS.items()), re.MULTILINE)


def wants_colour(stream: TextIO) -> bool:
    """Return whether an output is a terminal that shows colours, and nobody asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
    r"""Return an answer with colours: headline, verdicts, intervals, notes.

    >>> coloured("Memory     52.9 of 79.6 GiB: fits (weights 8.5)")
    'Memory     52.9 of 79.6 GiB: \x1b[32mfits\x1b[0m (weights 8.5)'
    """
    return WORDS.sub(lambda found: f"{CODES[str(found.lastgroup)]}{found[0]}{RESET}", text)
