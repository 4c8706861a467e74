"""Runs on V-shaped pipelines: where layers and the model's ends are, what is sent, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.step.memory import step_memory
from predictor.core.timeline.schedules import SCHEDULES, messages_sent
from predictor.core.workload.pipeline import pipeline
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer_step import transformer_step
from tests.layers import parameters_of

MODEL = {"hidden_size": 512, "num_attention_heads": 8, "sequence_length": 256, "vocab_size": 1024}
V_SHAPED = [name for name, schedule in SCHEDULES.items() if schedule.v_shaped]


def run(schedule: str = "zbv", num_micro_batches: int = 16, layers: int = 8, **parallelism: Any) -> TrainingRun:
    """Return a run on four stages."""
    content = {
        "system": "Perlmutter",
        "model": {**MODEL, "num_layers": layers},
        "parallelism": {"pipeline_parallel_size": 4, "schedule": schedule, **parallelism},
        "training": {"micro_batch_size": 1, "num_micro_batches": num_micro_batches},
    }
    return to_run(validate(content), gpus_per_node=4)


def test_a_v_holds_two_chunks_and_both_ends_on_the_first_stage() -> None:
    # Qi et al. 2024, arXiv:2405.15362, section 3: the second half of the layers in reverse order of the stages.
    found = run()
    assert found.virtual_pipeline_parallel_size == 2
    assert found.last_stage == 0
    model = found.model
    ends = 2 * model.embedding_parameters() + model.norm_parameters(1)
    assert found.stage_parameters(0) == 2 * parameters_of(model).total + ends
    assert all(found.stage_parameters(stage) == 2 * parameters_of(model).total for stage in (1, 2, 3))


def test_layers_go_down_the_stages_and_up_again() -> None:
    experts = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 64, "num_dense_layers": 5}
    content = {
        "system": "Perlmutter",
        "model": {
            "num_layers": 8,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "sequence_length": 256,
            "moe": experts,
        },
        "parallelism": {"pipeline_parallel_size": 4, "schedule": "zbv"},
        "training": {"micro_batch_size": 1, "num_micro_batches": 16},
    }
    found = to_run(validate(content), gpus_per_node=4)
    has_experts = [[next(iter(found.layer_kinds(stage, c))).has_experts for c in (0, 1)] for stage in range(4)]
    assert has_experts == [[False, True], [False, True], [False, True], [False, False]]  # layer 4 is on the last stage


@pytest.mark.parametrize("schedule", [*V_SHAPED, "interleaved_1f1b"])
def test_a_stage_counts_the_messages_that_its_schedule_sends(schedule: str) -> None:
    found = run(schedule, virtual_pipeline_parallel_size=2)
    parts = pipeline(found)
    sent = [messages_sent(SCHEDULES[schedule], stage, 4, 2) for stage in range(4)]
    received = [messages_sent(SCHEDULES[schedule], stage, 4, 2)[::-1] for stage in range(4)]
    for stage, number in enumerate(parts.index):
        # What comes down goes up again: a stage receives gradients for what it sends, and sends them for what it gets.
        assert parts.distinct[number].num_messages == sum(sent[stage]) + sum(received[stage])


def test_both_ends_of_a_tied_embedding_need_no_sum_between_stages() -> None:
    tied = replace(run(), model=replace(run().model, tied_embeddings=True))
    assert not any(stage.end.tied for stage in transformer_step(tied).stages)
    assert tied.stage_parameters(0) < run().stage_parameters(0)


def test_a_v_keeps_as_much_on_every_stage() -> None:
    """2p chunks of two layers' halves: 1F1B's first stage. DualPipeV a chunk more."""
    first = step_memory(transformer_step(run("1f1b")))[0].activations
    assert [memory.activations for memory in step_memory(transformer_step(run("zbv")))] == [pytest.approx(first)] * 4
    more = step_memory(transformer_step(run("dualpipe_v")))
    assert [memory.activations for memory in more] == [pytest.approx(first * 9 / 8)] * 4


def test_uneven_chunks_keep_what_is_in_flight_of_each() -> None:
    even, uneven = (run(layers_per_stage=split) for split in ([[1, 1]] * 4, [[2, 0], [1, 1], [1, 1], [1, 1]]))
    kept = step_memory(transformer_step(even))[0].activations / 8
    assert step_memory(transformer_step(uneven))[0].activations == pytest.approx(8 * 2 * kept)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"virtual_pipeline_parallel_size": 4}, "holds 2 model chunks per stage"),
        ({"pipeline_parallel_size": 1}, "at least 2"),
        ({"blocking_transfers": True}, "zbv needs false"),
        ({"schedule": "dualpipe_v", "num_micro_batches": 7}, "twice as many micro-batches as pipeline stages, 8"),
        ({"layers": 12}, "virtual_pipeline_parallel_size is 2"),
    ],
)
def test_impossible_vs_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**keys)
