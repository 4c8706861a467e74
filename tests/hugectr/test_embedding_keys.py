"""The index of keys beside a dictionary, and initial values beside their properties."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hugectr.embedding import key_index
from hugectr.embedding.initial_values import initial_rows
from hugectr.embedding.key_index import KeyIndex
from hugectr.embedding.shard import Shard

CPU = torch.device("cpu")
KEYS = st.one_of(st.integers(0, 3000), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=60)
@given(batches=st.lists(st.lists(KEYS, max_size=60), max_size=6), capacity=st.integers(1, 200))
def test_the_index_answers_as_a_dictionary(batches: list[list[int]], capacity: int) -> None:
    index = KeyIndex(capacity, CPU)
    expected: dict[int, int] = {}
    for batch in batches:
        keys = torch.tensor(batch, dtype=torch.int64)
        new = torch.unique(keys[index.find(keys) < 0])
        without_room = index.insert(new)
        for key in new.tolist()[: len(new) - without_room]:
            expected[key] = len(expected)
        assert index.find(keys).tolist() == [expected.get(key, -1) for key in batch]
    assert index.keys.tolist() == list(expected)
    assert index.size == len(expected) <= capacity


def test_many_keys_that_share_their_low_bits_are_found() -> None:
    keys = torch.arange(50_000) << 40
    index = KeyIndex(len(keys), CPU)
    index.insert(keys)
    assert torch.equal(index.find(keys), torch.arange(len(keys), dtype=torch.int32))
    assert bool((index.find(keys + 1) < 0).all())


def test_keys_leave_the_dense_array_with_their_rows() -> None:
    index = KeyIndex(10, CPU)
    index.insert(torch.tensor([5, 3]))
    index.insert(torch.tensor([key_index.DENSE_ENTRIES]))
    assert index.find(torch.tensor([3, 4, 5, key_index.DENSE_ENTRIES])).tolist() == [1, -1, 0, 2]


@given(key=KEYS, ranks=st.integers(1, 9))
def test_each_key_has_the_owner_that_the_exchange_sends_it_to(key: int, ranks: int) -> None:
    owners = [
        part
        for part in range(ranks)
        if bool(Shard("t", "l", (0,), range(4), 8, ranks, part, (), 0.1, False).owned(torch.tensor([key])).all())
    ]
    assert owners == [(key % 2**64) % ranks]


def test_initial_values_are_uniform_and_depend_on_all_that_names_them() -> None:
    keys = torch.arange(4000)
    rows = initial_rows(1, "layer", keys, range(16), 0.05)
    assert float(rows.min()) >= -0.05
    assert float(rows.max()) < 0.05
    assert abs(float(rows.mean())) < 4 * 0.05 / 3**0.5 / rows.numel() ** 0.5
    assert abs(float(rows.std()) / (0.05 / 3**0.5) - 1) < 0.01
    between = torch.corrcoef(rows.T) - torch.eye(16)
    assert float(between.abs().max()) < 5 / 4000**0.5
    for other in (
        initial_rows(2, "layer", keys, range(16), 0.05),
        initial_rows(1, "layer2", keys, range(16), 0.05),
        initial_rows(1, "layer", keys + 1, range(16), 0.05)[:, :],
    ):
        assert float((other == rows).float().mean()) < 1e-3


def test_columns_and_rows_have_their_values_alone() -> None:
    keys = torch.tensor([7, -3, 2**60])
    rows = initial_rows(1, "layer", keys, range(8), 0.05)
    assert torch.equal(initial_rows(1, "layer", keys[1:], range(4, 8), 0.05), rows[1:, 4:])
