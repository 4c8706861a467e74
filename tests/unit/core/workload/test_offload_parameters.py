"""Weights in host memory: shards that travel before every gather, and where they are updated."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.core.costs.host_adam import GRADIENT_SCALING, TORCH_ADAM
from tests.unit.core.workload.test_offload import copied, memory, predicted

SHARDED = {"zero_stage": 3}
FSDP = {"zero_stage": 3, "fp32_parameters": True, "overlap_parameter_gather": True, "overlap_gradient_reduction": True}
ON_HOST: dict[str, Any] = {"offload_parameters": True, "offload_optimizer": 1.0}


@pytest.mark.parametrize(("layout", "weight_bytes"), [(SHARDED, 2), (FSDP, 4)])
def test_shards_on_the_host_travel_before_every_gather(layout: dict[str, Any], weight_bytes: int) -> None:
    """Forward and backward of layers, forward of the ends, whose weights stay gathered: of 4 ranks a quarter each."""
    found = predicted(layout, recompute="full", framework="pytorch", **ON_HOST)
    kind = found.run.kind(0)
    layers = 16 * found.run.layer_parameters(kind).total
    held = found.run.stage_parameters(0)
    moved = copied(found, "weights_from_host")
    assert moved["forward"] == pytest.approx(weight_bytes * held / 4, rel=1e-4)
    assert moved["recompute"] + moved["backward"] == pytest.approx(weight_bytes * layers / 4, rel=1e-4)
    assert memory(found).weights == memory(found).optimizer == memory(found).gradients == 0.0


def test_gradients_of_fsdp_on_the_host_travel_with_every_micro_batch() -> None:
    found = predicted(FSDP, framework="transformers", **ON_HOST)
    moved = copied(found, "gradients_to_host")
    assert moved["backward"] == pytest.approx(4 * found.run.stage_parameters(0) / 4, rel=1e-4)
    names = [task.name for task in found.tasks.stages[0].end.calls()]
    assert names == [GRADIENT_SCALING.name, TORCH_ADAM.name]  # where weights and gradients are


def test_weights_that_the_gpu_updates_travel_back_to_the_host() -> None:
    found = predicted(SHARDED, framework="deepspeed", offload_parameters=True)
    tasks = {task.name: task for task in found.tasks.stages[0].end.calls()}
    assert tasks["weights_to_host"].shape[0] == pytest.approx(2 * found.run.stage_parameters(0) / 4, rel=1e-4)
    both = predicted(SHARDED, framework="deepspeed", **ON_HOST).tasks.stages[0].end.calls()
    assert not {task.name for task in both} & {"weights_to_host", "weights_from_host"}


def test_one_gpu_may_keep_its_weights_on_the_host() -> None:
    alone = {**SHARDED, "data_parallel_size": 1}
    none, some = (predicted(alone, framework="deepspeed", offload_parameters=on) for on in (False, True))
    assert memory(none).weights > 0.0 == memory(some).weights
    assert copied(some, "weights_from_host")["forward"] == 2 * some.run.stage_parameters(0)
    assert some.step.us > none.step.us


def test_a_slower_link_exposes_the_copies_of_weights() -> None:
    beside: dict[str, Any] = {**SHARDED, "overlap_parameter_gather": True}
    keys: dict[str, Any] = {"recompute": "full", "framework": "deepspeed", "pinned_offload": True}
    none, fast, slow = (
        predicted(beside, {"host_gb_per_s": rate}, offload_parameters=on, **keys).modelled_us
        for rate, on in ((63.0, False), (63.0, True), (8.0, True))
    )
    assert none < fast < slow


def test_ranks_of_a_node_share_its_memory() -> None:
    def update_us(gpus: int) -> float:
        found = predicted({"data_parallel_size": gpus}, offload_optimizer=1.0)
        return dict(found.stages[0].update_parts)["update on the host"]

    assert update_us(1) == pytest.approx(update_us(8))  # an eighth of the states at an eighth of the rate
    assert update_us(16) == pytest.approx(update_us(8) / 2)
