"""Which rank holds what: the mesh of pipeline, data and tensor ranks, and the rules that a layout keeps.

Needs no torch until a mesh is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.exceptions import TrainingError
from predictor.timeline import schedules
from predictor.workloads.partition import uniform

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Outermost first: tensor-parallel ranks are neighbours, as in Megatron-LM and predictor.workloads.layout.RANK_ORDER.
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
        pipeline_schedule: a name of predictor.timeline.schedules.
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
        return self.zero_stage >= 2

    def layers_of(self, num_layers: int) -> list[range]:
        """Return the layers of every stage."""
        ends = [0]
        for count in uniform(num_layers, self.num_stages):
            ends.append(ends[-1] + count)
        return [range(start, end) for start, end in zip(ends, ends[1:], strict=False)]

    def describe(self) -> dict[str, int | str]:
        """Return what a checkpoint of this layout says of it."""
        sizes: dict[str, int | str] = {f"{axis}_parallel_size": size for axis, size in zip(AXES, self.shape, strict=True)}
        return {**sizes, "zero_stage": self.zero_stage, "num_chunks": self.num_chunks}


def layout_of(model: ModelConfig, training: TrainingConfig, world_size: int) -> ParallelLayout:
    """Return the layout of a run, before any work.

    Args:
        model: what is trained.
        training: its sizes of the axes, zero_stage, pipeline_schedule, num_chunks and gradient_accumulation_steps.
        world_size: ranks that the launcher started.

    Raises:
        TrainingError: the layout fits neither the ranks nor the model, or torch has no engine for it.
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
    if tensor > 1:
        _check_tensor(layout, model)
    if pipeline > 1:
        _check_pipeline(layout, model, training)
    if training.use_amp and training.amp_dtype == "float16" and (layout.is_model_split or layout.is_sharded):
        raise TrainingError(
            "amp_dtype is 'float16'; ranks that hold different weights cannot agree on the scale of the loss. "
            "Try bfloat16, or zero_stage 0 or 1 without tensor and pipeline parallelism"
        )
    return layout


def _check_tensor(layout: ParallelLayout, model: ModelConfig) -> None:
    """Check that tensor ranks get equal shares.

    Raises:
        TrainingError: they do not, or nothing shards what tensor ranks hold.
    """
    size = layout.tensor_parallel_size
    sizes = {
        "n_heads": model.n_heads,
        "n_kv_heads": model.kv_heads,
        "d_ff": model.d_ff,
        "vocab_size": model.vocab_size,
    }
    for name, value in sizes.items():
        if value % size:
            way = f"Try vocab_size {value + -value % size}" if name == "vocab_size" else f"Try {_divisors(value)}"
            raise TrainingError(f"tensor_parallel_size is {size}; it must divide {name}, {value}. {way}")
    if layout.zero_stage == 1:
        raise TrainingError(
            f"zero_stage is 1 with tensor_parallel_size {size}; torch's ZeroRedundancyOptimizer takes no sharded "
            "weights. Try zero_stage 0, 2 or 3"
        )


def _check_pipeline(layout: ParallelLayout, model: ModelConfig, training: TrainingConfig) -> None:
    """Check that every stage has layers and that the schedule takes the micro-batches.

    Raises:
        TrainingError: they do not, or torch does not run the schedule so.
    """
    size, chunks, steps = layout.pipeline_parallel_size, layout.num_chunks, layout.num_micro_batches
    name = layout.pipeline_schedule
    if layout.num_stages > model.n_layers:
        of = f"pipeline_parallel_size is {size}" if chunks == 1 else f"pipeline_parallel_size × num_chunks is {size} × {chunks}"
        raise TrainingError(f"{of}; every stage needs one of the {model.n_layers} layers (n_layers). Try fewer stages")
    if steps < size:
        raise TrainingError(
            f"gradient_accumulation_steps is {steps}; a pipeline of {size} ranks (pipeline_parallel_size) needs as many "
            f"micro-batches. Try {size} or more"
        )
    if rule := schedules.check(name, size, steps, chunks):
        raise TrainingError(f"pipeline_schedule is {name!r} with {steps} micro-batches, num_chunks {chunks}; it {rule}")
    if name != "1f1b" and steps % (steps // size):
        raise TrainingError(
            f"gradient_accumulation_steps is {steps}; {name} shares micro-batches out over {steps // size} rounds and "
            f"needs a multiple. Try {steps // size * size}"
        )
    if schedules.SCHEDULES[name].splits_backward:
        _check_split_backward(layout, model, training)


def _check_split_backward(layout: ParallelLayout, model: ModelConfig, training: TrainingConfig) -> None:
    """Check what torch cannot do where weight gradients are computed apart from those of inputs.

    Raises:
        TrainingError: it is asked for.
    """
    name = layout.pipeline_schedule
    for field, is_set, way in (
        ("compile_model", training.compile_model, "false"),
        ("gradient_checkpointing", model.gradient_checkpointing, "false"),
        (f"zero_stage {layout.zero_stage}", layout.is_sharded, "0 or 1"),
    ):
        if is_set:
            raise TrainingError(
                f"pipeline_schedule is {name!r} with {field}; torch does not split such a backward pass. "
                f"Try {way}, or 1f1b"
            )


def _divisors(number: int, most: int = 8) -> str:
    """Return divisors of a number as alternatives."""
    divisors = [str(divisor) for divisor in range(1, number + 1) if number % divisor == 0][:most]
    return " or ".join([", ".join(divisors[:-1]), divisors[-1]] if len(divisors) > 1 else divisors)


def make_mesh(layout: ParallelLayout, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks; every rank calls it, after torch.distributed is set up."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, layout.shape, mesh_dim_names=AXES)
