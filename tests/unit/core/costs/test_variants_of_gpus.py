"""Systems that are like another: its kernels, scaled by the numbers that differ, and nothing copied."""

from __future__ import annotations

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.cost import Source
from predictor.core.costs.hardware_change import changed
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import (
    PublishedSystem,
    measured_precisions,
    open_system,
    read_hardware,
    read_manifest,
)

FORWARD = Direction.FORWARD
FFN_UP, ADD = catalogue()["ffn_up"], catalogue()["residual_add"]
PRODUCT, STREAM = (8192, 8192, 8192), (8192, 8192)
VARIANTS = sorted(
    path.parent.name
    for path in REGRESSORS_FOLDER.glob("*/system.yaml")
    if read_hardware(path.parent, read_manifest(path.parent)).like is not None
)


def opened(name: str) -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / name, "bf16")


def test_there_are_variants() -> None:
    assert {"H100_HBM2e", "H100_PCIe", "H800", "H20", "A800", "A100_40", "RTX_4090", "RTX_6000_Ada"} == set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_holds_numbers_alone_and_answers_as_its_base(name: str) -> None:
    folder = REGRESSORS_FOLDER / name
    assert set(read_manifest(folder)) == {"system.yaml", "card.md"}
    system = opened(name)
    like = system.hardware.like
    assert like is not None
    base = opened(like)
    assert set(measured_precisions(folder)) <= set(measured_precisions(REGRESSORS_FOLDER / like))
    for operator in catalogue().values():
        assert system.measured(operator) == base.measured(operator), operator.name
    card = (folder / "card.md").read_text(encoding="utf-8")
    for quantity in (system.hardware.gpu.memory_bandwidth_gb_per_s, system.hardware.links.intra_node_gb_per_s):
        assert quantity.source in card


def test_kernels_of_the_same_chip_are_the_bases_own() -> None:
    h100, h800 = opened("H100"), opened("H800")
    assert h800.cost(FFN_UP, FORWARD, PRODUCT) == h100.cost(FFN_UP, FORWARD, PRODUCT)
    assert h800.has_own_operators
    assert h800.operator_donor() is None
    inside = Topology(1, 8)
    assert h800.collective("all_reduce", 1e8, inside).us > 2.0 * h100.collective("all_reduce", 1e8, inside).us


def test_a_variant_is_its_base_with_changed_numbers() -> None:
    other = {"memory_gib": 95.0, "memory_bandwidth_gb_per_s": 2400.0}
    stream = opened("H100_HBM2e").cost(ADD, FORWARD, STREAM)
    assert stream.us == pytest.approx(changed(opened("H100"), other).cost(ADD, FORWARD, STREAM).us)
    assert stream.us == pytest.approx(opened("H100").cost(ADD, FORWARD, STREAM).us * 3350 / 2400, rel=0.05)


def test_another_chip_is_transferred_and_not_taken_for_measured() -> None:
    h20 = opened("H20")
    donor = h20.operator_donor()
    assert donor is not None
    assert donor.name == "H200"
    cost = h20.cost(FFN_UP, FORWARD, PRODUCT)
    assert cost.source is Source.ANALYTIC
    assert cost.us == pytest.approx(opened("H200").cost(FFN_UP, FORWARD, PRODUCT).us * 989.5 / 148, rel=0.2)
