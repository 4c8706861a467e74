"""A step's tasks become one Chakra trace a rank, whose messages and collectives have their partners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.core.timeline.graph import GraphError, GraphTask, replay_graph
from predictor.replay.files.chakra_file import ChakraFile, ChakraNode, NodeType, read_chakra_file
from predictor.replay.files.chakra_step import Communication, Computation, TaskWork, chakra_files, write_chakra
from tests.unit.chakra_simulator import meetings, simulated_us, values

TASKS = [
    GraphTask("forward", 0, "compute", 10.4),
    GraphTask("backward", 0, "compute", 20.4),
    GraphTask("activations", 0, "send", 3.0, (0,), (), False),
    GraphTask("activations", 1, "receive", 3.0, (0,), (), False),
    GraphTask("forward", 1, "compute", 11.0, (3,)),
    GraphTask("reduction", 0, "link", 7.0, (1,)),
    GraphTask("reduction", 1, "link", 7.0, (4,)),
    GraphTask("optimizer", 0, "compute", 5.0, (5, 6)),
    GraphTask("optimizer", 1, "compute", 5.0, (6,)),
    GraphTask("log", 1, "host", 1.0, (1,)),
]
WORK: dict[int, TaskWork] = {
    0: Computation(1000, 64),
    2: Communication("send", 4096, peer=1, tag=7),
    3: Communication("receive", 4096, peer=0, tag=7),
    5: Communication("all_reduce", 1 << 33, "1"),
    6: Communication("all_reduce", 1 << 33, "1"),
}
GROUPS = {"1": (0, 1)}


def by_name(file: ChakraFile, name: str) -> ChakraNode:
    (node,) = (node for node in file.nodes if node.name == name)
    return node


def test_a_file_of_every_rank(tmp_path: Path) -> None:
    paths = write_chakra(tmp_path / "new", [chakra_files(TASKS, WORK, GROUPS)], GROUPS)
    assert [path.name for path in paths] == ["step.0.et", "step.1.et"]
    assert json.loads((tmp_path / "new" / "step.groups.json").read_text()) == {"1": [0, 1]}
    files = [read_chakra_file(path) for path in paths]
    assert [file.nodes for file in files] == [file.nodes for file in chakra_files(TASKS, WORK, GROUPS).values()]


def test_computation_has_its_work_and_whole_microseconds() -> None:
    first, _ = chakra_files(TASKS, WORK, GROUPS).values()
    forward, backward = by_name(first, "forward"), by_name(first, "backward")
    assert forward.type is NodeType.COMP
    assert values(forward) == {"is_cpu_op": False, "num_ops": 1000, "tensor_size": 64}
    # What is rounded off the first, 0.4 µs, is in the second, which lasts 20.8 µs.
    assert (forward.duration_us, backward.duration_us) == (10, 21)
    assert backward.data_deps == (forward.id,)


def test_rounding_keeps_the_time_of_a_stream() -> None:
    tasks = [GraphTask(f"t{number}", 0, "compute", 0.3) for number in range(1000)]
    (file,) = chakra_files(tasks, {}, {}).values()
    assert sum(node.duration_us for node in file.nodes) == 300


def test_a_lag_is_a_node_of_the_host() -> None:
    tasks = [
        GraphTask("a", 0, "compute", 5.0),
        GraphTask("b", 0, "other", 6.0),
        GraphTask("c", 0, "third", 1.0, (0, 1), (8.0, 8.0)),
        GraphTask("d", 1, "compute", 1.0, (0,), (4.0,)),
    ]
    files = chakra_files(tasks, {}, {})
    lag = by_name(files[0], "lag of c")
    assert (lag.duration_us, lag.data_deps, values(lag)) == (8, (0, 1), {"is_cpu_op": True})
    assert by_name(files[0], "c").data_deps == (lag.id,)
    assert by_name(files[1], "lag of d").data_deps == (by_name(files[1], "a before d").id,)
    assert simulated_us(files) == replay_graph(tasks).makespan_us == 15.0


def test_a_message_has_two_ends() -> None:
    first, second = chakra_files(TASKS, WORK, GROUPS).values()
    sent, received = by_name(first, "activations"), by_name(second, "activations")
    assert (sent.type, received.type) == (NodeType.COMM_SEND, NodeType.COMM_RECV)
    ends = {"is_cpu_op": False, "comm_size": 4096, "comm_src": 0, "comm_dst": 1, "comm_tag": 7}
    assert values(sent) == values(received) == ends
    assert (sent.data_deps, received.data_deps) == ((0,), ())
    assert by_name(second, "forward").data_deps == (received.id,)


def test_a_collective_has_kind_size_and_group() -> None:
    first, second = chakra_files(TASKS, WORK, GROUPS).values()
    for file in (first, second):
        node = by_name(file, "reduction")
        assert node.type is NodeType.COMM_COLL
        assert values(node) == {"is_cpu_op": False, "comm_size": 1 << 33, "comm_type": 0, "pg_name": "1"}


def test_a_wait_across_ranks_is_a_message_of_one_byte() -> None:
    first, second = chakra_files(TASKS, WORK, GROUPS).values()
    log, sent = by_name(second, "log"), by_name(first, "backward before log")
    received = by_name(second, "backward before log")
    assert log.data_deps == (received.id,)
    assert sent.data_deps == (by_name(first, "backward").id,)
    assert values(sent) == values(received)
    assert values(sent)["comm_size"] == 1


def test_every_dependency_is_on_the_rank_and_no_identity_is_repeated() -> None:
    for file in chakra_files(TASKS, WORK, GROUPS).values():
        identities = [node.id for node in file.nodes]
        assert len(set(identities)) == len(identities)
        assert all(set(node.data_deps) <= set(identities) for node in file.nodes)


def test_what_is_written_takes_as_long_as_the_step() -> None:
    whole = [task._replace(duration_us=float(round(task.duration_us))) for task in TASKS]
    files = chakra_files(whole, WORK, GROUPS)
    assert simulated_us(files) == replay_graph(whole).makespan_us
    assert all(len(partners) == 2 for partners in meetings(files).values())


@pytest.mark.parametrize(
    ("tasks", "work", "message"),
    [
        ([GraphTask("a", 0, "s", 1.0, (5,))], {}, r"task 0 \(a\) waits for task 5 of 1"),
        (
            [GraphTask("a", 0, "s", 1.0)],
            {0: Communication("shout", 1)},
            r"runs shout; expected one of send, receive, all",
        ),
        ([GraphTask("a", 2, "s", 1.0)], {0: Communication("all_reduce", 1, "1")}, "rank 2, which group 1 has not"),
    ],
)
def test_what_cannot_be_written(tasks: list[GraphTask], work: dict[int, TaskWork], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        chakra_files(tasks, work, GROUPS)
