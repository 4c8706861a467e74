"""Norm files: what was written is read, and what is broken is named."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugectr.data.norm import NormFile, write_norm
from hugectr.data.samples import Samples, layout_of
from hugectr.exceptions import DataError
from tests.hugectr.data_made import data_layer, same, some_samples

HEADER_BYTES = 64
NUM_SLOTS = 5


def opened(path: Path, *, is_64_bit: bool = False, asks_check: bool = True, **changes: object) -> NormFile:
    layout = layout_of(data_layer("", {"deep": NUM_SLOTS}, **changes))
    return NormFile(path, layout, is_64_bit=is_64_bit, asks_check=asks_check)


def read_all(path: Path, **changes: object) -> Samples:
    file = opened(path, **changes)  # type: ignore[arg-type]
    return file.read(0, file.num_samples)


def written(path: Path, samples: Samples | None = None, *, is_64_bit: bool = False, is_checked: bool = True) -> Path:
    write_norm(path, samples or some_samples(20, NUM_SLOTS, 3), is_64_bit=is_64_bit, is_checked=is_checked)
    return path


@given(
    num_samples=st.integers(0, 30), fewest=st.integers(0, 1), more=st.integers(0, 3), is_64_bit=st.booleans(),
    is_checked=st.booleans(), label_dim=st.integers(0, 2), dense_dim=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_was_written_is_read(
    num_samples: int, fewest: int, more: int, is_64_bit: bool, is_checked: bool, label_dim: int, dense_dim: int,
    seed: int,
) -> None:  # fmt: skip
    vocabulary = 2**40 if is_64_bit else 2**32
    samples = some_samples(
        num_samples, NUM_SLOTS, fewest + more, min_nnz=fewest, label_dim=label_dim, dense_dim=dense_dim, seed=seed,
        vocabulary=vocabulary,
    )  # fmt: skip
    layout = layout_of(data_layer("", {"deep": NUM_SLOTS}))._replace(label_dim=label_dim, dense_dim=dense_dim)
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "0.data"), samples, is_64_bit=is_64_bit, is_checked=is_checked)
        file = NormFile(path, layout, is_64_bit=is_64_bit, asks_check=is_checked)
        assert file.num_samples == num_samples
        assert same(file.read(0, num_samples), samples)


def test_bytes_are_those_of_the_documentation(tmp_path: Path) -> None:
    samples = Samples(
        label=np.array([[1]], np.float32),
        dense=np.array([[0.5, 2]], np.float32),
        keys=np.array([7, 8, 9]),
        lengths=np.array([[2], [1]], np.int32),
    )
    payload = struct.pack("<3f", 1, 0.5, 2) + struct.pack("<iII", 2, 7, 8) + struct.pack("<iI", 1, 9)
    header = struct.pack("<8q", 0, 1, 1, 2, 2, 0, 0, 0)
    path = tmp_path / "0.data"
    write_norm(path, samples, is_64_bit=False, is_checked=False)
    assert path.read_bytes() == header + payload
    write_norm(path, samples, is_64_bit=False, is_checked=True)
    header = struct.pack("<8q", 1, 1, 1, 2, 2, 0, 0, 0)
    records = [struct.pack("<i", len(part)) + part + bytes([sum(part) % 256]) for part in (header, payload)]
    assert path.read_bytes() == b"".join(records)


def test_header_may_be_bare_as_the_documentation_shows_it(tmp_path: Path) -> None:
    samples = some_samples(9, NUM_SLOTS, 2)
    path = written(tmp_path / "0.data", samples)
    path.write_bytes(path.read_bytes()[4 : 4 + HEADER_BYTES] + path.read_bytes()[4 + HEADER_BYTES + 1 :])
    assert same(read_all(path), samples)


@pytest.mark.parametrize("max_nnz", [1, 3])
@given(place=st.integers(0), change=st.integers(1, 255))
def test_every_changed_byte_of_a_checked_file_is_found(max_nnz: int, place: int, change: int) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "0.data"), some_samples(6, NUM_SLOTS, max_nnz))
        content = bytearray(path.read_bytes())
        content[place % len(content)] = (content[place % len(content)] + change) % 256
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"0.data"):
            read_all(path)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("max_nnz", [1, 3])
@given(kept=st.integers(0))
def test_every_torn_file_is_found(is_checked: bool, max_nnz: int, kept: int) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "0.data"), some_samples(6, NUM_SLOTS, max_nnz), is_checked=is_checked)
        content = path.read_bytes()
        path.write_bytes(content[: kept % len(content)])
        with pytest.raises(DataError, match=r"0.data"):
            read_all(path, asks_check=is_checked)


@pytest.mark.parametrize("is_checked", [True, False])
def test_bytes_after_the_last_sample_are_found(tmp_path: Path, is_checked: bool) -> None:
    path = written(tmp_path / "0.data", is_checked=is_checked)
    path.write_bytes(path.read_bytes() + bytes(8))
    with pytest.raises(DataError, match="20 samples end at byte"):
        read_all(path, asks_check=is_checked)


def test_wrong_check_sum_names_its_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "0.data", some_samples(6, NUM_SLOTS))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert opened(path).read(0, 5).label.shape == (5, 1)
    with pytest.raises(DataError, match="sample 5: its check sum is wrong"):
        opened(path).read(3, 6)
    assert read_all(path, asks_check=False).label.shape == (6, 1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, 2, "error_check is 2; expected 0 or 1"),
        (1, -1, "number_of_records of the header is -1"),
        (1, 19, "19 samples end at byte"),
        (1, 21, "sample 20 of the 21"),
        (2, 2, "label_dim of the header is 2; the configuration has 1"),
        (3, 0, "dense_dim of the header is 0; the configuration has 3"),
        (4, 6, "slot_num of the header is 6; the configuration has 5"),
    ],
)
def test_wrong_header_is_named(tmp_path: Path, field: int, value: int, message: str) -> None:
    path = written(tmp_path / "0.data", is_checked=False)
    content = bytearray(path.read_bytes())
    struct.pack_into("<q", content, 8 * field, value)
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_all(path, asks_check=False)


@pytest.mark.parametrize("number", [6, -1, 2**31 - 1])
@pytest.mark.parametrize("slot", [0, NUM_SLOTS - 1])
def test_wrong_number_of_keys_is_found(tmp_path: Path, number: int, slot: int) -> None:
    path = written(tmp_path / "0.data", some_samples(2, NUM_SLOTS), is_checked=False)
    content = bytearray(path.read_bytes())
    struct.pack_into("<i", content, HEADER_BYTES + 16 + 8 * slot, number)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"0.data ends at byte \d+, in or before sample"):
        read_all(path, asks_check=False)


def test_wrong_check_sum_of_the_header_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "0.data")
    content = bytearray(path.read_bytes())
    content[4 + HEADER_BYTES] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="check sum of the header is wrong"):
        read_all(path)


def test_check_sums_that_are_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no check sums; set check of the data layer to None"):
        read_all(written(tmp_path / "0.data", is_checked=False))


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("is_64_bit", [True, False])
def test_keys_of_the_other_width_are_found(tmp_path: Path, is_checked: bool, is_64_bit: bool) -> None:
    path = written(tmp_path / "0.data", is_64_bit=is_64_bit, is_checked=is_checked)
    with pytest.raises(DataError, match=r"0.data"):
        read_all(path, is_64_bit=not is_64_bit, asks_check=is_checked)


def test_more_keys_than_the_configuration_allows_are_named(tmp_path: Path) -> None:
    samples = some_samples(4, NUM_SLOTS, 3)
    sparse = {"top": "deep", "type": "DistributedSlot", "slot_num": NUM_SLOTS, "max_feature_num_per_sample": 100}
    path = written(tmp_path / "0.data", samples)
    most = samples.lengths.sum(axis=0)
    with pytest.raises(DataError, match=f"sample {most.argmax()}: deep has {most.max()} keys"):
        read_all(path, sparse=[sparse | {"max_feature_num_per_sample": int(most.max()) - 1}])
    with pytest.raises(DataError, match="has 3 keys; max_nnz of deep is 2"):
        read_all(path, sparse=[sparse | {"max_nnz": 2}])


def test_keys_of_stated_sizes_count_from_zero_in_every_slot(tmp_path: Path) -> None:
    sizes = (10, 20, 30, 40, 50)
    local = some_samples(8, NUM_SLOTS, 3, min_nnz=0, vocabulary=10)
    starts = np.repeat([0, 10, 30, 60, 100], local.lengths.sum(axis=1))
    path = written(tmp_path / "0.data", local._replace(keys=local.keys + starts))
    assert same(read_all(path, slot_size_array=sizes), local)
    wrong = local.keys + starts
    first = local.lengths[:3].sum()
    sample = int(np.flatnonzero(local.lengths[3])[0])
    wrong[first] = 100
    written(path, local._replace(keys=wrong))
    with pytest.raises(DataError, match=rf"sample {sample}: a key of slot 3 is 100; its keys are from 60 to below 100"):
        read_all(path, slot_size_array=sizes)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0.data does not exist"):
        opened(tmp_path / "0.data")


def test_key_too_large_for_32_bits_is_refused(tmp_path: Path) -> None:
    samples = some_samples(1, NUM_SLOTS)
    with pytest.raises(DataError, match="use I64 keys"):
        written(tmp_path / "0.data", samples._replace(keys=samples.keys + 2**32))
