"""Pipeline axis: consecutive layers on each rank, and schedules that pass micro-batches through them.

Schedules are torch.distributed.pipelining's, in the very orders of predictor.core.timeline.schedules, as a test shows:
``Schedule1F1B``, ``ScheduleInterleaved1F1B``, and for zero_bubble_h1 ``ScheduleInterleavedZeroBubble`` with one stage
per rank, which is then ZB-H1 (Qi et al. 2023, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn import functional

from llm_trainer.models.transformer import IGNORED, next_token_loss
from llm_trainer.parallel.mesh import ParallelLayout

if TYPE_CHECKING:
    from llm_trainer.models import TransformerLM

SCHEDULES: dict[str, Any] = {
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "zero_bubble_h1": ScheduleInterleavedZeroBubble,
}


class Stage(nn.Module):
    """Consecutive layers; hidden states or tokens in, hidden states or logits out.

    Attributes:
        index: of the stage in the pipeline.
        model: its layers, under their names in the whole model.
    """

    def __init__(self, index: int, model: TransformerLM, precision: Callable[[], AbstractContextManager[Any]]) -> None:
        """Take a part of a model, and the context that its computation needs."""
        super().__init__()
        self.index = index
        self.model = model
        self._precision = precision

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return hidden states, or the logits behind the last layer."""
        with self._precision():
            output = self.model(hidden, attention_mask)
        return output if isinstance(output, Tensor) else output.logits


def cut(
    model: TransformerLM, layout: ParallelLayout, rank: int, precision: Callable[[], AbstractContextManager[Any]]
) -> nn.ModuleList:
    """Return a rank's stages: every ``pipeline_parallel_size``-th of the pipeline, as Megatron-LM deals them out."""
    layers = layout.layers_of(model.config.n_layers)
    mine = range(rank, layout.num_stages, layout.pipeline_parallel_size)
    stages = nn.ModuleList(Stage(index, model.stage(layers[index]), precision) for index in mine)
    used = set(stages.modules())
    for part in (model.embed, *model.layers.values(), model.norm, model.head):
        if part is not None and part not in used:
            part.to("meta")  # frees the weights of other ranks; whoever calls the whole model gets an error
    return stages


class MicroBatches:
    """Batches of a loader, as many at once as an optimizer step takes: what a schedule needs before it begins."""

    def __init__(self, data: Any, num_micro_batches: int) -> None:
        """Group the batches of an ``EpochData``."""
        self._data = data
        self._size = num_micro_batches
        count = data.num_batches
        self.num_batches = None if count is None else -(-count // num_micro_batches)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[Any]]:
        """Yield groups of batches from one on; the last of an epoch may have fewer."""
        group: list[Any] = []
        for batch in self._data.batches(epoch, start * self._size):
            group.append(batch)
            if len(group) == self._size:
                yield group
                group = []
        if group:
            yield group

    def filler(self) -> list[Any]:
        """Return a group for a rank that has no more while others have."""
        return [self._data.filler()]


class Pipeline:
    """Runs micro-batches through the stages of all ranks of a pipeline."""

    def __init__(self, stages: nn.ModuleList, layout: ParallelLayout, group: Any, fabric: Fabric) -> None:
        """Take a rank's stages.

        Args:
            stages: of this rank.
            layout: of the run.
            group: ranks of this pipeline, the first stage's first.
            fabric: this rank's device and precision.
        """
        self._stages = stages
        self._layout = layout
        self._group = group
        self._device = fabric.device
        self._precision = fabric.autocast
        self._share = 1.0
        self._schedules: dict[tuple[bool, tuple[int, ...]], Any] = {}

    def train(self, batches: list[Mapping[str, Tensor]]) -> Tensor:
        """Add the gradients of the mean of micro-batches' losses, and return that mean, the same on every rank.

        Args:
            batches: micro-batches with input_ids and labels, (batch, sequence), and attention_mask where there is
                padding; where there are fewer than the schedule takes, others without targets fill up.
        """
        self._share = 1.0 / len(batches)
        return torch.stack(self._run(batches, is_training=True)).sum()

    def evaluate(self, batches: list[Mapping[str, Tensor]]) -> Tensor:
        """Return the loss of micro-batches, (micro-batch,), the same on every rank; gradients stay as they are."""
        self._share = 1.0
        return torch.stack(self._run(batches, is_training=False)[: len(batches)])

    def _run(self, batches: list[Mapping[str, Tensor]], is_training: bool) -> list[Tensor]:
        """Return every micro-batch's loss."""
        count = self._layout.num_micro_batches
        whole = join(batches, count)
        labels = whole.pop("labels")
        input_ids = whole.pop("input_ids")
        schedule = self._schedule(is_training, (labels.shape[0] // count, labels.shape[1]))
        inputs = (input_ids,) if self._stages[0].index == 0 else ()
        losses: list[Tensor] = []
        run = schedule.step if is_training else schedule.eval
        run(*inputs, target=labels, losses=losses, return_outputs=False, **whole)
        values = torch.stack(losses).detach().float() if losses else torch.zeros(count, device=self._device)
        last = distributed.get_global_rank(self._group, self._layout.pipeline_parallel_size - 1)
        distributed.broadcast(values, last, group=self._group)
        return list(values)

    def _schedule(self, is_training: bool, shape: tuple[int, ...]) -> Any:
        """Return the schedule for a shape of micro-batches; its messages have that shape."""
        key = (is_training, shape)
        if key not in self._schedules:
            layout = self._layout
            stages = [
                PipelineStage(stage, stage.index, layout.num_stages, self._device, group=self._group)
                for stage in self._stages
            ]
            kind = SCHEDULES[layout.pipeline_schedule]
            self._schedules[key] = kind(
                stages[0] if kind is Schedule1F1B else stages,
                layout.num_micro_batches,
                loss_fn=self._loss,
                scale_grads=False,  # each loss has its share in it
            )
        return self._schedules[key]

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return a micro-batch's share of the loss; 0 where it has no targets."""
        with self._precision():
            loss = next_token_loss(logits, labels, self._stages[-1].model.cross_entropy)
        return torch.where((labels[:, 1:] != IGNORED).any(), loss, torch.zeros_like(loss)) * self._share


def join(batches: list[Mapping[str, Tensor]], count: int) -> dict[str, Tensor]:
    """Return micro-batches as one batch that splits into ``count`` equal ones.

    What is missing in rows, columns or whole micro-batches has no targets, so that no loss or gradient changes.
    """
    rows = max(batch["input_ids"].shape[0] for batch in batches)
    columns = max(batch["input_ids"].shape[1] for batch in batches)
    batches = batches + [{**batches[-1], "labels": torch.full_like(batches[-1]["labels"], IGNORED)}] * (
        count - len(batches)
    )
    has_mask = any("attention_mask" in batch for batch in batches)
    parts: dict[str, list[Tensor]] = {"input_ids": [], "labels": []} | ({"attention_mask": []} if has_mask else {})
    fillers = {"input_ids": 0, "labels": IGNORED, "attention_mask": 0}
    for batch in batches:
        for name, tensors in parts.items():
            tensor = batch.get(name)
            if tensor is None:  # a batch without padding among others
                tensor = torch.ones_like(batch["input_ids"])
            missing = (0, columns - tensor.shape[1], 0, rows - tensor.shape[0])
            tensors.append(functional.pad(tensor, missing, value=fillers[name]) if any(missing) else tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}
