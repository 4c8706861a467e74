"""Texts are tokenised once; a build that ends early leaves what was there; processes give the same tokens."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_trainer.data import Source, TokenFile, tokenize_once
from llm_trainer.exceptions import DataError, TokenizerNotTrainedException
from llm_trainer.tokenizer import BPETokenizer, stream
from llm_trainer.tokenizer.stream import encode_documents

TEXTS = ["Hello world.\nHello again.\n", "", "def f(x):\n    return x\n", "世界"]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    trained = BPETokenizer()
    trained.train(TEXTS * 3, vocab_size=300)
    return trained


def whole(tokenizer: BPETokenizer, texts: list[str]) -> list[int]:
    return [token for text in texts if text for token in tokenizer.encode(text)]


@given(texts=st.lists(st.text(alphabet="ab \n世<|eos|>", max_size=30), max_size=6), batch=st.integers(1, 20))
def test_a_stream_has_the_tokens_of_each_document(tokenizer: BPETokenizer, texts: list[str], batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BATCH_CHARACTERS", batch)
        arrays = list(encode_documents(iter(texts), tokenizer))
    assert [token for array in arrays for token in array.tolist()] == whole(tokenizer, texts)


def test_other_processes_give_the_same_tokens_in_order(
    tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 20)
    monkeypatch.setattr(stream, "ENCODED_HERE", 2)
    texts = [f"Hello {number} " * (number % 7) for number in range(40)]
    arrays = list(encode_documents(texts, tokenizer, num_workers=2))
    assert np.concatenate(arrays).tolist() == whole(tokenizer, texts)


def test_a_bad_text_is_named_by_its_number(tokenizer: BPETokenizer) -> None:
    with pytest.raises(DataError, match=r"texts\[2\] holds half of a surrogate pair"):
        list(encode_documents(["a", "b", "\ud800"], tokenizer))
    with pytest.raises(TokenizerNotTrainedException):
        list(encode_documents(["a"], BPETokenizer()))


def test_a_token_file_holds_what_was_written(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    built = TokenFile.build(tmp_path / "new" / "train.json", TEXTS, tokenizer)
    opened = TokenFile.open(tmp_path / "new" / "train.json")
    assert opened == built
    assert opened.tokens().tolist() == whole(tokenizer, TEXTS)
    assert opened.tokens().dtype == np.uint16
    assert (opened.num_documents, opened.num_tokens) == (3, len(whole(tokenizer, TEXTS)))
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_texts_are_tokenised_once(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "out" / "tokens.json"
    text.write_text("Hello world")
    first = tokenize_once(out, Source.local(text), tokenizer)
    written = (out.parent / first.data).stat().st_mtime_ns
    assert tokenize_once(out, Source.local(text), tokenizer) == first
    assert (out.parent / first.data).stat().st_mtime_ns == written
    text.write_text("Hello, other world")
    second = tokenize_once(out, Source.local(text), tokenizer)
    assert tokenizer.decode(second.tokens()) == "Hello, other world"
    other = BPETokenizer()
    other.train(["other words"], vocab_size=259)
    third = tokenize_once(out, Source.local(text), other)
    assert third.tokenizer == other.digest != second.tokenizer
    assert sorted(path.name for path in out.parent.iterdir()) == sorted([out.name, third.data])


def test_a_build_that_ends_early_leaves_the_old_file(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "a" * stream.BATCH_CHARACTERS
        raise KeyboardInterrupt

    path = tmp_path / "tokens.json"
    with pytest.raises(KeyboardInterrupt):
        TokenFile.build(path, broken(), tokenizer)
    assert list(tmp_path.iterdir()) == []
    TokenFile.build(path, TEXTS, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        TokenFile.build(path, broken(), tokenizer)
    assert TokenFile.open(path).tokens().tolist() == whole(tokenizer, TEXTS)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_build_killed_between_the_two_files_is_done_again(
    tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "out" / "tokens.json"
    text.write_text("Hello")

    def killed(self: TokenFile) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TokenFile, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenize_once(out, Source.local(text), tokenizer)
    with pytest.raises(DataError, match="cannot be read"):
        TokenFile.open(out)
    assert tokenizer.decode(tokenize_once(out, Source.local(text), tokenizer).tokens()) == "Hello"
    assert len(list(out.parent.iterdir())) == 2


def test_what_a_killed_build_left_is_removed_an_hour_later(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    old, new = tmp_path / ".tokens-0123.bin.99", tmp_path / ".tokens-0123.bin.100"
    for place in (old, new):
        place.touch()
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    TokenFile.build(tmp_path / "tokens.json", TEXTS, tokenizer)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_damaged_token_file_is_refused(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    built = TokenFile.build(path, TEXTS, tokenizer)
    content = json.loads(path.read_text())
    for change, message in (
        ({"format": 2}, "format is not 1"),
        ({"num_tokens": 5}, "bytes for 5 tokens"),
        ({"dtype": "int7"}, "is no token file"),
        ({"more": 1}, "is no token file"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(DataError, match=message):
            TokenFile.open(path)
    path.write_text(json.dumps(content))
    (tmp_path / built.data).unlink()
    with pytest.raises(DataError, match=r"\.bin cannot be read: No such file"):
        TokenFile.open(path)
    with pytest.raises(DataError, match="build it again"):
        built.tokens()


def test_texts_without_a_character_are_refused(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hold no character"):
        TokenFile.build(tmp_path / "tokens.json", ["", ""], tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file cannot be written"):
        TokenFile.build(tmp_path / "file" / "tokens.json", TEXTS, tokenizer)
