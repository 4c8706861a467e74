"""A simulator of Chakra traces whose network has no contention: partners of a communication wait for each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from predictor.core.timeline.graph import GraphTask, replay_graph
from predictor.replay.files.chakra_file import ChakraFile, ChakraNode, NodeType

MESSAGES = (NodeType.COMM_SEND, NodeType.COMM_RECV)


def values(node: ChakraNode) -> dict[str, object]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def meetings(files: Mapping[int, ChakraFile]) -> dict[tuple[object, ...], list[tuple[int, ChakraNode]]]:
    """Return the nodes that communicate with each other, of collectives in the order in which a rank has them."""
    met: defaultdict[tuple[object, ...], list[tuple[int, ChakraNode]]] = defaultdict(list)
    for rank, file in files.items():
        counts: Counter[object] = Counter()
        for node in file.nodes:
            told = values(node)
            if node.type in MESSAGES:
                met[told["comm_src"], told["comm_dst"], told["comm_tag"]].append((rank, node))
            elif node.type is NodeType.COMM_COLL:
                group = told.get("pg_name", "")
                met[group, told["comm_type"], counts[group]].append((rank, node))
                counts[group] += 1
    return met


def simulated_us(files: Mapping[int, ChakraFile]) -> float:
    """Return when the last node ends; every node lasts as long as it says."""
    order = [(rank, node) for rank, file in files.items() for node in file.nodes]
    position = {(rank, node.id): number for number, (rank, node) in enumerate(order)}
    after: dict[int, list[int]] = {
        position[rank, node.id]: [position[rank, before] for before in node.data_deps] for rank, node in order
    }
    for partners in meetings(files).values():
        together = [before for rank, node in partners for before in after[position[rank, node.id]]]
        for rank, node in partners:
            after[position[rank, node.id]] = together
    tasks = [
        GraphTask(node.name, rank, str(node.id), float(node.duration_us), tuple(after[number]), (), False)
        for number, (rank, node) in enumerate(order)
    ]
    return replay_graph(tasks).makespan_us
