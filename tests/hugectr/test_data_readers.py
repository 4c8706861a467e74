"""Readers: batches over files, ranks and repetitions, and the errors of file lists."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hugectr.data.batch import Batch
from hugectr.data.file_list import read_file_list, write_file_list
from hugectr.data.norm import write_norm
from hugectr.data.readers import Reader, make_reader
from hugectr.data.samples import joined
from hugectr.exceptions import DataError, HugeCtrError
from tests.hugectr.data_made import data_layer, some_samples

SLOTS = {"wide": 1, "deep": 3}


def data_set(folder: Path, files: list[int], name: str = "list.txt", seed: int = 0) -> Path:
    paths = [folder / f"{name}.{number}.data" for number in range(len(files))]
    for number, (path, num_samples) in enumerate(zip(paths, files, strict=True)):
        samples = some_samples(num_samples, 4, 3, min_nnz=0, seed=100 * seed + number)
        write_norm(path, samples, is_64_bit=False, is_checked=True)
    write_file_list(folder / name, paths)
    return folder / name


def reader(source: Path, batch_size: int, rank: int = 0, num_ranks: int = 1, *, repeat: bool = False) -> Reader:
    return make_reader(
        data_layer(source, SLOTS, check="Sum"), source=str(source), batch_size=batch_size, rank=rank,
        num_ranks=num_ranks, i64_input_key=False, repeat=repeat, num_samples=None,
    )  # fmt: skip


def batches(reader: Reader, limit: int = 1000) -> list[Batch]:
    taken: list[Batch] = []
    while len(taken) < limit and (batch := reader.next()) is not None:
        taken.append(batch)
    reader.close()
    return taken


def rows(batch: Batch) -> list[tuple[Any, ...]]:
    """Return every sample as (label, dense, keys of each slot)."""
    columns: list[list[list[int]]] = []
    for sparse in batch.sparse.values():
        ends = [0, *accumulate(sparse.lengths.tolist())]
        bags = [sparse.keys[start:end].tolist() for start, end in pairwise(ends)]
        columns += [bags[i : i + batch.num_samples] for i in range(0, len(bags), batch.num_samples)]
    return [
        (batch.label[i].tolist(), batch.dense[i].tolist(), [slot[i] for slot in columns])
        for i in range(batch.num_samples)
    ]


@settings(max_examples=40)
@given(
    files=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any), batch=st.integers(1, 8),
    num_ranks=st.integers(1, 3),
)  # fmt: skip
def test_ranks_together_read_every_sample_once_and_in_order(files: list[int], batch: int, num_ranks: int) -> None:
    assume(sum(files) >= num_ranks)
    with TemporaryDirectory() as folder:
        source = data_set(Path(folder), files)
        every = [row for part in batches(reader(source, 1)) for row in rows(part)]
        assert len(every) == sum(files)
        by_rank = [batches(reader(source, batch * num_ranks, rank, num_ranks)) for rank in range(num_ranks)]
    steps = list(zip(*by_rank, strict=True))
    taken = [row for step in steps for part in step for row in rows(part)]
    assert all(len({part.num_samples for part in step}) == 1 for step in steps)
    assert taken == every[: len(every) // num_ranks * num_ranks]


def test_a_batch_larger_than_the_data_holds_all_of_it(tmp_path: Path) -> None:
    source = data_set(tmp_path, [3, 2])
    assert [batch.num_samples for batch in batches(reader(source, 64))] == [5]
    assert [batch.num_samples for batch in batches(reader(source, 64, 1, 2))] == [2]
    assert [batch.num_samples for batch in batches(reader(source, 64, repeat=True), limit=2)] == [64, 64]


def test_data_of_fewer_samples_than_ranks_is_refused(tmp_path: Path) -> None:
    subject = reader(data_set(tmp_path, [1, 1]), 6, 0, 3)
    with pytest.raises(DataError, match=r"list\.txt has 2 samples and the batch of 6 is shared by 3 ranks"):
        subject.next()


def test_batches_repeat_without_a_seam(tmp_path: Path) -> None:
    source = data_set(tmp_path, [3, 4])
    every = [row for part in batches(reader(source, 1)) for row in rows(part)]
    taken = [row for part in batches(reader(source, 5, repeat=True), limit=7) for row in rows(part)]
    assert taken == every * 5


def test_tensors_are_those_of_the_joint(tmp_path: Path) -> None:
    (batch,) = batches(reader(data_set(tmp_path, [6]), 6))
    assert (batch.label.shape, batch.label.dtype) == ((6, 1), torch.float32)
    assert (batch.dense.shape, batch.dense.dtype) == ((6, 3), torch.float32)
    for name, slots in SLOTS.items():
        assert (batch.sparse[name].lengths.shape, batch.sparse[name].lengths.dtype) == ((slots * 6,), torch.int32)
        assert batch.sparse[name].keys.dtype == torch.int64
        assert batch.sparse[name].keys.numel() == batch.sparse[name].lengths.sum()


def test_end_of_data_lasts_until_a_source_is_set(tmp_path: Path) -> None:
    first, second = data_set(tmp_path, [4]), data_set(tmp_path, [2, 2], "other.txt", seed=1)
    subject = reader(first, 4)
    start = subject.next()
    assert start is not None
    assert subject.next() is None
    assert subject.next() is None
    subject.set_source()
    again = subject.next()
    assert again is not None
    assert rows(again) == rows(start)
    subject.set_source(str(second))
    other = subject.next()
    assert other is not None
    assert rows(other) != rows(start)
    assert subject.next() is None
    subject.set_source()
    repeated = subject.next()
    assert repeated is not None
    assert rows(repeated) == rows(other)
    subject.close()


def test_broken_file_is_named_at_its_place_and_from_then_on(tmp_path: Path) -> None:
    source = data_set(tmp_path, [4, 4])
    broken = tmp_path / "list.txt.1.data"
    broken.write_bytes(broken.read_bytes()[:-1])
    subject = reader(source, 2)
    assert [subject.next() is not None for _ in range(2)] == [True, True]
    for _ in range(2):
        with pytest.raises(DataError, match=r"list.txt.1.data ends at byte"):
            subject.next()
    subject.close()


def test_reading_ends_while_more_is_waiting(tmp_path: Path) -> None:
    subject = reader(data_set(tmp_path, [50]), 1, repeat=True)
    assert subject.next() is not None
    subject.close()
    assert subject.next() is not None
    subject.close()


def test_batch_must_be_shared_evenly(tmp_path: Path) -> None:
    with pytest.raises(HugeCtrError, match="batchsize is 5; it must be a multiple of the 2 ranks"):
        reader(tmp_path / "list.txt", 5, 0, 2)


def test_data_without_samples_do_not_repeat_for_ever(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"list.txt has no samples"):
        reader(data_set(tmp_path, [0, 0]), 2, repeat=True).next()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: ''; expected the number of data files"),
        (b"many\na.data\n", "line 1: 'many'"),
        (b"0\n", "lists no data file"),
        (b"2\na.data\n", "lists 1 files; its first line says 2"),
        (b"1\na.data\nb.data\n", "lists 2 files; its first line says 1"),
        (b"2\na.data\n\nb.data\n", "line 4: b.data does not exist"),
        (b"1\n\xff\xfe.data\n", "is no text"),
    ],
)
def test_wrong_file_list_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.data").touch()
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_file_list(tmp_path / "list.txt")


def test_missing_file_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"list.txt does not exist"):
        reader(tmp_path / "list.txt", 2).next()


def test_paths_of_a_list_count_from_the_working_folder_or_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.data").touch()
    (tmp_path / "b.data").touch()
    (tmp_path / "list.txt").write_text("2\na.data\nb.data\n")
    monkeypatch.chdir(tmp_path / "work")
    assert read_file_list(tmp_path / "list.txt") == (Path("a.data"), tmp_path / "b.data")


def test_samples_of_several_files_join_slot_by_slot() -> None:
    parts = [some_samples(number, 3, 2, min_nnz=0, seed=number) for number in (2, 0, 3)]
    whole = joined(parts)
    ends = [0, *accumulate(whole.lengths.reshape(-1).tolist())]
    bags = [whole.keys[start:end].tolist() for start, end in pairwise(ends)]
    expected = []
    for slot in range(3):
        for part in parts:
            own = [0, *accumulate(part.lengths.reshape(-1).tolist())]
            count = part.lengths.shape[1]
            pieces = [part.keys[start:end].tolist() for start, end in pairwise(own)]
            expected += pieces[slot * count : (slot + 1) * count]
    assert bags == expected
