"""Encode a stream of documents in bounded memory, in this process or in several, in the stream's order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer.bpe import BPETokenizer, check_text
from llm_trainer.tokenizer.pieces import pieces

Tokens = NDArray[np.uint32]
BATCH_CHARACTERS = 1 << 20
ENCODED_HERE = 64  # batches before other processes are started, which takes seconds: small inputs never need them


class Piece(NamedTuple):
    """A part of a document, and whether the document begins or ends with it."""

    text: str
    is_first: bool
    is_last: bool


def encode_documents(texts: Iterable[str], tokenizer: BPETokenizer, num_workers: int = 0) -> Iterator[Tokens]:
    """Yield arrays of tokens, one after another those of all documents, each between begin and end token.

    An empty document has none. A long one may be spread over several arrays.

    Args:
        texts: documents, read as they are needed.
        tokenizer: trained.
        num_workers: processes that encode; 0 and 1: this one, on all cores (as ``tokenizers`` does by itself).

    Raises:
        DataError: a document is not Unicode text, or a process could not be started.
        TokenizerNotTrainedException: there is no vocabulary yet.
    """
    batches = _batches(texts)
    for batch in batches if num_workers < 2 else islice(batches, ENCODED_HERE):
        yield _encode(tokenizer, batch)
    first = next(batches, None)
    if first is not None:
        yield from _encode_elsewhere(tokenizer, first, batches, num_workers)


def _encode_elsewhere(
    tokenizer: BPETokenizer, first: list[Piece], batches: Iterator[list[Piece]], num_workers: int
) -> Iterator[Tokens]:
    """Yield the tokens of batches that other processes encode; few batches are on their way at a time."""
    processes = ProcessPoolExecutor(
        num_workers, get_context("spawn"), initializer=_start, initargs=(tokenizer.to_json(),)
    )
    on_the_way: deque[Future[Tokens]] = deque()
    try:
        on_the_way.append(processes.submit(_encode_there, first))
        for batch in batches:
            on_the_way.append(processes.submit(_encode_there, batch))
            if len(on_the_way) > 2 * num_workers:
                yield on_the_way.popleft().result()
        while on_the_way:
            yield on_the_way.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            f"one of {num_workers} processes that tokenise ended early; the script that starts them needs "
            "if __name__ == '__main__':, or set num_workers (preprocessing_num_workers) to 0"
        ) from None
    finally:
        processes.shutdown(wait=True, cancel_futures=True)


_tokenizer: BPETokenizer | None = None  # of a process that encodes


def _start(content: str) -> None:
    """Load the tokenizer once a process, which then uses one core: there are as many processes as wanted."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    global _tokenizer
    _tokenizer = BPETokenizer.from_json(content)


def _encode_there(batch: list[Piece]) -> Tokens:
    assert _tokenizer is not None
    return _encode(_tokenizer, batch)


def _encode(tokenizer: BPETokenizer, batch: list[Piece]) -> Tokens:
    """Return the tokens of a batch with those of begins and ends."""
    begin, end = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    encoded = tokenizer.encode_batch([piece.text for piece in batch])
    parts: list[list[int]] = []
    for piece, ids in zip(batch, encoded, strict=True):
        parts += [begin] * piece.is_first + [ids] + [end] * piece.is_last
    return np.concatenate([np.asarray(part, dtype=np.uint32) for part in parts])


def _batches(texts: Iterable[str]) -> Iterator[list[Piece]]:
    """Yield pieces of documents in lists of about a million characters."""
    batch: list[Piece] = []
    characters = 0
    for number, text in enumerate(texts):
        check_text(text, f"texts[{number}]")
        done = 0
        for part in pieces(text):
            batch.append(Piece(part, is_first=done == 0, is_last=done + len(part) == len(text)))
            done += len(part)
            characters += len(part)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch
