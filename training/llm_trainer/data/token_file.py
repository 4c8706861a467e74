"""Texts tokenised once: a memory-mapped file of tokens, and a JSON file that describes them.

The JSON file is written last and names the file of tokens, so that whoever is killed while building leaves the old
pair, or none. Tokens of documents stand one after another, each between begin and end token.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_trainer.data.sources import Source
from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.tokenizer.stream import encode_documents
from predictor.core.base.files import atomic_file, write_whole

FORMAT = 1
LEFT_OVER_S = 3600.0  # a half-built file that nobody wrote to for so long is of a process that was killed
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Tokens of documents on disk.

    Attributes:
        path: of the JSON file.
        data: name of the file of tokens, beside it.
        dtype: of a token, little-endian.
        num_tokens: begins and ends of documents included.
        num_documents: those that hold a character.
        pad_token_id: of the tokenizer.
        eos_token_id: of the tokenizer; ends each document, and occurs nowhere else.
        vocab_size: of the tokenizer.
        tokenizer: its digest.
        inputs: fingerprint of the texts.
    """

    path: Path
    data: str
    dtype: str
    num_tokens: int
    num_documents: int
    pad_token_id: int
    eos_token_id: int
    vocab_size: int
    tokenizer: str
    inputs: str

    def tokens(self) -> NDArray[np.unsignedinteger]:
        """Map the tokens into memory, for reading.

        Raises:
            DataError: they are not there any more.
        """
        try:
            return np.memmap(
                self.path.with_name(self.data), dtype=DTYPES[self.dtype], mode="r", shape=(self.num_tokens,)
            )
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path} names {self.data}, which cannot be read ({error}); build it again") from None

    @classmethod
    def open(cls, path: str | Path) -> TokenFile:
        """Read the JSON file, and check that the tokens are as many as it says.

        Raises:
            DataError: it is missing or damaged.
        """
        path = Path(path)
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved.pop("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT}")
            opened = cls(path=path, **saved)
            size = path.with_name(opened.data).stat().st_size
            if size != opened.num_tokens * DTYPES[opened.dtype].itemsize:
                raise ValueError(f"{opened.data} has {size} bytes for {opened.num_tokens} tokens of {opened.dtype}")
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}; build it again") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is no token file ({error}); build it again") from None
        return opened

    @classmethod
    def build(
        cls,
        path: str | Path,
        texts: Iterable[str],
        tokenizer: BPETokenizer,
        *,
        inputs: str | None = None,
        num_workers: int = 0,
    ) -> TokenFile:
        """Tokenise texts, which are read once, and write both files; the old ones stay until the new ones are whole.

        Args:
            path: of the JSON file; the folder is created.
            texts: documents.
            tokenizer: trained.
            inputs: fingerprint of the texts; None: they have none, and are never thought the same.
            num_workers: processes that tokenise; 0: this one.

        Raises:
            DataError: a text is no text, all are empty, or the files cannot be written.
            TokenizerNotTrainedException: there is no vocabulary yet.
        """
        path = Path(path)
        inputs = uuid.uuid4().hex if inputs is None else inputs
        dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        key = hashlib.sha256(f"{FORMAT} {inputs} {tokenizer.digest}".encode()).hexdigest()[:12]
        data = path.with_name(f"{path.stem}-{key}.bin")
        num_tokens = num_documents = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_left_over(path)
            with atomic_file(data) as building:
                with building.open("wb") as stream:
                    for tokens in encode_documents(texts, tokenizer, num_workers):
                        num_tokens += tokens.size
                        num_documents += int(np.count_nonzero(tokens == tokenizer.eos_token_id))
                        stream.write(tokens.astype(DTYPES[dtype]).tobytes())
                if not num_tokens:
                    raise DataError("the texts hold no character; there is nothing to train on")
            built = cls(
                path=path,
                data=data.name,
                dtype=dtype,
                num_tokens=num_tokens,
                num_documents=num_documents,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                vocab_size=tokenizer.vocab_size,
                tokenizer=tokenizer.digest,
                inputs=inputs,
            )
            built._save()
        except OSError as error:
            raise DataError(f"{error.filename or path} cannot be written: {error.strerror}") from None
        return built

    def _save(self) -> None:
        """Write the JSON file, and then remove the tokens that the one before named."""
        try:
            before = self.path.with_name(TokenFile.open(self.path).data)
        except DataError:
            before = None
        content = {"format": FORMAT, **asdict(self)}
        del content["path"]
        write_whole(self.path, json.dumps(content, indent=2) + "\n")
        if before is not None and before.name != self.data:
            before.unlink(missing_ok=True)


def tokenize_once(path: str | Path, source: Source, tokenizer: BPETokenizer, num_workers: int = 0) -> TokenFile:
    """Return the token file of a source, built unless it is there for the same inputs and tokenizer.

    Args:
        path: of the JSON file.
        source: of the documents.
        tokenizer: trained.
        num_workers: processes that tokenise; 0: this one.

    Raises:
        DataError: a file of the source cannot be read, or the token file cannot be written.
    """
    inputs = source.fingerprint()
    try:
        present = TokenFile.open(path)
    except DataError:
        present = None
    if present is not None and (present.inputs, present.tokenizer) == (inputs, tokenizer.digest):
        return present
    return TokenFile.build(path, source.texts(), tokenizer, inputs=inputs, num_workers=num_workers)


def _remove_left_over(path: Path) -> None:
    """Remove what builds of this file that were killed have left."""
    for place in path.parent.glob(f".{path.stem}-*.bin.*"):
        if time.time() - place.stat().st_mtime > LEFT_OVER_S:
            place.unlink(missing_ok=True)
