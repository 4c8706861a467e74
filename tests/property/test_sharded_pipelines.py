"""Sharded data parallelism in pipelines: more work, slower links and less power never make a step faster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.predict.prediction import predict

MODEL = {
    "num_layers": 8,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "sequence_length": 2048,
    "ffn_hidden_size": 8192,
    "activation": "swiglu",
    "vocab_size": 32000,
}
# Beside slower traffic kernels keep more of the memory's bandwidth, which shortens a step by less than this.
ROUNDING = 1e-3
SLOWER: dict[str, dict[str, Any]] = {
    "links in a node": {"intra_node_gb_per_s": 10.0},
    "links between nodes": {"inter_node_gb_per_s": 1.0},
    "oversubscribed": {"network_oversubscription": 4.0},
    "power": {"power_limit_w": 250.0},
    "ranks that differ": {"rank_spread": 0.1},
}


@st.composite
def sharded_pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run with sharded states on 2 stages or more."""
    ranks = draw(st.sampled_from([2, 8, 32]))
    return {
        "system": draw(st.sampled_from(["H100", "A100_SXM", "B200", "Perlmutter"])),
        "model": MODEL,
        "parallelism": {
            "pipeline_parallel_size": draw(st.sampled_from([2, 4])),
            "data_parallel_size": ranks,
            "zero_stage": draw(st.sampled_from([1, 2, 3, 3])),
            "zero_group_size": draw(st.sampled_from([1, 2, ranks])),
            "schedule": draw(st.sampled_from(["1f1b", "zero_bubble_h1", "all_forward_all_backward"])),
            "reshard_after_forward": draw(st.booleans()),
            "overlap_gradient_reduction": draw(st.booleans()),
            "overlap_parameter_gather": draw(st.booleans()),
            "prefetch_units": draw(st.sampled_from([0, 1])),
            "fp32_gradients": draw(st.booleans()),
            "fp32_parameters": draw(st.booleans()),
        },
        "training": {
            "micro_batch_size": draw(st.sampled_from([1, 4])),
            "num_micro_batches": draw(st.sampled_from([4, 8])),
            "precision": "bf16",
            "recompute": draw(st.sampled_from(["none", "full"])),
        },
        "cluster": {},
    }


def step_us(config: dict[str, Any], **changes: dict[str, Any]) -> float:
    """Return the predicted time of a step whose sections have other values."""
    return predict({**config, **{name: {**config[name], **change} for name, change in changes.items()}}).step.us


@given(sharded_pipelines())
@settings(max_examples=30, deadline=None)
def test_more_micro_batches_are_never_faster(config: dict[str, Any]) -> None:
    count = config["training"]["num_micro_batches"]
    twice = step_us(config, training={"num_micro_batches": 2 * count})
    assert twice > step_us(config)


@given(sharded_pipelines(), st.sampled_from(sorted(SLOWER)))
@settings(max_examples=40, deadline=None)
def test_a_slower_cluster_is_never_faster(config: dict[str, Any], slower: str) -> None:
    assert step_us(config, cluster=SLOWER[slower]) >= step_us(config) * (1 - ROUNDING)


@given(sharded_pipelines())
@settings(max_examples=30, deadline=None)
def test_fused_accumulation_is_never_slower(config: dict[str, Any]) -> None:
    fused = step_us(config, training={"fused_gradient_accumulation": True})
    assert fused <= step_us(config) * (1 + 1e-9)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_group_of_one_rank_shards_nothing(stage: int) -> None:
    layout = {"pipeline_parallel_size": 2, "data_parallel_size": 8, "overlap_parameter_gather": True}
    training = {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16"}
    plain = {"system": "H100", "model": MODEL, "parallelism": layout, "training": training}
    unshared = step_us(plain, parallelism={"zero_stage": 0})
    assert step_us(plain, parallelism={"zero_stage": stage, "zero_group_size": 1}) == unshared


def test_one_gather_per_step_hides_behind_one_forward_pass() -> None:
    """Overlapping the single gather and scatter saves the same time, whatever the number of micro-batches."""
    config = {
        "system": "H100",
        "model": MODEL,
        "parallelism": {
            "pipeline_parallel_size": 2,
            "data_parallel_size": 64,
            "zero_stage": 3,
            "reshard_after_forward": False,
        },
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16"},
        "cluster": {"inter_node_gb_per_s": 5.0},
    }
    saved = []
    for count in (2, 16):
        training = {"num_micro_batches": count}
        alone, beside = (
            step_us(
                config,
                training=training,
                parallelism={"overlap_gradient_reduction": overlaps, "overlap_parameter_gather": overlaps},
            )
            for overlaps in (False, True)
        )
        saved.append(alone - beside)
    assert saved[0] > 0
    assert saved[1] == pytest.approx(saved[0], rel=0.01)


@pytest.mark.parametrize(("stage", "micro_batches"), [(0, 1), (3, 8)], ids=["launches", "traffic"])
def test_a_split_backward_pass_hides_nothing_behind_the_gradients_of_weights(stage: int, micro_batches: int) -> None:
    """Their slots come later: what makes the device wait, launches or traffic, does not get shorter with them."""
    config = {
        "system": "H100",
        "model": {**MODEL, "sequence_length": 512},
        "parallelism": {
            "pipeline_parallel_size": 4,
            "data_parallel_size": 8,
            "zero_stage": stage,
            "schedule": "zero_bubble_h1",
            "overlap_gradient_reduction": True,
            "overlap_parameter_gather": True,
        },
        "training": {"micro_batch_size": 1, "num_micro_batches": micro_batches, "precision": "bf16"},
        "cluster": {},
    }
    slower = [{"power_limit_w": 250.0}, {"rank_spread": 0.1}]
    links = {"inter_node_gb_per_s": 2.0}
    assert all(step_us(config, cluster=links | change) > step_us(config, cluster=links) for change in slower)
