"""The schedules that torch runs are, slot by slot, those that the predictor replays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining import Schedule1F1B

from llm_trainer.parallel.pipeline import SCHEDULES
from predictor.timeline.schedules import SCHEDULES as PREDICTED

PASSES = {"F": "FORWARD", "B": "BACKWARD", "I": "BACKWARD", "W": "WEIGHT"}
SIZES = [("1f1b", 1), ("zero_bubble_h1", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3)]


def stages(num_ranks: int, num_chunks: int) -> list[Any]:
    """Return rank 0's stages, as far as a schedule looks at them to plan."""
    return [
        SimpleNamespace(
            group_size=num_ranks, group_rank=0, num_stages=num_ranks * num_chunks, stage_index=chunk * num_ranks,
            submod=nn.Identity(), has_backward=True, is_first=chunk == 0, is_last=False,
        )
        for chunk in range(num_chunks)
    ]  # fmt: skip


@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), [(2, 2), (2, 6), (4, 4), (4, 8)])
@pytest.mark.parametrize(("name", "num_chunks"), SIZES)
def test_torch_runs_the_predicted_order(name: str, num_chunks: int, num_ranks: int, num_micro_batches: int) -> None:
    parts = stages(num_ranks, num_chunks)
    kind = SCHEDULES[name]
    schedule = kind(parts[0] if kind is Schedule1F1B else parts, num_micro_batches, loss_fn=nn.Identity())
    orders = schedule._get_pipeline_order() if kind is Schedule1F1B else schedule.pipeline_order
    for rank in range(num_ranks):
        run = [
            (PASSES[action.computation_type.value], action.microbatch_index, action.stage_index // num_ranks)
            for action in orders[rank]
            if action is not None and action.computation_type.value in PASSES
        ]
        predicted = PREDICTED[name].order(rank, num_ranks, num_micro_batches, num_chunks)
        assert run == [(slot.kind.name, slot.micro_batch, slot.chunk) for slot in predicted]
