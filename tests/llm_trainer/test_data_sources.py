"""Files and folders become documents; what is damaged is named by file and line."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_trainer.config import DataConfig
from llm_trainer.data import Source, training_source, validation_source
from llm_trainer.data import hub as hub_module
from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer import BPETokenizer

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow  # noqa: E402


def test_a_text_file_is_a_document_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Zeile 1\r\nGrüße\n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed", mtime=0))
    assert list(Source.local(tmp_path).texts()) == ["Zeile 1\r\nGrüße\n", "packed"]


def test_a_json_line_is_a_document(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "first", "id": 1}), "", json.dumps("second"), json.dumps({"text": "third\n"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert list(Source.local(tmp_path / "a.jsonl").texts()) == ["first", "second", "third\n"]


def test_a_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    parquet.write_table(
        pyarrow.table({"body": ["a", "b", "世"], "n": [1, 2, 3]}), tmp_path / "a.parquet", row_group_size=2
    )
    assert list(Source.local(tmp_path, text_column="body").texts()) == ["a", "b", "世"]


def test_folders_and_patterns_are_read_in_the_order_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.py", "image.png"):
        (tmp_path / name).write_text(name)
    assert list(Source.local(tmp_path).texts()) == ["a.md", "b.txt", "sub/c.py"]
    assert list(Source.local(str(tmp_path / "*.txt")).texts()) == ["b.txt"]
    assert list(Source.local(str(tmp_path / "**" / "*.py")).texts()) == ["sub/c.py"]
    assert list(Source.local([tmp_path / "b.txt", tmp_path / "a.md"]).texts(limit=1)) == ["b.txt"]
    monkeypatch.chdir(tmp_path)
    assert list(Source.local("*.txt").texts()) == list(Source.named("*.txt").texts()) == ["b.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nfine\nbad \xff here", r"a\.txt, line 3: byte 0xff is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        (
            "a.jsonl",
            b'{"text": "x"}\n\n{"txt": "x"}\n',
            r"a\.jsonl, line 3: no key text; text_column must be one of txt",
        ),
        ("a.jsonl", b'{"text": null}\n', r"a\.jsonl, line 1: text is null; expected text"),
        ("a.jsonl", b"[1, 2]\n", r"a\.jsonl, line 1: list; expected an object"),
        ("a.jsonl", b'"\xff"\n', r"a\.jsonl, line 1: byte 0xff is not UTF-8"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: not JSON"),
        ("a.txt.gz", b"not gzip", r"a\.txt\.gz is damaged"),
        ("a.txt.gz", gzip.compress(b"x" * 1000, mtime=0)[:-10], r"a\.txt\.gz is damaged"),
        ("a.parquet", b"no table", r"a\.parquet is damaged"),
    ],
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        list(Source.local(tmp_path / name).texts())
    assert "\n" not in str(raised.value)


def test_a_table_without_the_column_or_with_an_empty_cell_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"body": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has no column text; text_column must be one of body"):
        list(Source.local(tmp_path).texts())
    with pytest.raises(DataError, match=r"a\.parquet, row 2: body is None"):
        list(Source.local(tmp_path, "body").texts())


def test_places_that_hold_nothing_to_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").touch()
    with pytest.raises(DataError, match=r"image\.png ends in \.png; expected one of \.txt"):
        Source.local(tmp_path / "image.png")
    with pytest.raises(DataError, match=r"holds no file that ends in one of \.txt"):
        Source.local(tmp_path)
    with pytest.raises(DataError, match=r"missing\.txt does not exist"):
        Source.named(str(tmp_path / "missing.txt"))
    with pytest.raises(DataError, match=r"no file matches .*\*\.txt"):
        Source.local(str(tmp_path / "*.txt"))
    with pytest.raises(DataError, match="no file is named"):
        Source.local([])


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    before = Source.local(file).fingerprint()
    assert Source.local(tmp_path).fingerprint() == before
    assert Source.local(file, "body").fingerprint() != before
    file.write_text("three")
    source = Source.local(file)
    assert source.fingerprint() != before
    file.unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read: No such file"):
        source.fingerprint()


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
def test_without_the_hubs_library_one_line_says_what_would_do() -> None:
    for act in (
        lambda: list(Source.named("wikitext", "wikitext-2-raw-v1").texts()),
        lambda: Source.named("wikitext").fingerprint(),
        lambda: BPETokenizer().train_from_dataset("wikitext", dataset_config="wikitext-2-raw-v1", vocab_size=32000),
    ):
        with pytest.raises(DataError, match=r"wikitext .* pip install datasets.*train_file in DataConfig") as raised:
            act()
        assert "\n" not in str(raised.value)


class Table(list[dict[str, Any]]):
    """What ``datasets`` returns, as far as it is used."""

    _fingerprint = "f00d"

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def select_columns(self, names: list[str]) -> Table:
        return Table({name: row[name] for name in names} for row in self)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Stand in for the hub, and record what is asked of it."""
    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, config: str | None, split: str) -> Table:
        asked.append((name, config, split))
        if name == "offline":
            raise ConnectionError("Couldn't reach\nthe hub")
        return Table([{"text": "ab ab ab", "n": 1}, {"text": "cd", "n": 2}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    hub_module.loaded.cache_clear()
    return asked


def test_a_name_that_is_no_file_is_one_of_the_hub(hub: list[tuple[object, ...]]) -> None:
    source = Source.named("wikitext", "wikitext-2-raw-v1", split="test")
    assert list(source.texts()) == ["ab ab ab", "cd"]
    assert hub == [("wikitext", "wikitext-2-raw-v1", "test")]
    assert source.fingerprint() != Source.named("wikitext", "wikitext-2-raw-v1", split="train").fingerprint()
    tokenizer = BPETokenizer()
    tokenizer.train_from_dataset("wikitext", vocab_size=260, dataset_config="wikitext-2-raw-v1")
    assert list(tokenizer.vocab)[-1] == "ab"


def test_a_hub_that_cannot_be_reached_and_a_wrong_column_are_one_line(hub: list[tuple[object, ...]]) -> None:
    with pytest.raises(
        DataError, match=r"data set offline cannot be loaded .*Couldn't reach the hub\. Or give a local"
    ):
        list(Source.named("offline").texts())
    with pytest.raises(DataError, match="has no column body; text_column must be one of text, n"):
        list(Source.named("some/data", text_column="body").texts())
    with pytest.raises(DataError, match="some/data, row 0: n is 1; expected text"):
        list(Source.named("some/data", text_column="n").texts())
    assert hub


def test_a_configuration_names_its_texts(tmp_path: Path) -> None:
    for name in ("train.jsonl", "validation.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": name}))
    config = DataConfig(dataset_name=str(tmp_path))
    validation = validation_source(config)
    assert validation is not None
    assert [*training_source(config).texts(), *validation.texts()] == ["train.jsonl", "validation.jsonl"]
    with pytest.raises(DataError, match="has no split test; it has train, validation"):
        Source.named(str(tmp_path), split="test")
    alone = DataConfig(train_file=str(tmp_path / "train.jsonl"))
    assert list(training_source(alone).texts()) == ["train.jsonl"]
    assert validation_source(alone) is None
    both = DataConfig(train_file=str(tmp_path / "train.jsonl"), validation_file=str(tmp_path / "validation.jsonl"))
    validation = validation_source(both)
    assert validation is not None
    assert list(validation.texts()) == ["validation.jsonl"]


def test_a_folder_without_splits_has_no_validation_texts(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("text")
    config = DataConfig(dataset_name=str(tmp_path))
    assert list(training_source(config).texts()) == ["text"]
    assert validation_source(config) is None
