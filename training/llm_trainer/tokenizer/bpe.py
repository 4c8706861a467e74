"""Byte-level BPE on Hugging Face ``tokenizers``: GPT-2's words and alphabet, tokens of documents' ends, JSON files.

Every byte is in the alphabet, so that no text is unknown and each comes back exactly (Radford et al. 2019, "Language
Models are Unsupervised Multitask Learners", section 2.2). A special token is never read from a text: ``<|eos|>`` in a
document is seven characters, and only the code that separates documents writes the token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from llm_trainer.exceptions import DataError, TokenizerNotTrainedException
from llm_trainer.tokenizer.pieces import pieces
from predictor.core.base.files import write_whole

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


FILE_NAME = "tokenizer.json"


class BPETokenizer:
    """A tokenizer that is trained on texts, or loaded.

    Attributes:
        pad_token_id, bos_token_id, eos_token_id: of padding, and of the begin and the end of a document.
    """

    pad_token_id, bos_token_id, eos_token_id = range(len(SPECIAL_TOKENS))

    def __init__(self) -> None:
        """Make a tokenizer that has to be trained."""
        self._engine: tokenizers.Tokenizer | None = None
        self._vocab: dict[str, int] | None = None

    def train(self, texts: Iterable[str], vocab_size: int = 50000, min_frequency: int = 2) -> None:
        """Learn the vocabulary from texts, which are read once; the same texts give the same vocabulary.

        Args:
            texts: documents; a generator will do.
            vocab_size: tokens at most, special tokens and the 256 bytes included; a small corpus has fewer pairs.
            min_frequency: occurrences that a pair needs to become a token.

        Raises:
            DataError: vocab_size has no room for the bytes, there is no text, or an entry is not Unicode text.
        """
        if isinstance(texts, str):
            raise DataError("texts is one str; expected an iterable of them. Pass [text]")
        if type(vocab_size) is not int or vocab_size < SMALLEST_VOCABULARY:
            raise DataError(
                f"vocab_size is {vocab_size!r}; it must be at least {SMALLEST_VOCABULARY}: {BYTES} bytes and "
                f"{len(SPECIAL_TOKENS)} special tokens"
            )
        if min_frequency < 1:
            raise DataError(f"min_frequency is {min_frequency}; it must be at least 1")
        parts = (part for number, text in enumerate(texts) for part in pieces(check_text(text, f"texts[{number}]")))
        first = next(parts, None)
        if first is None:
            raise DataError("texts holds no character; a tokenizer is trained on at least one text")
        engine = make_engine(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        engine.train_from_iterator(chain([first], parts), trainer)
        self._adopt(engine)

    def train_from_dataset(
        self,
        dataset_name: str,
        vocab_size: int = 50000,
        *,
        dataset_config: str | None = None,
        split: str = "train",
        text_column: str = "text",
        min_frequency: int = 2,
        max_texts: int | None = None,
    ) -> None:
        """Learn the vocabulary from a data set on the Hugging Face hub, or from local files.

        Args:
            dataset_name: on the hub; or a file, a folder or a pattern of files.
            vocab_size: as in :meth:`train`.
            dataset_config: configuration of a data set on the hub.
            split: part of a data set on the hub.
            text_column: that holds the text, in all but plain text files.
            min_frequency: as in :meth:`train`.
            max_texts: documents after which reading ends; None reads all.

        Raises:
            DataError: the data set cannot be read.
        """
        from llm_trainer.data.sources import Source  # which needs no tokenizer, so that neither imports the other first

        source = Source.named(dataset_name, config=dataset_config, split=split, text_column=text_column)
        self.train(source.texts(limit=max_texts), vocab_size, min_frequency)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, between the begin and the end token unless told otherwise.

        Raises:
            TokenizerNotTrainedException: there is no vocabulary yet.
            DataError: it is no str, or holds half of a surrogate pair, which is no character.
        """
        ids = self.encode_batch([text])[0]
        return [self.bos_token_id, *ids, self.eos_token_id] if add_special_tokens else ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, without special tokens, on all cores; errors as in :meth:`encode`."""
        engine = self._trained()
        texts = [
            check_text(text, f"texts[{number}]" if len(texts) > 1 else "text") for number, text in enumerate(texts)
        ]
        return [encoding.ids for encoding in engine.encode_batch(texts, add_special_tokens=False)]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids: a list, or a tensor or array of one dimension.

        Bytes that are no UTF-8, which a model may produce, become U+FFFD.

        Raises:
            TokenizerNotTrainedException: there is no vocabulary yet.
            DataError: an id is not in the vocabulary.
        """
        engine = self._trained()
        listed = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
        size = self.vocab_size
        for token_id in listed:
            if not isinstance(token_id, SupportsIndex) or not 0 <= index(token_id) < size:
                raise DataError(f"token_ids holds {token_id!r}; the vocabulary has the ids 0 to {size - 1}")
        return str(engine.decode(listed, skip_special_tokens=skip_special_tokens))

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write tokenizer.json, which ``tokenizers`` and ``transformers`` read too, into a folder.

        Raises:
            TokenizerNotTrainedException: there is no vocabulary yet.
            DataError: the folder cannot be written.
        """
        content = self.to_json()
        folder = Path(save_directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE_NAME, content)
        except OSError as error:
            raise DataError(f"{folder / FILE_NAME} cannot be written: {error.strerror}") from None

    @classmethod
    def from_pretrained(cls, load_directory: str | Path) -> BPETokenizer:
        """Return the tokenizer of a folder, or of the file itself.

        Raises:
            DataError: there is none, or it is not one that :meth:`save_pretrained` wrote.
        """
        place = Path(load_directory)
        path = place / FILE_NAME if place.is_dir() else place
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}; BPETokenizer.save_pretrained writes it"
            ) from None
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8; BPETokenizer.save_pretrained writes it") from None
        return cls.from_json(content, str(path))

    def to_json(self) -> str:
        """Return what :meth:`save_pretrained` writes."""
        return str(self._trained().to_str(pretty=True))

    @classmethod
    def from_json(cls, content: str, name: str = "content") -> BPETokenizer:
        """Return the tokenizer of what :meth:`to_json` returned.

        Raises:
            DataError: it is not that; the message has its name.
        """
        tokenizer = cls()
        tokenizer._adopt(read_engine(content, name))
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, special ones included."""
        return len(self.vocab)

    @property
    def vocab(self) -> dict[str, int]:
        """Return the id of each token; a byte outside printable ASCII is written as GPT-2 does (a space is Ġ)."""
        if self._vocab is None:
            self._vocab = dict(sorted(self._trained().get_vocab().items(), key=lambda item: item[1]))
        return self._vocab

    @property
    def special_tokens(self) -> list[str]:
        """Return the tokens that no text contains: padding, begin and end of a document."""
        return list(SPECIAL_TOKENS)

    @property
    def digest(self) -> str:
        """Return what tells two tokenizers apart: equal ones encode alike."""
        return hashlib.sha256(self._trained().to_str().encode()).hexdigest()

    def get_vocab_stats(self) -> dict[str, Any]:
        """Return counts of the vocabulary; lengths of tokens are in bytes.

        Raises:
            TokenizerNotTrainedException: there is no vocabulary yet.
        """
        lengths = [len(token) for token in self.vocab if token not in SPECIAL_TOKENS]
        return {
            "vocab_size": self.vocab_size,
            "num_special_tokens": len(SPECIAL_TOKENS),
            "num_byte_tokens": BYTES,
            "num_merges": self.vocab_size - SMALLEST_VOCABULARY,
            "mean_token_bytes": sum(lengths) / len(lengths),
            "longest_token_bytes": max(lengths),
        }

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.vocab_size

    def _trained(self) -> tokenizers.Tokenizer:
        if self._engine is None:
            raise TokenizerNotTrainedException(
                "the tokenizer has no vocabulary; call train(texts), or load one with from_pretrained(folder)"
            )
        return self._engine

    def _adopt(self, engine: tokenizers.Tokenizer) -> None:
        self._engine, self._vocab = engine, None


def check_text(text: object, name: str) -> str:
    """Return a text that has a UTF-8 form.

    Raises:
        DataError: it is no str, or holds half of a surrogate pair; the message has its name.
    """
    if not isinstance(text, str):
        raise DataError(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} holds half of a surrogate pair, U+{ord(text[error.start]):04X} at character {error.start}, which "
            "is not Unicode text; encode and decode it with errors='replace' first"
        ) from None
    return text
