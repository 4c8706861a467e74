"""A predicted step as Chakra traces: ranks, messages and collectives have partners, and it takes as long."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.step.prediction import predict
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.replay.chakra_export import chakra_step, write_chakra_step
from predictor.replay.files.chakra_file import CollectiveType, NodeType, read_chakra_file
from predictor.replay.files.chakra_step import Communication, Computation
from tests.unit.chakra_simulator import meetings, simulated_us, values
from tests.unit.core.step.test_step_time import unit_system
from tests.unit.core.workload.test_workloads import RUN

TIED = replace(RUN.model, tied_embeddings=True)
VARIANTS: dict[str, dict[str, Any]] = {
    "blocking messages": {},
    "messages that overlap": {"blocking_transfers": False},
    "one stage": {"layout": Layout(1, 1, 4, gpus_per_node=4), "layers_per_stage": (4,)},
    "one replica": {"layout": Layout(1, 4, 1, gpus_per_node=4), "layers_per_stage": (1, 1, 1, 1), "zero_stage": 0},
    "tied embeddings": {"model": TIED, "zero_stage": 0},
    "reduction beside the backward pass": {"overlap_gradient_reduction": True, "zero_stage": 0},
    "scattered gradients": {"gradient_reduction": "reduce_scatter", "overlap_parameter_gather": True},
    "gradients reduced in passes": {"zero_stage": 3},
    "split backward passes": {"schedule": "zero_bubble_h1", "blocking_transfers": False, "zero_stage": 0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_predicted_step_is_written_whole(name: str, tmp_path: Path) -> None:
    run: TrainingRun = replace(RUN, **VARIANTS[name])
    prediction = predict(run, unit_system())
    step = chakra_step(prediction)
    layout = run.layout
    ranks = layout.pipeline_parallel_size * layout.data_parallel_size
    paths = write_chakra_step(prediction, tmp_path)
    assert [path.name for path in paths] == [f"step.{rank}.et" for rank in range(ranks)]
    files = {rank: read_chakra_file(path) for rank, path in enumerate(paths)}
    for key, partners in meetings(files).items():
        expected = len(step.groups[str(key[0])]) if len(key) == 3 and key[0] in step.groups else 2
        assert len(partners) == expected, key
        assert len({values(node)["comm_size"] for _, node in partners}) == 1
    nodes = max(len(file.nodes) for file in files.values())  # each of whole microseconds
    assert simulated_us(files) == pytest.approx(prediction.step.us, abs=0.5 * nodes)


def test_sizes_of_messages_and_collectives() -> None:
    prediction = predict(replace(RUN, zero_stage=0), unit_system())
    files = next(chakra_step(prediction).files())
    communications = [node for node in files[0].nodes if node.type in (NodeType.COMM_SEND, NodeType.COMM_COLL)]
    sizes = Counter((node.type, values(node)["comm_size"]) for node in communications)
    call = RUN.call()
    message_bytes = call.tokens * call.hidden_size * RUN.element_bytes // RUN.layout.tensor_parallel_size
    gradient_bytes = prediction.tasks.stages[0].parameters * RUN.gradient_bytes
    assert sizes[NodeType.COMM_SEND, message_bytes] == RUN.num_micro_batches
    reduced: Counter[str] = Counter()
    for node in communications:
        told = values(node)
        if told.get("comm_type") == CollectiveType.ALL_REDUCE:
            reduced[str(told["pg_name"])] += int(str(told["comm_size"]))
    embedding_bytes = RUN.model.embedding_parameters(RUN.layout.tensor_parallel_size) * RUN.gradient_bytes
    # Group 1 is the first stage's replicas; 3, behind the groups of two stages, shares the first replica's embedding.
    assert reduced == {"1": pytest.approx(gradient_bytes, abs=8), "3": embedding_bytes}


def test_a_reduce_scatter_takes_all_gradients_and_an_all_gather_a_shard() -> None:
    run = replace(RUN, zero_stage=1, gradient_reduction="reduce_scatter", layout=Layout(1, 2, 4, gpus_per_node=4))
    prediction = predict(run, unit_system())
    step = chakra_step(prediction)
    works = [step.replica(number).work for number in range(step.replicas)]
    work = [does for each in works for does in each.values() if isinstance(does, Communication)]
    totals: Counter[str] = Counter()
    for does in work:
        totals[does.kind] += does.size_bytes
    parameters = sum(stage.parameters for stage in prediction.tasks.stages)
    assert totals["reduce_scatter"] == pytest.approx(4 * parameters * run.gradient_bytes, rel=1e-6)
    assert totals["all_gather"] == pytest.approx(parameters * run.element_bytes, rel=1e-6)


def test_sizes_do_not_depend_on_how_a_node_is_wired() -> None:
    def sizes(switched_as: int | None) -> list[Communication]:
        run = replace(RUN, zero_stage=0, layout=Layout(1, 2, 2, gpus_per_node=8, switched_as=switched_as))
        step = chakra_step(predict(run, unit_system()))
        return [does for does in step.replica(1).work.values() if isinstance(does, Communication)]

    for wired, switched in zip(sizes(None), sizes(8), strict=True):
        assert (wired.kind, wired.group, wired.peer) == (switched.kind, switched.group, switched.peer)
        assert wired.size_bytes == pytest.approx(switched.size_bytes, rel=1e-4)


def test_slots_have_the_flops_of_their_pass() -> None:
    def flops(schedule: str) -> Counter[str]:
        step = chakra_step(predict(replace(RUN, schedule=schedule, blocking_transfers=False), unit_system()))
        total: Counter[str] = Counter()
        for position, does in step.work.items():
            if isinstance(does, Computation):
                assert does.flops > 0
                total[str(step.graph[position].details["pass"])] += does.flops
        return total

    whole, split = flops("1f1b"), flops("zero_bubble_h1")
    assert set(split) == {"forward", "backward", "weight gradient"}
    assert split["forward"] == whole["forward"] > split["weight gradient"]
    assert split["backward"] + split["weight gradient"] == pytest.approx(whole["backward"], rel=1e-9)
    assert 2.0 < whole["backward"] / whole["forward"] < 3.0  # layers are recomputed, the output projection is not
