"""The log formats that are read: the first whose lines a file has reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from predictor.watch.readers import deepspeed, hugging_face, megatron, pytorch
from predictor.watch.readers.lines import LineFinder
from predictor.watch.readers.log_format import LogFormat
from predictor.watch.readers.prefix import COLOUR

EXAMPLES = Path(__file__).parent / "examples"
# A Trainer logs DeepSpeed's lines too, and most tools draw bars of tqdm for other work: they are last.
TABLE: tuple[LogFormat, ...] = (
    *megatron.FORMATS,
    *hugging_face.FORMATS,
    *pytorch.FORMATS,
    deepspeed.DEEPSPEED,
    hugging_face.TQDM,
)
_TOLD_BY = {
    "Hugging Face Trainer log": ("{'loss': ", "{'train_loss': ", "'train_runtime': ", "***** Running training *****"),
    "Megatron-Bridge log": ("Step Time : ",),
    "torchtitan log": ("step: ", "[titan] "),
}


class Teller:
    """Tells the format of a log from its lines, block by block."""

    def __init__(self) -> None:
        """Prepare every format of the table."""
        words: list[bytes] = []
        self._of_word: list[int] = []
        for index, known in enumerate(TABLE):
            told_by = _TOLD_BY.get(known.name, known.words)
            words += [word.encode() for word in told_by]
            self._of_word += [index] * len(told_by)
        self._lines = LineFinder(words)

    def feed(self, block: bytes) -> LogFormat | None:
        """Return the first format of the table that a block has lines of."""
        return self._first(self._lines.feed(block))

    def finish(self) -> LogFormat | None:
        """Return the format that a last line without an end is of."""
        return self._first(self._lines.finish())

    def _first(self, lines: Iterable[tuple[bytes, int]]) -> LogFormat | None:
        best = len(TABLE)
        for line, word in lines:
            index = self._of_word[word]
            if index < best and self._is_told(index, COLOUR.sub(b"", line)):
                best = index
        return TABLE[best] if best < len(TABLE) else None

    def _is_told(self, index: int, line: bytes) -> bool:
        known = TABLE[index]
        if known.tells is not None:
            return known.tells.search(line) is not None
        return known.extract()(line) is not None
