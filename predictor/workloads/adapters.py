"""What adapters change in a layer's passes: two narrow products each, and no gradients of frozen weights."""

from __future__ import annotations

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.linear_layers import HALF_OF_BACKWARD
from predictor.workloads.lora import Lora
from predictor.workloads.mixers.linear import Linear, Split, linear_tasks
from predictor.workloads.run import TrainingRun
from predictor.workloads.switches import LayerKind
from predictor.workloads.tasks import ADD_PASSES, FORWARD, Part, Task, collective_task, scaled, stream_task

# The adapter's output is scaled, a read and a write, and added to the layer's; backward the gradient is scaled, and
# both layers' gradients of their input are added. Source: Megatron-Bridge, src/megatron/bridge/peft/lora_layers.py.
SCALE_PASSES = 2
LINEAR_FAMILY, EXPERTS = "linear", "expert_mlp"


def frozen(tasks: list[Task], direction: Direction) -> list[Task]:
    """Return a pass whose products compute no gradients of weights."""
    if direction is FORWARD:
        return tasks
    return [
        scaled([task], HALF_OF_BACKWARD)[0]
        if task.operator.family == LINEAR_FAMILY or task.operator.name == EXPERTS
        else task
        for task in tasks
    ]


def _side_kernels(linear: Linear, call: LayerCall, direction: Direction) -> Task:
    """Return the scaling and the addition of one adapter."""
    tokens = call.unsplit_tokens if linear.split is Split.WHOLE else call.tokens
    inputs, outputs = linear.on_rank(call.tensor_parallel_size)
    added = outputs if direction is FORWARD else inputs
    size_bytes = tokens * (SCALE_PASSES * outputs + ADD_PASSES * added) * call.element_bytes
    return stream_task("lora_addition", size_bytes, call, launches=2)


def _traffic(run: TrainingRun, call: LayerCall, lora: Lora, linear: Linear) -> list[Task]:
    """Return the gather or the sum of an adapter's narrow activations over the tensor-parallel group."""
    if linear.split is Split.WHOLE:
        return []
    share = call.tokens * lora.rank * call.element_bytes // call.tensor_parallel_size
    return collective_task("all_gather", share, run.layout.tensor_group(), Part.TENSOR_PARALLEL)


def adapter_tasks(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return what the adapters of one layer run in one pass, in the step's own precision."""
    if run.lora is None:
        return []
    tasks: list[Task] = []
    for linear in run.lora.linears(run.model, kind):
        tasks += linear_tasks(run.lora.pair(linear), call, direction)
        tasks.append(_side_kernels(linear, call, direction))
        tasks += _traffic(run, call, run.lora, linear)
    return tasks
