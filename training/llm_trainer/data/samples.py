"""Where samples begin and end in a row of tokens: packed into blocks, or a document a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SCANNED_AT_ONCE = 1 << 24  # tokens, so that a file larger than memory can be scanned


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples as slices of the tokens.

    Attributes:
        starts: first token of each, int64.
        lengths: tokens of each, int64.
        documents_left_out: shorter than the shortest allowed.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    documents_left_out: int = 0


def pack(num_tokens: int, max_length: int) -> Samples:
    """Cut all tokens into blocks of ``max_length``, the last of which may be shorter; no token is lost."""
    starts, lengths = _cut(np.array([0]), np.array([num_tokens]), max_length)
    return Samples(starts, lengths)


def separate(tokens: NDArray[np.unsignedinteger], eos_token_id: int, max_length: int, min_length: int) -> Samples:
    """Cut every document by itself into samples of at most ``max_length`` tokens.

    Args:
        tokens: of documents, each with its end token.
        eos_token_id: of the end token.
        max_length: tokens of a sample at most.
        min_length: a document of fewer tokens, begin and end not counted, is left out.
    """
    stops = np.concatenate(
        [
            start + 1 + np.flatnonzero(tokens[start : start + SCANNED_AT_ONCE] == eos_token_id)
            for start in range(0, len(tokens), SCANNED_AT_ONCE)
        ]
    )
    starts = np.concatenate(([0], stops[:-1]))
    is_long_enough = stops - starts - 2 >= min_length
    kept_starts, kept_lengths = _cut(starts[is_long_enough], (stops - starts)[is_long_enough], max_length)
    return Samples(kept_starts, kept_lengths, documents_left_out=int(np.count_nonzero(~is_long_enough)))


def _cut(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], max_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut slices into consecutive ones of at most ``max_length``.

    A token that is left alone has nothing to predict and no loss, which a batch of it would turn into 0 / 0. It
    takes the last token of the slice before it.
    """
    counts = -(-lengths // max_length)
    first = np.cumsum(counts) - counts  # of each slice's parts
    part = np.arange(counts.sum()) - np.repeat(first, counts)
    cut_starts = np.repeat(starts, counts) + part * max_length
    cut_lengths = np.minimum(np.repeat(starts + lengths, counts) - cut_starts, max_length)
    if max_length > 2:
        alone = np.flatnonzero((cut_lengths == 1) & (part > 0))
        cut_starts[alone] -= 1
        cut_lengths[alone] = 2
        cut_lengths[alone - 1] -= 1
    return cut_starts, cut_lengths
