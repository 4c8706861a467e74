"""The schedules that torch runs are, slot by slot, those that the predictor replays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining import Schedule1F1B

from llm_trainer.parallel.pipeline import SCHEDULES
from predictor.core.timeline.schedules import SCHEDULES as PREDICTED
from predictor.core.timeline.schedules import Pass

PASSES = {"F": Pass.FORWARD, "B": Pass.BACKWARD, "I": Pass.BACKWARD, "W": Pass.WEIGHT}
SIZES = [(2, 2), (2, 6), (4, 4), (4, 8)]


class RecordingStage(SimpleNamespace):
    """A stage without a neighbour that notes its passes."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__(num_stages=num_ranks, stage_index=rank, is_last=False, submod=nn.Identity(), slots=[])

    def no_messages(self, micro_batch: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.slots.append((Pass.FORWARD, micro_batch, 0))

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        self.slots.append((Pass.BACKWARD, micro_batch, 0))

    def perform_reduce_grad(self, scale: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), SIZES)
def test_torch_runs_1f1b_as_predicted(num_ranks: int, num_micro_batches: int) -> None:
    for rank in range(num_ranks):
        stage = RecordingStage(rank, num_ranks)
        schedule = Schedule1F1B(stage, num_micro_batches, loss_fn=nn.Identity())
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        assert stage.slots == PREDICTED["1f1b"].order(rank, num_ranks, num_micro_batches, 1)


def planned_stage(chunk: int, num_ranks: int, num_chunks: int) -> Any:
    """Return one of rank 0's stages, as far as a schedule looks at it to plan."""
    return SimpleNamespace(
        group_size=num_ranks,
        group_rank=0,
        num_stages=num_ranks * num_chunks,
        stage_index=chunk * num_ranks,
        submod=nn.Identity(),
        is_last=False,
    )


@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), SIZES)
@pytest.mark.parametrize(
    ("name", "num_chunks"), [("zero_bubble_h1", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3)]
)
def test_torch_runs_the_planned_order(name: str, num_chunks: int, num_ranks: int, num_micro_batches: int) -> None:
    stages = [planned_stage(chunk, num_ranks, num_chunks) for chunk in range(num_chunks)]
    schedule = SCHEDULES[name](stages, num_micro_batches, loss_fn=nn.Identity())
    for rank in range(num_ranks):
        planned = [
            (PASSES[action.computation_type.value], action.microbatch_index, action.stage_index // num_ranks)
            for action in schedule.pipeline_order[rank]
            if action is not None
        ]
        assert planned == PREDICTED[name].order(rank, num_ranks, num_micro_batches, num_chunks)
