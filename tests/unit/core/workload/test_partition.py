"""Splits of layers over stages that real runs recorded, and the errors for impossible ones."""

from __future__ import annotations

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.workload.partition import chunk_layers, gpt_neox, split_layers, uniform


@pytest.mark.parametrize(("layers", "stages", "split"), [(32, 4, [8, 9, 9, 6]), (44, 4, [11, 12, 12, 9])])
def test_gpt_neox_split_is_what_jobs_recorded(layers: int, stages: int, split: list[int]) -> None:
    # Calls of the checkpointed layer per stage in the traces of the two Perlmutter jobs.
    assert gpt_neox(layers, stages) == split


@pytest.mark.parametrize("stages", range(1, 33))
def test_gpt_neox_split_leaves_no_stage_empty_and_loses_no_layer(stages: int) -> None:
    split = gpt_neox(32, stages)
    assert sum(split) == 32
    assert len(split) == stages
    assert min(split) >= 1


def test_uniform_split_gives_the_rest_to_the_first_stages() -> None:
    assert uniform(10, 4) == [3, 3, 2, 2]


def test_given_split_must_add_up() -> None:
    assert split_layers([5, 3], 8, 2) == [5, 3]
    with pytest.raises(ConfigError, match="add up to 8"):
        split_layers([5, 4], 8, 2)


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size \\(pp\\) is 9"):
        split_layers("uniform", 8, 9)


def test_only_the_first_and_the_last_chunk_of_all_may_hold_fewer_layers() -> None:
    split = [15, 16, 16, 15]
    chunks = [chunk_layers(split, stage, 4) for stage in range(4)]
    assert chunks == [(3, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 3)]
    for wrong in ([16, 15, 16, 15], [2, 16, 16, 16]):
        with pytest.raises(ConfigError, match=r"only the first and the last chunk.*embedding_counts_as_layer"):
            [chunk_layers(wrong, stage, 4) for stage in range(4)]


def test_the_outermost_chunks_may_hold_no_layer() -> None:
    split = [7, 8, 8, 7]
    assert chunk_layers(split, 0, 8) == (0, *[1] * 7)
    assert chunk_layers(split, 3, 8) == (*[1] * 7, 0)
    with pytest.raises(ConfigError, match="must divide the layers of every stage"):
        chunk_layers([6, 8, 8, 8], 0, 8)
