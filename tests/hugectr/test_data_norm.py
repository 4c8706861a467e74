"""Norm files: what was written is read, and what is broken is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugectr.data.norm import NormFile, write_norm
from hugectr.data.samples import layout_of
from tests.hugectr.data_made import data_layer, same, some_samples


@pytest.mark.parametrize("max_nnz", [1, 4])
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("is_64_bit", [True, False])
def test_what_was_written_is_read(tmp_path: Path, max_nnz: int, is_checked: bool, is_64_bit: bool) -> None:
    samples = some_samples(20, 5, max_nnz, min_nnz=min(max_nnz - 1, 0) + 1)
    path = tmp_path / "0.data"
    write_norm(path, samples, is_64_bit=is_64_bit, is_checked=is_checked)
    layout = layout_of(data_layer("", {"deep": 5}))
    file = NormFile(path, layout, is_64_bit=is_64_bit, asks_check=is_checked)
    assert file.num_samples == 20
    assert same(file.read(0, 20), samples)
