"""A configuration's cluster: numbers of one's own, NVLink domains over nodes, and groups that straddle them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import Loaded, prepare
from predictor.core.report.json_document import straddling_notes
from predictor.core.workload.layout import Layout

MODEL = {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048}


def loaded(system: str = "H100", cluster: dict[str, Any] | None = None, **parallelism: Any) -> Loaded:
    content = {
        "system": system,
        "model": MODEL,
        "parallelism": parallelism,
        "training": {"micro_batch_size": 1, "num_micro_batches": 1, "precision": "bf16"},
    }
    return prepare(content | ({"cluster": cluster} if cluster else {}), Path.cwd())


@pytest.mark.parametrize(
    ("key", "section", "value"),
    [
        ("memory_bandwidth_gb_per_s", "gpu", 1000.0),
        ("memory_gib", "gpu", 40.0),
        ("power_limit_w", "gpu", 500.0),
        ("intra_node_gb_per_s", "links", 100.0),
        ("inter_node_gb_per_s", "links", 12.5),
    ],
)
def test_a_number_of_the_cluster_replaces_the_systems_and_says_so(key: str, section: str, value: float) -> None:
    quantity = getattr(getattr(loaded(cluster={key: value}).system.hardware, section), key)
    assert quantity.value == value
    assert quantity.source == f"the configuration, cluster.{key}"


def test_a_cluster_as_published_keeps_the_system() -> None:
    assert loaded(cluster={"network_oversubscription": 1.0}).system is loaded().system


def test_an_oversubscribed_network_divides_the_bandwidth_between_nodes_only() -> None:
    before, after = (
        loaded(cluster=cluster).system.hardware.links for cluster in (None, {"network_oversubscription": 4})
    )
    assert after.inter_node_gb_per_s.value == before.inter_node_gb_per_s.value / 4
    assert after.intra_node_gb_per_s == before.intra_node_gb_per_s


def test_a_slower_network_slows_traffic_between_nodes() -> None:
    fast, slow = (loaded(cluster=cluster, data_parallel_size=16) for cluster in (None, {"inter_node_gb_per_s": 5}))
    group = fast.run.layout.gradient_group()
    assert group.nodes == 2
    assert slow.system.collective("all_reduce", 1e9, group).us > 2 * fast.system.collective("all_reduce", 1e9, group).us


def test_a_domain_over_nodes_keeps_its_groups_inside() -> None:
    on_nodes = loaded(tensor_parallel_size=16, data_parallel_size=4, sequence_parallel=True).run.layout
    on_domain = loaded(
        cluster={"gpus_per_domain": 72}, tensor_parallel_size=16, data_parallel_size=4, sequence_parallel=True
    ).run.layout
    assert (on_nodes.tensor_group().nodes, on_domain.tensor_group().nodes) == (2, 1)
    assert on_domain.gradient_group().nodes == 1  # 64 GPUs of one domain


@pytest.mark.parametrize(
    ("layout", "reach"),
    [
        (Layout(8, 1, 32, gpus_per_node=4, gpus_per_domain=72), 64),  # 256 GPUs in blocks of 64
        (Layout(8, 1, 18, gpus_per_node=4, gpus_per_domain=72), 72),  # 144 GPUs fill two domains
        (Layout(1, 1, 64, gpus_per_node=4, gpus_per_domain=72), 64),  # all in one domain
        (
            Layout(1, 4, 128, gpus_per_node=4, expert_parallel_size=32, gpus_per_domain=72),
            64,
        ),  # two groups of experts a domain
        (Layout(8, 1, 32, gpus_per_node=4), 4),
    ],
)
def test_whole_blocks_of_a_domain_are_used(layout: Layout, reach: int) -> None:
    assert layout.reach == reach
    assert layout.expert_group().nodes == 1


def test_a_group_that_straddles_is_noted() -> None:
    assert straddling_notes(Layout(8, 1, 4, gpus_per_node=8)) == []
    (note,) = straddling_notes(Layout(16, 1, 4, gpus_per_node=8))
    assert "groups of 16 ranks straddle 2 nodes with 8 GPUs each" in note
    (note,) = straddling_notes(Layout(4, 1, 16, gpus_per_node=8, expert_parallel_size=4))
    assert note.startswith("Expert-parallel")
    assert "would fit" in note


def test_more_gpus_of_a_node_than_a_domain_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="gpus_per_node is 80; H100 has 72"):
        loaded(cluster={"gpus_per_domain": 72}, gpus_per_node=80)
