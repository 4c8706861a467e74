"""Print text on outputs that cannot encode every character."""

from __future__ import annotations

ASCII = str.maketrans({"×": "x", "–": "-", "·": "*", "µ": "u", "…": "...", "«": '"', "»": '"', "−": "-"})


def encodable(text: str, encoding: str | None) -> str:
    """Return text with the characters of an output's encoding only."""
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        plain = text.translate(ASCII)
        return plain.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    return text
