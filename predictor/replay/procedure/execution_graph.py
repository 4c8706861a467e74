"""The operators of a forward pass and the tensors between them, from an execution trace: dataflow as it was recorded.

Operators that are not tracked, such as views, pass on what they read. A tensor is known by its id and by its storage,
which views of it share; what writes into a storage is its new producer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from predictor.precision.operator_config import OperatorConfig
from predictor.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.precision.work_of_shapes import WorkKind
from predictor.traces.execution_trace import NO_NODE, ExecutionNode, ExecutionTensor, ExecutionTrace

NOT_FORWARD = (
    "autograd::engine",
    "Optimizer.",
    "torch::autograd::AccumulateGrad",
    "record_param_comms",
    "gloo:",
    "nccl:",
)
WANTED = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)
DTYPES = {
    "float": Precision.FP32,
    "c10::Half": Precision.FP16,
    "c10::BFloat16": Precision.BF16,
    "signed char": Precision.INT8,
}
FLOATING = frozenset({"float", "double", "c10::Half", "c10::BFloat16"})
Key = tuple[str, int]


def execution_graph(trace: ExecutionTrace, config: OperatorConfig, backend: str = "cpu") -> OperatorGraph:
    """Return the graph of a traced forward pass.

    Args:
        trace: of one step, or of a forward pass alone.
        config: which operators to track.
        backend: of the device: which operators autocast keeps in fp32 there.
    """
    producers: dict[Key, dict[int, None]] = {}
    nodes: list[OperatorNode] = []
    tensors: dict[tuple[int, int], int] = {}
    depths: list[int] = []
    counts: dict[str, int] = defaultdict(int)
    for call in _calls(trace, config):
        reads = {tensor.tensor: _producers(producers, tensor) for tensor in call.inputs}
        made_by = dict.fromkeys(producer for known in reads.values() for producer in known)
        if call.name not in config.tracked:
            _write(producers, call.outputs, made_by, is_new=False)
            continue
        at = len(nodes)
        for tensor in call.inputs:
            for producer in reads[tensor.tensor]:
                tensors.setdefault((producer, at), tensor.numel)
        depths.append(1 + max((depths[producer] for producer in made_by), default=-1))
        nodes.append(_node(call, f"{call.name}.{counts[call.name]}", depths[-1], reads, config, backend))
        counts[call.name] += 1
        _write(producers, call.outputs, {at: None}, is_new=True)
    row = [Tensor(producer, consumer, numel) for (producer, consumer), numel in tensors.items()]
    return OperatorGraph(nodes, row, {"source": trace.path.name, "schema": trace.schema})


def _calls(trace: ExecutionTrace, config: OperatorConfig) -> Iterator[ExecutionNode]:
    """Yield the forward pass in its order: tracked operators without what is inside them, and all others."""
    children = trace.children()
    known = {node.id for node in trace.nodes}
    roots = [node for node in trace.nodes if node.parent == NO_NODE or node.parent not in known]
    waiting = roots[::-1]
    while waiting:
        node = waiting.pop()
        if node.name.startswith(NOT_FORWARD) or node.forward_thread > 0:
            continue
        inside = [child for child in children.get(node.id, ()) if child.id != node.id]
        if node.name in config.tracked or not inside:
            yield node
        else:
            waiting += inside[::-1]


def _keys(tensor: ExecutionTensor) -> tuple[Key, ...]:
    return ("tensor", tensor.tensor), ("storage", tensor.storage)


def _producers(producers: dict[Key, dict[int, None]], tensor: ExecutionTensor) -> dict[int, None]:
    by_id, by_storage = _keys(tensor)
    return producers.get(by_id) or producers.get(by_storage) or {}


def _write(
    producers: dict[Key, dict[int, None]], outputs: Sequence[ExecutionTensor], made_by: dict[int, None], is_new: bool
) -> None:
    """Note who made an operator's outputs.

    Ids and storages are addresses that are used again: what a tracked operator writes has no other producer than it;
    what an operator writes that read nothing tracked, has none.
    """
    for tensor in outputs:
        by_id, by_storage = _keys(tensor)
        producers[by_id] = made_by
        if is_new or made_by or by_storage not in producers:
            producers[by_storage] = made_by


def _node(
    call: ExecutionNode,
    label: str,
    depth: int,
    reads: dict[int, dict[int, None]],
    config: OperatorConfig,
    backend: str,
) -> OperatorNode:
    outputs = sum(tensor.numel for tensor in call.outputs)
    first = 0 if config.of(config.work, call.name) is WorkKind.EMBEDDING else 1  # of others the first input is data
    weights = [tensor for tensor in call.inputs[first:] if tensor.dtype in FLOATING and not reads[tensor.tensor]]
    saves = config.of(config.saves, call.name)
    read = sum(tensor.numel for tensor in call.inputs)
    saved = {"inputs": read, "output": outputs, "both": read + outputs, "mask": outputs}.get(saves or "", 0)
    return OperatorNode(
        name=call.name,
        label=label,
        depth=depth,
        shapes=tuple(tensor.shape for tensor in call.inputs),
        weight_numel=sum(tensor.numel for tensor in weights),
        output_numel=outputs,
        saved_numel=saved,
        choices=config.choices(call.name, backend, WANTED),
        traced=next((DTYPES[tensor.dtype] for tensor in call.inputs if tensor.dtype in DTYPES), Precision.FP32),
    )
