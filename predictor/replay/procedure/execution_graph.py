"""The operators of a forward pass and the tensors between them, from an execution trace alone, without times."""

from __future__ import annotations

from collections import defaultdict
from math import prod

from predictor.replay.files.execution_trace import ExecutionTrace
from predictor.replay.precision.dataflow import RecordedCall, recorded_flow
from predictor.replay.precision.forward_graph import DTYPES, PRECISIONS
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor


def execution_graph(trace: ExecutionTrace, config: OperatorConfig, backend: str = "cpu") -> OperatorGraph:
    """Return the graph of a recorded forward pass.

    Args:
        trace: of one step, or of a forward pass alone.
        config: which operators to track.
        backend: of the device: which operators autocast keeps in fp32 there.
    """
    recorded = recorded_flow(trace, config)
    depths = [0] * len(recorded.calls)
    for producer, consumer, _ in sorted(recorded.flows, key=lambda flow: flow.consumer):
        depths[consumer] = max(depths[consumer], depths[producer] + 1)
    counts: dict[str, int] = defaultdict(int)
    nodes = []
    for call, depth in zip(recorded.calls, depths, strict=True):
        nodes.append(_node(call, f"{call.name}.{counts[call.name]}", depth, config, backend))
        counts[call.name] += 1
    facts = {"source": trace.path.name, "schema": trace.schema}
    return OperatorGraph(nodes, [Tensor(*flow) for flow in recorded.flows], facts)


def _node(call: RecordedCall, label: str, depth: int, config: OperatorConfig, backend: str) -> OperatorNode:
    weights = set(config.of(config.weights, call.name) or ())
    data = [
        prod(shape)
        for at, (shape, dtype) in enumerate(zip(call.shapes, call.dtypes, strict=True))
        if at not in weights and dtype in DTYPES
    ]
    saves = config.of(config.saves, call.name) or ""
    outputs = call.output_numel
    return OperatorNode(
        name=call.name,
        label=label,
        depth=depth,
        shapes=call.shapes,
        weight_numel=sum(prod(call.shapes[at]) for at in weights if at < len(call.shapes)),
        output_numel=outputs,
        saved_numel={"inputs": sum(data), "output": outputs, "both": sum(data) + outputs, "mask": outputs}.get(
            saves, 0
        ),
        choices=config.choices(call.name, backend, PRECISIONS),
        traced=next((DTYPES[dtype] for dtype in call.dtypes if dtype in DTYPES), Precision.FP32),
    )
