"""Execution traces are read in both JSON forms and as protocol buffers, and tied to the profiler's traces."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from predictor.replay.files.chakra_file import Attribute, ChakraFile, ChakraNode, NodeType, write_chakra_file
from predictor.replay.files.execution_trace import NO_NODE, ExecutionTensor, read_execution_trace
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.steps import choose_step
from tests.unit.kineto_traces import Event, public_trace

THREAD = "[pytorch|profiler|execution_trace|thread]"
WEIGHT = [5, 6, 0, 8, 4, "cuda:0"]
RESULT = [9, 10, 2, 4, 2, "cpu"]


def older(identity: int, name: str, parent: int, rf_id: int = 0, seq_id: int = -1, tid: int = 1, **more: Any) -> Event:
    """Return a node as schema 1.0.1 has it."""
    numbers = {"rf_id": rf_id, "fw_parent": 0, "seq_id": seq_id, "scope": 0, "tid": tid, "fw_tid": 0, "op_schema": ""}
    sides: Event = {f"{side}{what}": [] for side in ("input", "output") for what in ("s", "_shapes", "_types")}
    return {"name": name, "id": identity, "parent": parent, **numbers, **sides, **more}


def newer(node: Event) -> Event:
    """Return the same node as schema 1.1.1 has it."""
    sides = {
        f"{side}s": {
            "values": node[f"{side}s"],
            "shapes": node[f"{side}_shapes"],
            "types": node[f"{side}_types"],
            "strides": [],
        }
        for side in ("input", "output")
    }
    kinds = {"seq_id": "int64", "op_schema": "string"}
    keys = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
    attrs = [{"name": key, "type": kinds.get(key, "uint64"), "value": node[key]} for key in keys]
    return {"id": node["id"], "name": node["name"], "ctrl_deps": node["parent"], **sides, "attrs": attrs}


NODES = [
    older(1, "[pytorch|profiler|execution_trace|process]", 1, tid=0),
    older(2, THREAD, 1),
    older(
        *(11, "aten::cat", 2),
        rf_id=3,
        seq_id=7,
        inputs=[[WEIGHT, RESULT], 1, "<None>"],
        input_shapes=[[[2, 4], [4]], [], []],
        input_types=["GenericList[Tensor(float),Tensor(c10::BFloat16)]", "Int", "None"],
        outputs=[[12, 0, 0, 0, 0, ""]],
        output_shapes=[[]],
        output_types=["Tensor(nullptr (uninitialized))"],
    ),
]


def et_file(path: Path, nodes: list[Event], schema: str) -> Path:
    content = json.dumps({"schema": schema, "pid": 1, "nodes": nodes, "finish_ts": 5}).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["et.json", "et.json.gz"])
def test_both_json_forms_are_read_alike(tmp_path: Path, name: str) -> None:
    first = read_execution_trace(et_file(tmp_path / name, NODES, "1.0.1"))
    second = read_execution_trace(et_file(tmp_path / name, [newer(node) for node in NODES], "1.1.1-chakra.0.0.4"))
    assert (first.schema, second.schema) == ("1.0.1", "1.1.1-chakra.0.0.4")
    assert first.nodes == second.nodes
    assert first.facts["finish_ts"] == 5
    process, thread, node = first.nodes
    assert (process.parent, thread.parent, node.parent) == (NO_NODE, 1, 2)
    assert (node.record_function, node.sequence, node.thread, node.duration_us) == (3, 7, 1, None)
    assert node.inputs == (
        ExecutionTensor(5, 6, 0, 8, 4, "cuda:0", (2, 4), "float"),
        ExecutionTensor(9, 10, 2, 4, 2, "cpu", (4,), "c10::BFloat16"),
    )
    assert [(tensor.numel, tensor.dtype) for tensor in node.outputs] == [(0, "nullptr (uninitialized)")]
    assert {parent: [child.id for child in inside] for parent, inside in first.children().items()} == {
        NO_NODE: [1],
        1: [2],
        2: [11],
    }


def test_protocol_buffers_have_durations_and_dependencies(tmp_path: Path) -> None:
    attributes = {"rf_id": Attribute("uint64", 3), "seq_id": Attribute("int64", -1), "tid": Attribute("uint64", 1)}
    texts = ("[[5, 6, 0, 8, 4, 'cuda:0'], 'it']", "[[2, 4], []]", "['Tensor(float)', 'String']")
    nodes = [
        ChakraNode(7, "aten::mm", NodeType.COMP, (2,), (3, 4), 100, 25, texts, ("no list", "[", ""), attributes),
        ChakraNode(2, "step", NodeType.METADATA),
    ]
    path = tmp_path / "trace.0.et"
    write_chakra_file(path, ChakraFile(nodes))
    trace = read_execution_trace(path)
    assert [node.id for node in trace.nodes] == [2, 7]
    node = trace.nodes[1]
    assert (node.parent, node.after, node.duration_us, node.record_function) == (2, (3, 4), 25.0, 3)
    assert node.inputs == (ExecutionTensor(5, 6, 0, 8, 4, "cuda:0", (2, 4), "float"),)
    assert (node.outputs, node.attributes["type"]) == ((), "COMP")


def test_a_torn_trace_keeps_its_whole_nodes(tmp_path: Path) -> None:
    path = et_file(tmp_path / "et.json", [*NODES, {"name": "no id"}, older(12, "aten::mm", 2)], "1.0.1")
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"aten::mm")])
    trace = read_execution_trace(path)
    assert [node.id for node in trace.nodes] == [1, 2, 11]
    assert list(trace.notes) == [
        "the file is torn; it ends within its events",
        "1 nodes have no id or no name; left out",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": []}', "has no list nodes"),
        (b'{"nodes": []}', "has no node that is whole"),
        (b'{"nodes": [{"id": "x"}]}', r"has no node that is whole \(1 nodes have no id"),
        (b"nonsense", "is no Chakra trace"),
        (b"", "is no Chakra trace: it has no node"),
        (b"\x1f\x8b\x08\x00\xff", "cannot be read|is no trace|is no Chakra"),
    ],
)
def test_what_is_no_execution_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message) as refused:
        read_execution_trace(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(RecordError, match="it is a folder"):
        read_execution_trace(tmp_path)


def test_public_resnet() -> None:
    execution = read_execution_trace(public_trace("param_resnet_1gpu_chakra_et.json.gz"))
    assert (execution.schema, len(execution.nodes), execution.notes) == ("1.0.3-chakra.0.0.4", 14391, [])
    tensors = [tensor for node in execution.nodes for tensor in (*node.inputs, *node.outputs)]
    assert {tensor.dtype for tensor in tensors if not tensor.storage} == {"nullptr (uninitialized)"}
    assert all(prod(tensor.shape) == tensor.numel for tensor in tensors if tensor.storage)
    children = execution.children()
    assert len(children[NO_NODE]) == 1
    assert sum(map(len, children.values())) == len(execution.nodes)


def test_what_the_installed_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch to record with")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, record_shapes=True, execution_trace_observer=observer) as profiler:
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    trace = read_trace(tmp_path / "trace.json.gz")
    execution = read_execution_trace(tmp_path / "et.json")
    assert (trace.backend, trace.notes, execution.notes) == ("cpu", (), [])
    assert {arrow.kind for arrow in trace.arrows} == {"fwdbwd"}
    assert choose_step(trace).label == "step 1 (to SGD.step)"  # the profiler counts steps with a schedule only
    traced = {(event.name, event.args.get("Record function id")) for event in trace.events}
    calls = [(node.name, node.record_function) for node in execution.nodes if node.record_function]
    assert len(traced.intersection(calls)) >= 0.95 * len(calls) > 0  # the observers begin and end one after the other
