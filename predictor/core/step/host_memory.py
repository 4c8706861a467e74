"""Memory of a node's host: optimizer states, gradients, weights and activations that its GPUs keep there."""

from __future__ import annotations

from predictor.core.timeline.in_flight import peak_in_flight
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.step_tasks import StageTasks, StepTasks

# A parameter's fp32 copy, Adam's two moments and its gradient. Source: DeepSpeed deepspeed/runtime/zero/stage3.py,
# estimate_zero3_model_states_mem_needs, which adds half of it for buffers.
STATE_BYTES = 16


def node_host_bytes(step: StepTasks, run: TrainingRun) -> float:
    """Return what the GPUs of one node keep in host memory, all at the most that one of them keeps."""
    each = max(_states(stage, run) + _activations(step, number) for number, stage in enumerate(step.stages))
    return each * min(run.layout.num_gpus, run.layout.gpus_per_node)


def _states(stage: StageTasks, run: TrainingRun) -> float:
    """Return the bytes of a rank's states, and of 16-bit weights that wait beside them."""
    update = [] if stage.end.on_host is None else stage.end.on_host.update
    moved = float(update[-1].shape[0]) if update else 0.0
    if not run.offload_parameters:
        return moved * STATE_BYTES
    narrow = 0.0 if run.fp32_parameters else stage.parameters / run.zero_ranks * run.element_bytes
    return moved * STATE_BYTES + narrow


def _activations(step: StepTasks, number: int) -> float:
    """Return the bytes of activations of all micro-batches in flight that a rank of a stage has sent away."""
    chunks = step.stages[number].chunks
    moved = sum(
        task.shape[0] * task.times * count
        for chunk in chunks
        for block, count in chunk.blocks
        for task in block.forward.calls()
        if task.name == "activations_to_host"
    )
    if not moved:
        return 0.0
    sizes = number, len(step.stages), step.num_micro_batches, len(chunks)
    return float(moved) / len(chunks) * peak_in_flight(SCHEDULES[step.schedule], *sizes)
