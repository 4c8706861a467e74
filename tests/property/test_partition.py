"""Splitting layers over stages, for any numbers of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.base.errors import ConfigError
from predictor.core.workload.partition import METHODS, split_layers


@given(st.sampled_from(METHODS), st.integers(1, 200), st.data())
def test_no_layer_is_lost(method: str, layers: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, layers))
    split = split_layers(method, layers, stages)
    assert len(split) == stages
    assert sum(split) == layers
    assert min(split) >= 0


@given(st.integers(1, 200), st.data())
def test_uniform_stages_differ_by_one_layer_at_most(layers: int, data: st.DataObject) -> None:
    split = split_layers("uniform", layers, data.draw(st.integers(1, layers)))
    assert max(split) - min(split) <= 1
    assert min(split) >= 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=16))
def test_a_given_split_is_kept(split: list[int]) -> None:
    assert split_layers(split, sum(split), len(split)) == split
    with pytest.raises(ConfigError, match="layers_per_stage"):
        split_layers(split, sum(split) + 1, len(split))


@given(st.sampled_from(METHODS), st.integers(1, 50), st.integers(1, 50))
def test_more_stages_than_layers_are_refused(method: str, layers: int, more: int) -> None:
    with pytest.raises(ConfigError, match="every stage needs one"):
        split_layers(method, layers, layers + more)
