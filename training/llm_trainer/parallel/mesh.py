"""Mesh of pipeline, data and tensor ranks, and the rules of a layout.

Needs no torch until a mesh is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.exceptions import TrainingError
from predictor.core.timeline.allowed_sizes import check
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.partition import uniform

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Outermost first: tensor-parallel ranks are neighbours, as in Megatron-LM and
# predictor.core.workload.layout.RANK_ORDER.
AXES = ("pipeline", "data", "tensor")
PIPELINE, DATA, TENSOR = AXES


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Ranks along each axis, and what the data and pipeline axes do with them.

    Attributes:
        pipeline_parallel_size: ranks that hold consecutive layers.
        data_parallel_size: ranks that hold the same layers and see different samples.
        tensor_parallel_size: ranks that share every layer.
        zero_stage: what data ranks shard: 0 nothing, 1 optimizer states, 2 and gradients, 3 and weights.
        pipeline_schedule: a name of predictor.core.timeline.schedules.
        num_chunks: stages per pipeline rank.
        num_micro_batches: per optimizer step.
    """

    pipeline_parallel_size: int
    data_parallel_size: int
    tensor_parallel_size: int
    zero_stage: int = 0
    pipeline_schedule: str = "1f1b"
    num_chunks: int = 1
    num_micro_batches: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the sizes of ``AXES``."""
        return self.pipeline_parallel_size, self.data_parallel_size, self.tensor_parallel_size

    @property
    def num_stages(self) -> int:
        """Return the stages of the pipeline, over all ranks."""
        return self.pipeline_parallel_size * self.num_chunks

    @property
    def is_model_split(self) -> bool:
        """Return whether a rank computes a part of the model only."""
        return self.pipeline_parallel_size * self.tensor_parallel_size > 1

    @property
    def is_sharded(self) -> bool:
        """Return whether data ranks shard weights or gradients (FSDP2)."""
        return self.zero_stage >= 2 and self.data_parallel_size > 1

    def layers_of(self, num_layers: int) -> list[range]:
        """Return the layers of every stage."""
        ends = [0]
        for count in uniform(num_layers, self.num_stages):
            ends.append(ends[-1] + count)
        return [range(start, end) for start, end in pairwise(ends)]

    def describe(self) -> dict[str, int | str]:
        """Return what a checkpoint of this layout says of it."""
        sizes: dict[str, int | str] = {
            f"{axis}_parallel_size": size for axis, size in zip(AXES, self.shape, strict=True)
        }
        return {**sizes, "zero_stage": self.zero_stage, "num_chunks": self.num_chunks}


def layout_of(training: TrainingConfig, world_size: int) -> ParallelLayout:
    """Return the layout of a run, before any work.

    Args:
        training: its sizes of the axes, zero_stage, pipeline_schedule, num_chunks and gradient_accumulation_steps.
        world_size: ranks that the launcher started.

    Raises:
        TrainingError: the layout does not fit the ranks, or torch has no engine for it.
    """
    tensor, pipeline = training.tensor_parallel_size, training.pipeline_parallel_size
    if world_size % (tensor * pipeline):
        raise TrainingError(
            f"the run has {world_size} ranks; tensor_parallel_size × pipeline_parallel_size is {tensor} × {pipeline} "
            f"and must divide them. Start {tensor * pipeline} or a multiple"
        )
    layout = ParallelLayout(
        pipeline_parallel_size=pipeline,
        data_parallel_size=world_size // (tensor * pipeline),
        tensor_parallel_size=tensor,
        zero_stage=training.zero_stage,
        pipeline_schedule=training.pipeline_schedule,
        num_chunks=training.num_chunks,
        num_micro_batches=training.gradient_accumulation_steps,
    )
    if tensor > 1 and layout.zero_stage == 1:
        raise TrainingError(
            f"zero_stage is 1 with tensor_parallel_size {tensor}; torch's ZeroRedundancyOptimizer takes no sharded "
            "weights. Try zero_stage 0, 2 or 3"
        )
    if pipeline > 1:
        _check_schedule(layout, training)
    return layout


def _check_schedule(layout: ParallelLayout, training: TrainingConfig) -> None:
    """Check that torch runs the schedule with these micro-batches.

    Raises:
        TrainingError: it does not.
    """
    size, steps, name = layout.pipeline_parallel_size, layout.num_micro_batches, layout.pipeline_schedule
    if steps < size:
        raise TrainingError(
            f"gradient_accumulation_steps is {steps}; a pipeline of {size} ranks (pipeline_parallel_size) needs as "
            f"many micro-batches. Try {size} or more"
        )
    if rule := check(name, size, steps, layout.num_chunks):
        raise TrainingError(
            f"pipeline_schedule is {name!r} with gradient_accumulation_steps {steps} and num_chunks "
            f"{layout.num_chunks}; it {rule}"
        )
    rounds = steps // size
    if name != "1f1b" and steps % rounds:
        raise TrainingError(
            f"gradient_accumulation_steps is {steps}; {name} runs them in {rounds} equal rounds. Try {rounds * size}"
        )
    if not SCHEDULES[name].splits_backward:
        return
    if training.compile_model:
        raise TrainingError(
            f"compile_model is true with pipeline_schedule {name!r}; torch does not compile a backward pass that is "
            "split. Try compile_model false, or 1f1b"
        )
    if layout.is_sharded and layout.zero_stage == 3:  # with torch 2.13 gradients are wrong, without an error
        raise TrainingError(
            f"zero_stage is 3 with pipeline_schedule {name!r}; a backward pass that is split needs weights that stay "
            "gathered. Try zero_stage 2, or 1f1b"
        )


def check_model(layout: ParallelLayout, model: ModelConfig) -> None:
    """Check that the ranks of every axis get equal shares of a model, before any work on it.

    Raises:
        TrainingError: they do not.
    """
    size, stages = layout.tensor_parallel_size, layout.num_stages
    heads = {"n_heads": model.n_heads, "n_kv_heads": model.kv_heads, "d_ff": model.d_ff}
    for name, value in heads.items():
        if value % size:
            way = _divisors(gcd(*heads.values()))
            raise TrainingError(f"tensor_parallel_size is {size}; it must divide {name}, {value}. Try {way}")
    if model.vocab_size % size:
        raise TrainingError(
            f"tensor_parallel_size is {size}; it must divide vocab_size, {model.vocab_size}. "
            f"Pad the vocabulary to {model.vocab_size + -model.vocab_size % size}"
        )
    if stages > model.n_layers:
        raise TrainingError(
            f"pipeline_parallel_size × num_chunks is {layout.pipeline_parallel_size} × {layout.num_chunks}; every "
            f"stage needs one of the layers, n_layers is {model.n_layers}. Try up to {model.n_layers} stages"
        )


def _divisors(number: int, most: int = 8) -> str:
    """Return divisors of a number as alternatives."""
    divisors = [str(divisor) for divisor in range(1, number + 1) if number % divisor == 0][:most]
    return " or ".join([", ".join(divisors[:-1]), divisors[-1]] if len(divisors) > 1 else divisors)


def make_mesh(layout: ParallelLayout, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks; every rank calls it, after torch.distributed is set up."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, layout.shape, mesh_dim_names=AXES)
