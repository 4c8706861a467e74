"""Any text comes back exactly, the same texts give the same vocabulary, and what is wrong is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_trainer.exceptions import DataError, TokenizerNotTrainedException
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.tokenizer.pieces import pieces

CORPUS = [
    "def add(left, right):\n    return left + right\n" * 3,
    "Hello world! Grüße, 世界.\n\n\tHello world again. " * 3,
]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    trained = BPETokenizer()
    trained.train(CORPUS, vocab_size=320)
    return trained


@given(text=st.text())
def test_any_text_comes_back(tokenizer: BPETokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@given(text=st.text(alphabet="a b\n\t世<|eos|>"))
def test_a_special_token_is_never_read_from_a_text(tokenizer: BPETokenizer, text: str) -> None:
    ids = tokenizer.encode(f"{text}<|eos|>{text}", add_special_tokens=False)
    assert min(ids) >= len(tokenizer.special_tokens)


@given(text=st.text(alphabet="ab \n\t\r.世'", max_size=60), size=st.integers(1, 20))
def test_a_text_cut_into_pieces_encodes_as_the_whole(tokenizer: BPETokenizer, text: str, size: int) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    assert list(chain.from_iterable(tokenizer.encode_batch(parts))) == tokenizer.encode(text, add_special_tokens=False)


def test_pieces_are_not_much_longer_than_asked() -> None:
    assert [len(part) for part in pieces("visible\n" * 10, size=10)] == [16] * 5


def test_begin_and_end_stand_around_a_text(tokenizer: BPETokenizer) -> None:
    inner = tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.encode("Hello") == [tokenizer.bos_token_id, *inner, tokenizer.eos_token_id]
    assert tokenizer.decode(tokenizer.encode("Hello"), skip_special_tokens=False) == "<|bos|>Hello<|eos|>"
    assert tokenizer.encode("") == [tokenizer.bos_token_id, tokenizer.eos_token_id]


def test_the_most_frequent_pair_is_merged_first() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train(["ab ab ab ab cd cd"], vocab_size=261)
    assert list(tokenizer.vocab)[-2:] == ["ab", "Ġab"]
    assert tokenizer.encode("abab", add_special_tokens=False) == [259, 259]


def test_the_same_texts_give_the_same_vocabulary(tokenizer: BPETokenizer) -> None:
    def streamed() -> Iterator[str]:
        yield from CORPUS

    again = BPETokenizer()
    again.train(streamed(), vocab_size=320)
    assert again.vocab == tokenizer.vocab
    assert again.digest == tokenizer.digest
    other = BPETokenizer()
    other.train([*CORPUS, "zebra zebra zebra zebra zebra"], vocab_size=320)
    assert other.digest != tokenizer.digest


def test_a_saved_tokenizer_is_json_and_encodes_alike(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "new" / "folder")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["tokenizer.json"]
    loaded = BPETokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert loaded.digest == tokenizer.digest
    assert loaded.vocab == tokenizer.vocab
    text = "Hello <|eos|> 世界\n"
    assert loaded.encode(text) == tokenizer.encode(text)


def test_transformers_reads_the_saved_tokenizer(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs.encode(CORPUS[1]) == tokenizer.encode(CORPUS[1])


def test_properties_and_statistics(tokenizer: BPETokenizer) -> None:
    stats = tokenizer.get_vocab_stats()
    assert tokenizer.special_tokens == ["<|pad|>", "<|bos|>", "<|eos|>"]
    assert [tokenizer.vocab[token] for token in tokenizer.special_tokens] == [
        tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id,
    ]  # fmt: skip
    assert stats["vocab_size"] == tokenizer.vocab_size == len(tokenizer.vocab) == len(tokenizer) <= 320
    assert stats["num_merges"] + 256 + 3 == tokenizer.vocab_size
    lengths = [len(tokenizer.decode([i]).encode()) for i in range(259, tokenizer.vocab_size)]
    assert stats["longest_token_bytes"] == max(lengths)


def test_arrays_are_decoded(tokenizer: BPETokenizer) -> None:
    ids = np.array(tokenizer.encode("Hello"), dtype=np.uint16)
    assert tokenizer.decode(ids) == tokenizer.decode(list(ids)) == "Hello"


@pytest.mark.parametrize(
    "use",
    [
        lambda tokenizer: tokenizer.encode("a"),
        lambda tokenizer: tokenizer.decode([1]),
        lambda tokenizer: tokenizer.save_pretrained("x"),
        lambda tokenizer: tokenizer.vocab_size,
        lambda tokenizer: tokenizer.get_vocab_stats(),
        lambda tokenizer: tokenizer.digest,
    ],
)
def test_an_untrained_tokenizer_says_so(use: Callable[[BPETokenizer], object]) -> None:
    with pytest.raises(TokenizerNotTrainedException, match="no vocabulary; call train"):
        use(BPETokenizer())


def test_a_failed_training_leaves_the_tokenizer_untrained() -> None:
    tokenizer = BPETokenizer()
    with pytest.raises(DataError, match=r"texts\[1\] holds half of a surrogate pair, U\+D800 at character 2"):
        tokenizer.train(["fine", "ab\ud800"])
    with pytest.raises(TokenizerNotTrainedException):
        tokenizer.encode("fine")


@pytest.mark.parametrize(
    ("texts", "vocab_size", "message"),
    [
        (["a"], 100, "vocab_size is 100; it must be at least 259"),
        (["a"], True, "vocab_size is True"),
        ("one text", 300, "texts is one str"),
        ([], 300, "texts holds no character"),
        (["", ""], 300, "texts holds no character"),
        ([None], 300, r"texts\[0\] is NoneType; expected str"),
    ],
)
def test_bad_training_input_is_refused(texts: object, vocab_size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        BPETokenizer().train(texts, vocab_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 10**6, "a", 1.5, None])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: BPETokenizer, token_id: int) -> None:
    with pytest.raises(DataError, match="token_ids holds"):
        tokenizer.decode([token_id])


def test_a_surrogate_is_refused(tokenizer: BPETokenizer) -> None:
    with pytest.raises(DataError, match=r"text holds half of a surrogate pair, U\+DFFF at character 0"):
        tokenizer.encode("\udfff")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("model"), "no 'model'"),
        (lambda saved: saved["model"]["vocab"].popitem(), "is not in the vocabulary"),
        (lambda saved: saved["model"]["vocab"].pop("<|eos|>"), "are not 0, 1, 2"),
        (lambda saved: saved["pre_tokenizer"].update(type="Whitespace"), "pre_tokenizer is not GPT-2's"),
        (lambda saved: saved.update(normalizer={"type": "Lowercase"}), "normalizer is set"),
        (lambda saved: saved["model"].update(merges=[["a"]]), "is no byte-level BPE tokenizer"),
        (lambda saved: saved.update(pre_tokenizer=None), "is no byte-level BPE tokenizer"),
    ],
)
def test_a_damaged_file_is_refused(
    tokenizer: BPETokenizer, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(DataError, match=message):
        BPETokenizer.from_pretrained(tmp_path)


def test_a_file_that_is_missing_or_cut_is_refused(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read: No such file"):
        BPETokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text()[:5000])
    with pytest.raises(DataError, match="is no byte-level BPE tokenizer"):
        BPETokenizer.from_pretrained(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="is not UTF-8"):
        BPETokenizer.from_pretrained(path)
