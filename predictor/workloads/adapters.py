"""What adapters change in a layer's passes: two narrow products each, and no gradients of frozen weights."""

from __future__ import annotations

from math import ceil

from predictor.costs.collectives import Topology
from predictor.costs.operator import Direction
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.lora import Lora
from predictor.workloads.measured_kernels import input_gradient
from predictor.workloads.mixers.linear import Linear, Split
from predictor.workloads.run import TrainingRun
from predictor.workloads.switches import LayerKind
from predictor.workloads.tasks import (
    ADD_PASSES,
    FORWARD,
    Part,
    Task,
    collective_task,
    in_ffn,
    shaped_task,
    stream_task,
)
from predictor.workloads.transformer import Transformer

# The adapter's output is scaled, a read and a write, and added to the layer's; backward the gradient is scaled, and
# both layers' gradients of their input are added. Source: Megatron-Bridge, src/megatron/bridge/peft/lora_layers.py.
SCALE_PASSES = 2
LINEAR_FAMILY = "linear"
# Products of adapters, whose weights train.
PRODUCTS = frozenset(f"{place}lora_{which}" for place in ("", "ffn_", "expert_") for which in ("down", "up"))


def frozen(model: Transformer, tasks: list[Task], direction: Direction) -> list[Task]:
    """Return a pass whose products compute no gradients of weights."""
    if direction is FORWARD:
        return tasks
    return [input_gradient(model, task) if task.operator.family == LINEAR_FAMILY else task for task in tasks]


class _Adapters:
    """The adapters of some linear layers, over so many tokens, split over a group of ranks."""

    def __init__(self, run: TrainingRun, lora: Lora, call: LayerCall, direction: Direction) -> None:
        self.call, self.direction = call, direction
        self.lora, self.sequence_parallel = lora, run.sequence_parallel
        self.is_forward = direction is FORWARD

    def tasks(self, linear: Linear, place: str, rank: int, tokens: int, group: Topology, times: float) -> list[Task]:
        """Return what one adapter runs, ``times`` of its kind."""
        matrices = self.lora.pair(linear, rank)
        products = [
            shaped_task(matrix.operator, (tokens, *matrix.on_rank(group.ranks)), self.direction, times)
            for matrix in matrices
        ]
        named = [task._replace(name=place + matrix.name) for task, matrix in zip(products, matrices, strict=True)]
        inputs, outputs = linear.on_rank(group.ranks)
        moved = SCALE_PASSES * outputs + ADD_PASSES * (outputs if self.is_forward else inputs)
        size_bytes = tokens * moved * self.call.element_bytes * times
        side = stream_task(place + "lora_addition", size_bytes, self.call, launches=2 * times)
        computing = in_ffn([*named, side]) if place else [*named, side]
        return computing + self._traffic(linear, rank, tokens, group)

    def _traffic(self, linear: Linear, rank: int, tokens: int, group: Topology) -> list[Task]:
        """Return the sums and gathers of an adapter over the ranks that split it.

        Beside a column-parallel layer the narrow activations are gathered, and backward the gradients of these and,
        unless tokens are split too, of its input are summed. Beside a row-parallel one narrow activations are summed,
        then whole outputs gathered, of which a rank keeps its tokens; backward those gradients are gathered again.

        Source: Megatron-Bridge, src/megatron/bridge/peft/utils.py, ParallelLinearAdapter (gather_output).
        """
        if linear.split is Split.WHOLE:
            return []
        element = self.call.element_bytes
        narrow, ranks, part = tokens * rank * element, group.ranks, Part.TENSOR_PARALLEL
        summed = collective_task("all_reduce", narrow, group, part)
        if linear.split is Split.COLUMN:
            if self.is_forward:
                return collective_task("all_gather", narrow // ranks, group, part)
            whole = 0 if self.sequence_parallel else tokens * linear.inputs * element
            return summed + collective_task("all_reduce", whole, group, part)
        share = tokens * linear.outputs * element // ranks
        if self.lora.all_to_all and self.sequence_parallel:
            return summed + collective_task("all_to_all", share, group, part)
        gathers = self.is_forward or self.sequence_parallel
        return summed + (collective_task("all_gather", share, group, part) if gathers else [])


def adapter_tasks(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return what the adapters of one layer run in one pass, in the step's own precision.

    The experts of a rank share an adapter, over all their rows at once, or have one each.
    """
    lora = run.lora
    if lora is None:
        return []
    adapters, tasks = _Adapters(run, lora, call, direction), []
    group = run.layout.tensor_group()
    for linear in lora.linears(run.model, kind):
        tokens = call.unsplit_tokens if linear.split is Split.WHOLE else call.tokens
        place = "ffn_" if linear.name.startswith("ffn_") else ""
        tasks += adapters.tasks(linear, place, lora.rank, tokens, group, 1.0)
    experts, rank = run.model.experts, lora.expert_rank(run.model)
    if experts is None:
        return tasks
    held = experts.num_experts // run.layout.expert_parallel_size
    times = 1 if lora.share_expert_adapters else held
    split = run.layout.expert_tensor_group() if run.layout.is_folded else group
    rows = max(1, ceil(routed_tokens(experts, call, run.layout) / times)) if kind.has_experts else 0
    for linear in lora.expert_linears(run.model, kind):
        tasks += adapters.tasks(linear, "expert_", rank, rows, split, float(times))
    return tasks
