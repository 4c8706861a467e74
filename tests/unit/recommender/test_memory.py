"""Bytes of a recommender's ranks, against numbers counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.step.memory import step_memory
from predictor.core.workload.step_tasks import StageStates
from predictor.recommender.workload.memory import activations, embedding_bytes, fullest, states_of
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.step import recommender_step
from predictor.recommender.workload.traffic import all_traffic, exchange
from tests.unit.recommender_examples import SLOTS, dcn, dlrm, loaded

BATCH = 4096


def states(run: RecommenderRun) -> StageStates:
    """Return what the fullest rank holds."""
    traffic = all_traffic(run)
    return states_of(run, fullest(run, traffic), exchange(run, traffic))


def test_fullest_rank_has_the_largest_tables() -> None:
    run = loaded(dlrm(), precision="fp32").run
    rows = SLOTS[0] + SLOTS[2]
    assert fullest(run, all_traffic(run)).parameters == 32 * rows
    assert states(run).weights == pytest.approx(4 * (32 * rows + run.model.dense_parameters))


def test_sgd_keeps_no_states_and_adam_two() -> None:
    assert states(loaded(dlrm()).run).optimizer == 0
    run = loaded(dcn()).run
    assert states(run).optimizer == pytest.approx(2 * 4 * (50_000 * 16 + run.model.dense_parameters))


def test_local_gradients_cover_touched_rows_and_global_ones_all() -> None:
    runs = [loaded(dcn(optimizer={"update_type": update})).run for update in ("Global", "Local")]
    everything, touched = (embedding_bytes(run, all_traffic(run)[0]) for run in runs)
    assert everything == pytest.approx(4 * 50_000 * 16 * 4)
    assert touched < everything


def test_mixed_precision_keeps_master_weights_and_halves_activations() -> None:
    full, mixed = (loaded(dlrm(), precision=precision).run for precision in ("fp32", "fp16"))
    dense = full.model.dense_parameters
    assert states(mixed).weights - states(full).weights == 2 * dense
    assert activations(mixed).kept == activations(full).kept / 2


def test_activations_count_every_tensor_once() -> None:
    run = loaded(dlrm(), precision="fp32").run
    columns = 4 * 32 + 64 + 32 + (32 + 10 + 1) + 128 + 1  # vectors, bottom, pairs and padding, top
    assert activations(run).kept == 4 * BATCH / 2 * columns
    assert activations(run).working == 4 * BATCH / 2 * 128


def test_one_rank_needs_no_exchange_buffers() -> None:
    run = replace(loaded(dlrm(), gpus=1).run, overlap_input=False)
    keys = 4 * BATCH * 4
    assert states(run).buffers == BATCH * 14 * 4 + 2 * keys  # the input, and the keys in the order of the tables


def test_peak_is_the_sum_of_its_parts() -> None:
    run = loaded(dlrm()).run
    (memory,) = step_memory(recommender_step(run))
    held = activations(run)
    assert memory.activations + memory.working == held.kept + held.working
    assert memory.total > sum(states(run))
