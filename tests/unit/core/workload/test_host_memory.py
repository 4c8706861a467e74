"""Host memory: what offloading takes of a node's, and whether the node has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.hardware.hardware import Quantity
from predictor.core.hardware.host_memory import host_memory_gib
from predictor.core.plan.loading import prepare
from predictor.core.report.json_document import host_memory_notes
from predictor.core.step.host_memory import node_host_bytes
from predictor.core.step.memory import GIB
from tests.unit.core.workload.test_offload import H100, RUN, predicted


def test_host_memory_holds_states_weights_and_activations_of_a_node() -> None:
    sharded: dict[str, Any] = {"data_parallel_size": 8, "zero_stage": 3}
    held: dict[str, Any] = {"offload_optimizer": 1.0, "offload_parameters": True, "framework": "deepspeed"}
    states = predicted(sharded, **held)
    parameters = states.run.model.num_parameters()
    assert node_host_bytes(states.tasks, states.run) == pytest.approx(18 * parameters, rel=1e-3)
    activations = predicted(sharded, **held, recompute="full", offload_activations=True)
    inputs = 8 * 16 * activations.run.micro_batch_size * 4096 * 2048 * 2  # of 16 layers, on eight GPUs
    assert node_host_bytes(activations.tasks, activations.run) == pytest.approx(18 * parameters + inputs, rel=1e-3)


@pytest.mark.parametrize(("share", "said"), [(0.9, "Does not fit into"), (1.2, "May not fit into"), (2.0, "")])
def test_a_note_says_where_host_memory_is_too_small(share: float, said: str) -> None:
    run = predicted({"data_parallel_size": 8, "zero_stage": 3}, offload_optimizer=1.0, framework="deepspeed")
    capacity = Quantity(value=share * node_host_bytes(run.tasks, run.run) / GIB, source="told")
    notes = host_memory_notes(run.tasks, run.run, H100.model_copy(update={"host_memory_gib": capacity}))
    assert " ".join(notes).partition(" host memory")[0] == said


def test_nothing_is_said_of_host_memory_where_all_is_on_the_gpu() -> None:
    run = predicted({"data_parallel_size": 8})
    assert host_memory_notes(run.tasks, run.run, H100) == []


def test_a_cluster_says_its_host_memory() -> None:
    loaded = prepare({**RUN, "cluster": {"host_memory_gib": 512}}, Path.cwd())
    found = host_memory_gib(loaded.system.hardware)
    assert found is not None
    assert found.value == 512
