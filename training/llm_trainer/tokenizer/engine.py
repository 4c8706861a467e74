"""Make the library's tokenizer: GPT-2's words over bytes; and read it from a file without trusting the file."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from llm_trainer.exceptions import DataError

PAD, BEGIN, END = "<|pad|>", "<|bos|>", "<|eos|>"
SPECIAL_TOKENS = (PAD, BEGIN, END)
BYTES = 256
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + BYTES
WAY_OUT = "BPETokenizer.save_pretrained writes one that can be read"


def make_engine(model: models.BPE) -> tokenizers.Tokenizer:
    """Return a tokenizer of a vocabulary, which may still be empty."""
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(list(SPECIAL_TOKENS))  # the first ids: a trainer and a saved vocabulary agree
    engine.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        special_tokens=[(name, SPECIAL_TOKENS.index(name)) for name in (BEGIN, END)],
    )
    engine.encode_special_tokens = True  # what a text says is text; the library does not save this
    return engine


def read_engine(content: str, name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a file's content.

    Args:
        content: JSON.
        name: of the file, for a message.

    Raises:
        DataError: it is not JSON, splits words otherwise than :func:`make_engine`, or its vocabulary has gaps.
    """
    try:
        saved = json.loads(content)
        vocab, merges = _vocabulary(saved)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is no byte-level BPE tokenizer ({_reason(error)}); {WAY_OUT}") from None
    return make_engine(models.BPE(vocab=vocab, merges=merges))


def _vocabulary(saved: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the tokens and merges of a file; a ValueError says what is wrong with them."""
    words = saved["pre_tokenizer"]
    if words["type"] != "ByteLevel" or words["add_prefix_space"] or not words.get("use_regex", True):
        raise ValueError("pre_tokenizer is not GPT-2's")
    if saved.get("normalizer") is not None:
        raise ValueError("normalizer is set, which would change texts")
    vocab: dict[str, int] = saved["model"]["vocab"]
    merges = [(left, right) for left, right in saved["model"]["merges"]]
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError("the ids in model.vocab are not 0, 1, 2, …")
    expected = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if sorted(vocab, key=vocab.__getitem__)[: len(expected)] != expected:
        raise ValueError(f"the vocabulary does not begin with {', '.join(SPECIAL_TOKENS)} and the {BYTES} bytes")
    for left, right in merges:
        if not {left, right, left + right} <= vocab.keys():
            raise ValueError(f"the merge of {left} and {right} is not in the vocabulary")
    return vocab, merges


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
