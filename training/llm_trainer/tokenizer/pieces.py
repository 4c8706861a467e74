"""Cut long texts where no token can span the cut, so that memory stays bounded while a large file is encoded."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 1 << 18
# GPT-2's pre-tokenizer takes a single line feed between two visible characters as a word of its own.
_CUT = re.compile(r"(?<=[^\s]\n)(?=[^\s])")


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield consecutive parts of a text whose encodings, one after another, are the encoding of the text.

    Args:
        text: of any length.
        size: characters after which the next line feed between two visible characters ends a part; a text without
            such a line feed stays whole.
    """
    start = 0
    while len(text) - start > size:
        cut = _CUT.search(text, start + size)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    if start < len(text):
        yield text[start:]
