"""Samples of a language model: tokens, the same tokens as labels, and a mask where a batch has padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from llm_trainer.data.token_file import TokenFile
from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.tokenizer.stream import encode_documents

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


IGNORED = -100  # label of padding: cross_entropy's ignore_index

Item = dict[str, Tensor]


class LanguageModelingDataset(Dataset[Item]):
    """Samples of at most ``max_length`` tokens, padded to it.

    An item has ``input_ids`` and ``labels``, both (max_length,) int64 and not shifted against each other (the model
    shifts), padding labelled -100; and ``attention_mask``, 1 for a token and 0 for padding, where the item is padded.
    ``DataLoader`` fetches a batch in one call, whose items all have a mask if one of them needs it.

    Attributes:
        max_length: length of every item.
        min_length: a document of fewer tokens is left out where each is a sample of its own.
        is_packed: documents are joined and cut into blocks; otherwise each is cut by itself.
    """

    def __init__(
        self,
        texts: Iterable[str],
        tokenizer: BPETokenizer,
        max_length: int = 1024,
        pack_sequences: bool = True,
        min_length: int = 1,
        num_workers: int = 0,
    ) -> None:
        """Tokenise texts, which are read once, and keep the tokens in memory.

        Args:
            texts: documents.
            tokenizer: trained.
            max_length: tokens of a sample, at least 2.
            pack_sequences: join documents, with begin and end tokens, and cut them into full blocks; no token is lost.
            min_length: a document of fewer tokens, begin and end not counted, is left out unless they are packed.
            num_workers: processes that tokenise; 0: this one.

        Raises:
            DataError: a text is no text, no sample is left, or a length is out of range.
            TokenizerNotTrainedException: the tokenizer has no vocabulary yet.
        """
        if isinstance(texts, str):
            raise DataError("texts is one str; expected an iterable of them. Pass [text]")
        dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        encoded = [part.astype(dtype) for part in encode_documents(texts, tokenizer, num_workers)]
        if not encoded:
            raise DataError("the texts hold no character; there is nothing to train on")
        self._prepare(np.concatenate(encoded), tokenizer.pad_token_id, tokenizer.eos_token_id, max_length, min_length)
        self._cut(pack_sequences)

    @classmethod
    def from_token_file(
        cls,
        token_file: TokenFile | str | Path,
        tokenizer: BPETokenizer | None = None,
        max_length: int = 1024,
        pack_sequences: bool = True,
        min_length: int = 1,
    ) -> LanguageModelingDataset:
        """Return the samples of a token file, which stay on disk until they are read.

        Args:
            token_file: or the path of its JSON file.
            tokenizer: whose tokens they must be; None: not checked.
            max_length: as in the constructor, as are the others.
            pack_sequences: as in the constructor.
            min_length: as in the constructor.

        Raises:
            DataError: the file is damaged, another tokenizer's, or no sample is left.
        """
        opened = token_file if isinstance(token_file, TokenFile) else TokenFile.open(token_file)
        if tokenizer is not None and tokenizer.digest != opened.tokenizer:
            raise DataError(f"{opened.path} was written with another tokenizer; build it again with this one")
        dataset = cls.__new__(cls)
        dataset._prepare(opened, opened.pad_token_id, opened.eos_token_id, max_length, min_length)
        dataset._cut(pack_sequences)
        return dataset

    def pack_sequences(self) -> int:
        """Join the documents and cut them into blocks, from now on; return the number of items."""
        self._cut(True)
        return len(self)

    def get_stats(self) -> dict[str, Any]:
        """Return counts of items, documents and tokens, and the part of all items that is padding."""
        num_real = int(self._samples.lengths.sum())
        size = len(self) * self.max_length
        return {
            "num_samples": len(self),
            "num_documents": self._num_documents,
            "num_documents_left_out": self._samples.documents_left_out,
            "num_tokens": num_real,
            "mean_tokens_per_sample": num_real / len(self),
            "padding_fraction": 1.0 - num_real / size,
            "max_length": self.max_length,
            "is_packed": self.is_packed,
        }

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._samples.starts)

    def __getitem__(self, index: int) -> Item:
        """Return an item.

        Raises:
            IndexError: there is no such item.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return the items of a batch, as ``DataLoader`` asks for them: rows of common tensors."""
        numbers = np.asarray(indices)
        starts, lengths = self._samples.starts[numbers], self._samples.lengths[numbers]
        tokens = self._mapped()
        shape = (len(numbers), self.max_length)
        input_ids = np.full(shape, self._pad_token_id, dtype=np.int64)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            input_ids[row, :length] = tokens[start : start + length]
        columns = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(input_ids.copy())}
        if lengths.min() < self.max_length:
            is_token = torch.from_numpy(np.arange(self.max_length) < lengths[:, None])
            columns["labels"].masked_fill_(~is_token, IGNORED)
            columns["attention_mask"] = is_token.long()
        return [{name: column[row] for name, column in columns.items()} for row in range(len(numbers))]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the memory map out: another process maps the file itself."""
        return {**self.__dict__, "_map": None}

    def _prepare(
        self,
        tokens: NDArray[np.unsignedinteger] | TokenFile,
        pad_token_id: int,
        eos_token_id: int,
        max_length: int,
        min_length: int,
    ) -> None:
        if type(max_length) is not int or max_length < 2:
            raise DataError(f"max_length is {max_length!r}; a sample needs at least 2 tokens to predict one")
        if type(min_length) is not int or min_length < 0:
            raise DataError(f"min_length is {min_length!r}; it must be at least 0")
        self.max_length, self.min_length = max_length, min_length
        self._tokens = tokens
        self._map: NDArray[np.unsignedinteger] | None = None
        self._pad_token_id, self._eos_token_id = pad_token_id, eos_token_id
        if isinstance(tokens, TokenFile):
            self._num_documents = tokens.num_documents
        else:
            self._num_documents = int(np.count_nonzero(tokens == eos_token_id))

    def _cut(self, is_packed: bool) -> None:
        """Decide where samples begin and end."""
        tokens = self._mapped()
        self.is_packed = is_packed
        self._samples: Samples = (
            pack(len(tokens), self.max_length)
            if is_packed
            else separate(tokens, self._eos_token_id, self.max_length, self.min_length)
        )
        if not len(self):
            raise DataError(f"no document has min_length, {self.min_length}, tokens; lower it, or pack sequences")

    def _mapped(self) -> NDArray[np.unsignedinteger]:
        if not isinstance(self._tokens, TokenFile):
            return self._tokens
        if self._map is None:
            self._map = self._tokens.tokens()
        return self._map


def create_dataloader(
    dataset: Dataset[Any],
    batch_size: int = 32,
    shuffle: bool = False,
    num_workers: int = 0,
    pin_memory: bool = False,
    drop_last: bool = False,
) -> DataLoader[Any]:
    """Return torch's own ``DataLoader``, whose order ``GenericTrainer`` can resume at any batch.

    Args:
        dataset: of samples.
        batch_size: samples a batch.
        shuffle: in an order drawn anew each epoch.
        num_workers: processes that load batches, kept from epoch to epoch; 0: this one.
        pin_memory: copy batches to memory that a GPU reads directly; nothing is done where there is no GPU.
        drop_last: leave out a last batch that is not full.

    Raises:
        DataError: batch_size or num_workers is out of range.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise DataError(f"batch_size is {batch_size!r}; it must be at least 1")
    if type(num_workers) is not int or num_workers < 0:
        raise DataError(f"num_workers is {num_workers!r}; it must be at least 0")
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        pin_memory=pin_memory and torch.accelerator.is_available(),
        drop_last=drop_last,
        persistent_workers=num_workers > 0,
    )
