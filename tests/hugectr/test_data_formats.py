"""Raw and Parquet files and keysets: what was written is read, and what is broken is named."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugectr.data.file_list import write_file_list
from hugectr.data.keyset import keys_of, read_keyset, write_keyset, write_keysets
from hugectr.data.norm import write_norm
from hugectr.data.parquet import METADATA, write_parquet
from hugectr.data.raw import RawFile, write_raw
from hugectr.data.readers import make_reader
from hugectr.data.samples import Samples, joined, layout_of
from hugectr.data.sources import open_source
from hugectr.exceptions import DataError, HugeCtrError
from predictor.recommender.hugectr.sections import Data
from tests.hugectr.data_made import data_layer, same, some_samples

SIZES = (50, 60, 70)
SLOTS = {"wide": 1, "deep": 2}


def layer(source: Path, kind: str, **changes: Any) -> Data:
    return data_layer(source, SLOTS, format=kind, slot_size_array=SIZES, **changes)


def all_samples(data: Data, *, num_samples: int | None = None) -> Samples:
    source = open_source(data, data.source, is_64_bit=data.format == "Parquet", num_samples=num_samples)
    files = [open_file() for open_file in source.files]
    return joined([file.read(0, file.num_samples) for file in files])


def raw_words(path: Path, words: list[list[int]]) -> Path:
    path.write_bytes(np.array(words, "<i4").tobytes())
    return path


@pytest.mark.parametrize("is_float", [True, False])
def test_raw_that_was_written_is_read(tmp_path: Path, is_float: bool) -> None:
    path = tmp_path / "data.bin"
    parts = [some_samples(number, 3, vocabulary=50, seed=number) for number in (4, 3)]
    if not is_float:
        parts = [part._replace(dense=np.log(np.rint(part.dense * 9) + 1).astype(np.float32)) for part in parts]
    write_raw(path, parts, is_float=is_float)
    assert path.stat().st_size == 7 * 4 * (1 + 3 + 3)
    assert same(all_samples(layer(path, "Raw", float_label_dense=is_float)), joined(parts))


def test_dense_features_of_raw_data_are_logarithms(tmp_path: Path) -> None:
    path = raw_words(tmp_path / "data.bin", [[1, 0, 1, 99, 7, 8, 9], [0, 2, 3, 4, 10, 11, 12]])
    samples = all_samples(layer(path, "Raw"))
    assert samples.label.tolist() == [[1], [0]]
    assert samples.dense == pytest.approx(np.log([[1, 2, 100], [3, 4, 5]]), rel=1e-6)
    assert samples.keys.tolist() == [7, 10, 8, 11, 9, 12]
    assert samples.lengths.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([1, 0, 0, 0, 50, 0, 0], r"sample 1: the key of slot 0 is 50; its keys are from 0 to below 50"),
        ([1, 0, 0, 0, 0, 0, -1], r"sample 1: the key of slot 2 is -1; its keys are from 0 to below 70"),
        ([1, 0, 0, -4, 0, 0, 0], r"sample 1: dense feature 2 is -4"),
    ],
)
def test_wrong_value_of_raw_data_is_named(tmp_path: Path, words: list[int], message: str) -> None:
    path = raw_words(tmp_path / "data.bin", [[1, 0, 0, 0, 1, 1, 1], words])
    with pytest.raises(DataError, match=message):
        all_samples(layer(path, "Raw"))


def test_torn_raw_data_are_found(tmp_path: Path) -> None:
    path = raw_words(tmp_path / "data.bin", [[1, 0, 0, 0, 1, 1, 1]] * 3)
    file = RawFile(path, layout_of(layer(path, "Raw")), is_float=False)
    path.write_bytes(path.read_bytes()[:-28])
    with pytest.raises(DataError, match=r"data.bin ends within sample 2"):
        file.read(1, 3)
    with pytest.raises(DataError, match=r"holds 2 samples; num_samples of the data layer is 3"):
        all_samples(layer(path, "Raw"), num_samples=3)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="25 after its last whole sample; a sample has 28"):
        all_samples(layer(path, "Raw"))
    with pytest.raises(DataError, match="does not exist"):
        all_samples(layer(tmp_path, "Raw"))


def test_number_of_samples_is_that_of_the_first_source_alone(tmp_path: Path) -> None:
    first = raw_words(tmp_path / "first.bin", [[1, 0, 0, 0, 1, 1, 1]] * 4)
    second = raw_words(tmp_path / "second.bin", [[1, 0, 0, 0, 1, 1, 1]] * 2)
    reader = make_reader(
        layer(first, "Raw"), source=str(first), batch_size=8, rank=0, num_ranks=1, i64_input_key=False, repeat=False,
        num_samples=3,
    )  # fmt: skip
    sizes = []
    for name in ("", str(second), str(first)):
        reader.set_source(name)
        batch = reader.next()
        assert batch is not None
        sizes.append(batch.num_samples)
    reader.close()
    assert sizes == [3, 2, 4]


def parquet(folder: Path, files: list[int], **options: Any) -> tuple[Data, list[Samples]]:
    parts = [some_samples(number, 3, vocabulary=50, seed=number) for number in files]
    names = [f"{number}.parquet" for number in range(len(files))]
    write_file_list(folder / "list.txt", write_parquet(folder, zip(names, parts, strict=True), **options))
    return layer(folder / "list.txt", "Parquet"), parts


@pytest.mark.parametrize("rows_per_group", [1, 3, 100])
def test_parquet_that_was_written_is_read(tmp_path: Path, rows_per_group: int) -> None:
    data, parts = parquet(tmp_path, [7, 5], rows_per_group=rows_per_group)
    assert same(all_samples(data), joined(parts))
    first = open_source(data, data.source, is_64_bit=True).files[0]()
    assert same(joined([first.read(0, 2), first.read(2, 6), first.read(6, 7)]), parts[0])


def test_features_of_parquet_are_in_the_order_of_their_indices(tmp_path: Path) -> None:
    data, parts = parquet(tmp_path, [4])
    path = tmp_path / "0.parquet"
    table = pq.read_table(path)
    pq.write_table(table.select(list(reversed(table.column_names))), path)
    metadata = json.loads((tmp_path / METADATA).read_text())
    metadata["cats"].reverse()
    (tmp_path / METADATA).write_text(json.dumps(metadata))
    assert same(all_samples(data), parts[0])


def _without(table: pa.Table) -> pa.Table:
    return table.drop_columns(["C2"])


def _with_null(table: pa.Table) -> pa.Table:
    return table.set_column(1, "I1", pa.array([1.0, None, 1.0, 1.0], pa.float32()))


def _with_text(table: pa.Table) -> pa.Table:
    return table.set_column(4, "C1", pa.array(["a"] * 4))


def _with_whole_numbers(table: pa.Table) -> pa.Table:
    return table.set_column(0, "label", pa.array([1] * 4))


def _with_large_key(table: pa.Table) -> pa.Table:
    return table.set_column(6, "C3", pa.array([1, 1, 1, 70]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "0.parquet: column C2 of _metadata.json is missing"),
        (_with_null, "0.parquet, row 1: column I1 has no value"),
        (_with_text, "0.parquet: column C1 is of type string; expected int64"),
        (_with_whole_numbers, "0.parquet: column label is of type int64; expected float"),
        (_with_large_key, "0.parquet, sample 3: the key of slot 2 is 70"),
        (lambda table: table.slice(1), "0.parquet has 3 rows; _metadata.json says 4"),
    ],
)
def test_wrong_parquet_file_is_named(tmp_path: Path, change: Any, message: str) -> None:
    data, _ = parquet(tmp_path, [4])
    pq.write_table(change(pq.read_table(tmp_path / "0.parquet")), tmp_path / "0.parquet")
    with pytest.raises(DataError, match=message):
        all_samples(data)


@pytest.mark.parametrize("kept", [0, 3, 200])
def test_torn_parquet_file_is_named(tmp_path: Path, kept: int) -> None:
    data, _ = parquet(tmp_path, [4])
    path = tmp_path / "0.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"0.parquet is no Parquet file, or torn"):
        all_samples(data)


@settings(max_examples=40)
@given(place=st.integers(0), change=st.integers(1, 255))
def test_changed_byte_of_a_page_is_found_or_without_effect(place: int, change: int) -> None:
    with TemporaryDirectory() as folder:
        data, parts = parquet(Path(folder), [4])
        path = Path(folder, "0.parquet")
        content = bytearray(path.read_bytes())
        footer_bytes = int.from_bytes(content[-8:-4], "little")
        place %= len(content) - 8 - footer_bytes
        content[place] = (content[place] + change) % 256
        path.write_bytes(content)
        with suppress(DataError):
            assert same(all_samples(data), parts[0])


def test_damaged_page_of_parquet_is_named(tmp_path: Path) -> None:
    data, _ = parquet(tmp_path, [4])
    path = tmp_path / "0.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"0.parquet, row group 0: torn"):
        all_samples(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cats": []}, "cats has 0 columns; the configuration has 3"),
        ({"file_stats": []}, "file_stats does not have 0.parquet"),
        ({"labels": [{"col_name": "label"}]}, "labels.0.index"),
        ({"conts": "I1"}, "conts"),
    ],
)
def test_wrong_metadata_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data, _ = parquet(tmp_path, [4])
    path = tmp_path / METADATA
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        all_samples(data)


def test_missing_metadata_are_named(tmp_path: Path) -> None:
    data, _ = parquet(tmp_path, [4])
    (tmp_path / METADATA).write_text("{")
    with pytest.raises(DataError, match=r"_metadata.json: not JSON"):
        all_samples(data)
    (tmp_path / METADATA).unlink()
    with pytest.raises(DataError, match=r"_metadata.json does not exist"):
        all_samples(data)


@pytest.mark.parametrize(("kind", "is_64_bit"), [("Raw", True), ("Parquet", False)])
def test_width_of_keys_that_a_format_lacks_is_refused(tmp_path: Path, kind: str, is_64_bit: bool) -> None:
    with pytest.raises(HugeCtrError, match=f"{kind} data have"):
        make_reader(
            layer(tmp_path, kind), source="", batch_size=1, rank=0, num_ranks=1, i64_input_key=is_64_bit, repeat=True,
            num_samples=None,
        )  # fmt: skip


@pytest.mark.parametrize("is_64_bit", [True, False])
def test_keysets_hold_the_keys_of_their_list(tmp_path: Path, is_64_bit: bool) -> None:
    parts = [some_samples(8, 3, 3, seed=seed) for seed in range(2)]
    for number, part in enumerate(parts):
        write_norm(tmp_path / f"{number}.data", part, is_64_bit=is_64_bit, is_checked=False)
    write_file_list(tmp_path / "list.0.txt", [tmp_path / "0.data", tmp_path / "1.data"])
    data = data_layer(tmp_path / "list.0.txt", SLOTS)
    expected = {
        "wide": {int(key) for part in parts for key in part.keys[: part.lengths[0].sum()]},
        "deep": {int(key) for part in parts for key in part.keys[part.lengths[0].sum() :]},
    }
    keys = keys_of(data, data.source, is_64_bit=is_64_bit)
    assert {name: set(own.tolist()) for name, own in keys.items()} == expected
    (together,) = write_keysets(data, data.source, is_64_bit=is_64_bit)
    assert together == tmp_path / "list.0.keyset"
    assert together.stat().st_size == (8 if is_64_bit else 4) * len(expected["wide"] | expected["deep"])
    assert set(read_keyset(together, is_64_bit=is_64_bit).tolist()) == expected["wide"] | expected["deep"]
    wide, deep = write_keysets(data, data.source, is_64_bit=is_64_bit, per_table=True)
    assert (wide.name, deep.name) == ("list.0.wide.keyset", "list.0.deep.keyset")
    assert set(read_keyset(deep, is_64_bit=is_64_bit).tolist()) == expected["deep"]


def test_wrong_keyset_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.0.keyset"
    with pytest.raises(DataError, match="does not exist"):
        read_keyset(path, is_64_bit=True)
    path.write_bytes(bytes(12))
    with pytest.raises(DataError, match="has 12 bytes; a keyset of 64-bit keys is torn there"):
        read_keyset(path, is_64_bit=True)
    assert read_keyset(path, is_64_bit=False).tolist() == [0]
    with pytest.raises(DataError, match="uint32 does not hold them"):
        write_keyset(path, np.array([2**32]), is_64_bit=False)
