"""No token is lost and none is added, whether documents are packed or stand alone."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from llm_trainer.data import LanguageModelingDataset, TokenFile, create_dataloader, dataset_from_config, tokenize_once
from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer import BPETokenizer

DOCUMENTS = st.lists(st.text(alphabet="ab \n世", max_size=40), min_size=1, max_size=8).filter(any)
LENGTHS = st.integers(2, 17)


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    trained = BPETokenizer()
    trained.train(["ab ab 世 ab\nba"], vocab_size=265)
    return trained


def real_tokens(dataset: LanguageModelingDataset) -> list[list[int]]:
    """Return the tokens of each item that its mask, or the lack of one, calls tokens; labels must agree."""
    items = []
    for item in dataset:
        size = int(item["attention_mask"].sum()) if "attention_mask" in item else dataset.max_length
        assert item["input_ids"].shape == item["labels"].shape == (dataset.max_length,)
        assert item["labels"][:size].equal(item["input_ids"][:size])
        assert set(item["labels"][size:].tolist()) <= {-100}
        assert set(item["input_ids"][size:].tolist()) <= {0}
        if "attention_mask" in item:
            assert item["attention_mask"].tolist() == [1] * size + [0] * (dataset.max_length - size)
        items.append(item["input_ids"][:size].tolist())
    return items


@given(texts=DOCUMENTS, max_length=LENGTHS)
def test_packing_loses_no_token(tokenizer: BPETokenizer, texts: list[str], max_length: int) -> None:
    dataset = LanguageModelingDataset(texts, tokenizer, max_length)
    items = real_tokens(dataset)
    expected = [token for text in texts if text for token in tokenizer.encode(text)]
    assert [token for item in items for token in item] == expected
    assert len(dataset) == -(-len(expected) // max_length)
    assert all(len(item) == max_length for item in items[:-2])
    # A single token has nothing to predict, and the loss of a batch of it would be 0 / 0.
    assert max_length == 2 or min(len(item) for item in items) >= 2


@given(texts=DOCUMENTS, max_length=LENGTHS)
def test_documents_that_stand_alone_lose_no_token(tokenizer: BPETokenizer, texts: list[str], max_length: int) -> None:
    items = real_tokens(LanguageModelingDataset(texts, tokenizer, max_length, pack_sequences=False))
    joined: list[list[int]] = []
    for item in items:
        if item[0] == tokenizer.bos_token_id:
            joined.append([])
        joined[-1] += item
    assert joined == [tokenizer.encode(text) for text in texts if text]
    assert max_length == 2 or min(len(item) for item in items) >= 2


@given(texts=DOCUMENTS, min_length=st.integers(0, 12))
def test_short_documents_are_left_out_and_counted(tokenizer: BPETokenizer, texts: list[str], min_length: int) -> None:
    kept = [ids for text in texts if text and len(ids := tokenizer.encode(text)) - 2 >= min_length]
    if not kept:
        with pytest.raises(DataError, match=f"no document has min_length, {min_length}, tokens"):
            LanguageModelingDataset(texts, tokenizer, 64, pack_sequences=False, min_length=min_length)
        return
    dataset = LanguageModelingDataset(texts, tokenizer, 64, pack_sequences=False, min_length=min_length)
    assert real_tokens(dataset) == kept
    stats = dataset.get_stats()
    assert stats["num_documents_left_out"] + len(kept) == stats["num_documents"] == sum(map(bool, texts))
    assert stats["num_tokens"] == sum(map(len, kept))
    assert stats["padding_fraction"] == pytest.approx(1 - stats["num_tokens"] / (64 * len(dataset)))
    assert dataset.pack_sequences() == len(dataset) == -(-sum(len(tokenizer.encode(t)) for t in texts if t) // 64)
    assert dataset.get_stats()["num_documents_left_out"] == 0


def test_a_scan_in_parts_finds_the_same_documents(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ab " * size for size in range(1, 30)]
    expected = real_tokens(LanguageModelingDataset(texts, tokenizer, 16, pack_sequences=False))
    monkeypatch.setattr("llm_trainer.data.dataset.SCANNED_AT_ONCE", 7)
    assert real_tokens(LanguageModelingDataset(texts, tokenizer, 16, pack_sequences=False)) == expected


def test_a_token_file_gives_the_same_items(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    texts = ["ab " * size for size in range(1, 30)]
    file = TokenFile.build(tmp_path / "tokens.json", texts, tokenizer)
    for pack_sequences in (True, False):
        expected = real_tokens(LanguageModelingDataset(texts, tokenizer, 16, pack_sequences))
        on_disk = LanguageModelingDataset.from_token_file(tmp_path / "tokens.json", tokenizer, 16, pack_sequences)
        assert real_tokens(on_disk) == expected
        content = ForkingPickler.dumps(on_disk)
        assert real_tokens(ForkingPickler.loads(content)) == expected
    assert len(content) < file.num_tokens * 2 + 4000  # another process maps the file; it is not sent the tokens
    other = BPETokenizer()
    other.train(["other"], vocab_size=259)
    with pytest.raises(DataError, match="written with another tokenizer"):
        LanguageModelingDataset.from_token_file(file, other)


def test_a_batch_has_a_mask_if_an_item_of_it_is_padded(tokenizer: BPETokenizer) -> None:
    dataset = LanguageModelingDataset(["ab " * 20], tokenizer, max_length=8)
    full, padded = 0, len(dataset) - 1
    assert "attention_mask" not in dataset[full]
    assert "attention_mask" in dataset[padded]
    assert dataset[-1]["input_ids"].equal(dataset[padded]["input_ids"])
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    together = dataset.__getitems__([full, padded])
    assert [item["attention_mask"].sum().item() for item in together] == [8, dataset[padded]["attention_mask"].sum()]
    for item, index in zip(together, (full, padded), strict=True):
        assert item["input_ids"].equal(dataset[index]["input_ids"])
        assert item["labels"].equal(dataset[index]["labels"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_delivers_every_item_once(tokenizer: BPETokenizer, num_workers: int) -> None:
    dataset = LanguageModelingDataset([f"ab {n} " * n for n in range(12)], tokenizer, max_length=16)
    loader = create_dataloader(dataset, batch_size=4, shuffle=True, num_workers=num_workers, pin_memory=True)
    assert type(loader) is DataLoader
    rows = [row for batch in loader for row in batch["input_ids"].tolist()]
    assert sorted(rows) == sorted(item["input_ids"].tolist() for item in dataset)
    assert len(create_dataloader(dataset, batch_size=4, drop_last=True)) == len(dataset) // 4


def test_a_configuration_gives_its_items(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    from llm_trainer.config import DataConfig
    from llm_trainer.data import Source

    (tmp_path / "a.txt").write_text("ab " * 50)
    config = DataConfig(train_file=str(tmp_path / "a.txt"), max_length=16, min_length=3, pack_sequences=False)
    source = Source.local(tmp_path / "a.txt")
    dataset = dataset_from_config(config, source, tokenizer, tmp_path / "tokens.json")
    assert (dataset.max_length, dataset.min_length, dataset.is_packed) == (16, 3, False)
    expected = LanguageModelingDataset(["ab " * 50], tokenizer, 16, pack_sequences=False, min_length=3)
    assert real_tokens(dataset) == real_tokens(expected)
    assert tokenize_once(tmp_path / "tokens.json", source, tokenizer).num_documents == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": "one"}, "texts is one str"),
        ({"texts": []}, "hold no character"),
        ({"texts": ["", ""]}, "hold no character"),
        ({"texts": ["a", None]}, r"texts\[1\] is NoneType"),
        ({"max_length": 1}, "max_length is 1; a sample needs at least 2"),
        ({"min_length": -1}, "min_length is -1"),
        ({"min_length": 99, "pack_sequences": False}, "no document has min_length, 99, tokens"),
    ],
)
def test_bad_values_are_one_line(tokenizer: BPETokenizer, options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        LanguageModelingDataset(**{"texts": ["ab"], "tokenizer": tokenizer, **options})  # type: ignore[arg-type]


def test_a_batch_of_no_item_is_refused(tokenizer: BPETokenizer) -> None:
    dataset = LanguageModelingDataset(["ab"], tokenizer)
    with pytest.raises(DataError, match="batch_size is 0; it must be at least 1"):
        create_dataloader(dataset, batch_size=0)
    with pytest.raises(DataError, match="num_workers is -1"):
        create_dataloader(dataset, num_workers=-1)
