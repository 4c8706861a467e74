"""Operator and collective times of one profiled training step, from torch's profiler.

A model names its operators in the forward pass (``operator_scopes``). Every node of the backward graph
carries the sequence number of the forward operation that recorded it, so its time goes to the operator in whose scope
that operation ran. Scopes inside a backward node are activations that are computed again.

Source: PyTorch, torch/csrc/autograd/function.h (``sequence_nr``), torch/autograd/profiler_util.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from model_training_framework.trainer.operator_scopes import PREFIX, TRAFFIC_PREFIX
from predictor.replay.files.measured_step import PassName

FORWARD: PassName = "forward"
RECOMPUTE: PassName = "recompute"
BACKWARD: PassName = "backward"
END: PassName = "end"
OPTIMIZER_PREFIX = "Optimizer.step#"
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = EVALUATE + "torch::autograd::AccumulateGrad"
# Calls of torch.distributed by the operator that the dispatcher sees. A message is counted where it is sent.
COLLECTIVES = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allgather_": "all_gather",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::broadcast_": "broadcast",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::send": "point_to_point",
}
BACKENDS = ("gloo:", "nccl:")
# Waiting for traffic, and starting it, inside an operator's scope or node is not the operator's time.
TRAFFIC_PREFIXES = ("c10d::", "_c10d_functional::", "FSDP::", "fsdp::")
# Operators beside the named ones: what a linear layer's backward node sums for its bias, the sum of the gradients of
# two branches, and gradients added to those of earlier micro-batches.
BIAS_GRADIENTS, BRANCH_SUM, ACCUMULATION, OTHER = "bias_gradients", "residual_add", "gradient_accumulation", "other"
SUM_OPERATORS = {"aten::sum": BIAS_GRADIENTS, "aten::add": BRANCH_SUM, "aten::add_": BRANCH_SUM}
# Kernels outside any scope that are an operator's by themselves: TorchRec reorders keys before and behind exchanges.
KERNELS = {
    "fbgemm::block_bucketize_sparse_features": "kjt_permute",
    "fbgemm::permute_1D_sparse_data": "kjt_permute",
    "fbgemm::permute_2D_sparse_data": "kjt_permute",
}
# Nodes of the backward graph that start or await an exchange of TorchRec's.
EXCHANGE_NODES = ("_ReqBackward", "_WaitBackward")
GRADIENT_CLIPPING, OPTIMIZER_SUFFIX, EMBEDDING_UPDATE = "gradient_clipping", "_step", "embedding_update"
EMBEDDING_EXCHANGE = "embedding_exchange"


class Timed(NamedTuple):
    """One call of an operator or a collective.

    Attributes:
        step_pass: forward, recompute, backward or end.
        start_us, end_us: from the start of the profile, in microseconds.
        us: its time; less than its length where other operators, or waiting for traffic, lie within it.
        part: of a collective, what it is for, as the predictor's tasks say; empty: an operator.
    """

    step_pass: PassName
    name: str
    start_us: float
    end_us: float
    us: float
    part: str = ""


def _children(event: Any) -> Sequence[Any]:
    return event.cpu_children or ()


def _outermost(event: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the outermost events within an event that are wanted."""
    for child in _children(event):
        if is_wanted(child):
            yield child
        else:
            yield from _outermost(child, is_wanted)


def _is_traffic(event: Any) -> bool:
    return bool(event.name.startswith(TRAFFIC_PREFIXES))


def _is_backward(event: Any) -> bool:
    """Return whether an event lies within the backward pass."""
    while event is not None:
        if event.name.startswith(EVALUATE) or (event.name.startswith("FSDP::") and "backward" in event.name):
            return True
        event = event.cpu_parent
    return False


def _is_scope(event: Any) -> bool:
    return bool(event.name.startswith(PREFIX))


def _is_end(name: str) -> bool:
    return name == GRADIENT_CLIPPING or name.endswith(OPTIMIZER_SUFFIX)


def _scope_pass(name: str) -> PassName:
    """Return the pass of a scope outside the backward graph."""
    if _is_end(name):
        return END
    return BACKWARD if name == EMBEDDING_UPDATE else FORWARD


class _Walk:
    """Collects the calls of operators from the events of one profiled process."""

    def __init__(self, is_gpu: bool, beside: Mapping[str, str]) -> None:
        self._is_gpu = is_gpu
        self._beside = beside
        self._owners: dict[tuple[int, int], str] = {}
        self.calls: list[Timed] = []

    def _us(self, event: Any) -> float:
        """Return the time of an event without the traffic in it; on a GPU that of the kernels launched within it."""
        if self._is_gpu:
            return float(event.device_time_total)
        waiting = sum(traffic.time_range.elapsed_us() for traffic in _outermost(event, _is_traffic))
        return float(event.time_range.elapsed_us() - waiting)

    def _add(self, step_pass: PassName, name: str, event: Any, without: float = 0.0) -> None:
        times = event.time_range
        us = max(0.0, self._us(event) - without)
        self.calls.append(Timed(step_pass, name, float(times.start), float(times.end), us))

    def forward(self, event: Any, owner: str | None) -> None:
        """Note which operator recorded which node of the backward graph; add the outermost named scopes."""
        if _is_scope(event):
            name = event.name.removeprefix(PREFIX)
            if owner is None:
                self._add(_scope_pass(name), name, event)
            owner = name
        elif owner is None and event.name.startswith(OPTIMIZER_PREFIX):
            self._add(END, "optimizer_step", event)
            return
        elif owner is None and event.name in KERNELS:
            owner = KERNELS[event.name]
            self._add(FORWARD, owner, event)
        if event.sequence_nr >= 0:
            # Several events see the same next number; the last that starts with it records the node.
            self._owners[event.thread, event.sequence_nr] = owner or OTHER
        for child in _children(event):
            self.forward(child, owner)

    def backward(self, node: Any) -> None:
        """Split a node of the backward graph into its operator, recomputed ones and sums beside it."""
        scopes = list(_outermost(node, _is_scope))
        for scope in scopes:
            self._add(RECOMPUTE, scope.name.removeprefix(PREFIX), scope)
        if node.name.endswith(EXCHANGE_NODES):
            return
        if node.name == ACCUMULATE:
            self._add(BACKWARD, ACCUMULATION, node)
            return
        sums = [child for child in _children(node) if child.name in self._beside]
        for event in sums:
            self._add(BACKWARD, self._beside[event.name], event)
        owner = self._owners.get((node.fwd_thread or node.thread, node.sequence_nr), OTHER)
        self._add(BACKWARD, owner, node, without=sum(map(self._us, [*scopes, *sums])))


def _ancestors(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _purpose(call: Any, collective: str, sends: PassName) -> tuple[PassName, str]:
    """Return the pass and the part of the step that a call of torch.distributed belongs to.

    DDP reduces a bucket from the accumulation of its last gradient; FSDP's calls are in scopes of its own; what an
    optimizer's scope holds exchanges weights; the functional collectives are the tensor axis's. A scope of traffic says
    its part itself; gradients of pooled embeddings leave in their nodes of the backward graph.
    """
    names = [event.name for event in _ancestors(call)]
    named = [name.removeprefix(TRAFFIC_PREFIX) for name in names if name.startswith(TRAFFIC_PREFIX)]
    if named:
        return (BACKWARD if _is_backward(call) else FORWARD), named[0]
    if collective == "point_to_point":
        return sends, "pipeline_parallel"
    if any(name.startswith(OPTIMIZER_PREFIX) or _is_end(name.removeprefix(PREFIX)) for name in names):
        return END, "data_parallel"
    if any(name.startswith("FSDP::") for name in names):
        return (BACKWARD if _is_backward(call) else FORWARD), "data_parallel"
    if any(name.startswith("_c10d_functional::") for name in names):
        if not _is_backward(call):
            return FORWARD, "tensor_parallel"
        is_again = any(name.startswith(PREFIX) for name in names)  # a forward scope inside a backward node
        return (RECOMPUTE if is_again else BACKWARD), "tensor_parallel"
    if collective != "all_reduce" and _is_backward(call):
        return BACKWARD, EMBEDDING_EXCHANGE
    return END, "data_parallel"


def _collectives(events: Sequence[Any], sends: PassName) -> Iterator[Timed]:
    """Yield the collectives: the call says which it is, the backend's own event how long it took.

    Gloo, for one, runs a reduce-scatter as an all-reduce. The n-th call's event is the n-th to start.
    """
    calls = [event for event in events if event.name.startswith("c10d::") and not event.is_async]
    runs = [event for event in events if event.name.startswith(BACKENDS)]
    if len(calls) != len(runs):  # matched wrongly they would say something wrong
        warnings.warn(
            f"the profiler saw {len(calls)} collectives start and {len(runs)} run; none is recorded", stacklevel=2
        )
        return
    for call, run in zip(
        sorted(calls, key=lambda event: event.time_range.start),
        sorted(runs, key=lambda event: event.time_range.start),
        strict=True,
    ):
        name = COLLECTIVES.get(call.name)
        if name is not None:
            start, end = float(run.time_range.start), float(run.time_range.end)
            step_pass, part = _purpose(call, name, sends)
            yield Timed(step_pass, name, start, end, end - start, part)


def operator_calls(
    events: Iterable[Any], is_gpu: bool, sends: PassName = FORWARD, beside: Mapping[str, str] = SUM_OPERATORS
) -> list[Timed]:
    """Return the calls of named operators and of collectives in one profiled step, by start.

    Args:
        events: ``torch.profiler.profile.events()`` of one step.
        is_gpu: times are those of kernels, not of the host.
        sends: pass of this rank's messages to neighbouring stages: backward on the last stage, whose messages are
            gradients. A stage in the middle sends both; an event does not say which.
        beside: kernels within nodes of the backward graph that are operators of their own; all others are the node's.
    """
    walk, events = _Walk(is_gpu, beside), list(events)
    roots = [event for event in events if event.cpu_parent is None and not event.is_async]
    roots.sort(key=lambda event: event.time_range.start)
    nodes = [event for event in roots if event.name.startswith(EVALUATE)]
    for event in roots:  # all of these first: their scopes own the nodes
        if not event.name.startswith(EVALUATE):
            walk.forward(event, None)
    for node in nodes:
        walk.backward(node)
    return sorted([*walk.calls, *_collectives(events, sends)], key=lambda call: call.start_us)
