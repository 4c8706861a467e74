from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fitting import gate as gates
from fitting.gate import gate, link_floor_us
from fitting.tables import Row
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.dropped import NOISE, OUTLIER
from predictor.core.costs.operator import Direction
from tests.unit.fitting_tables import SMS, US_PER_BYTE, source

SYSTEM = source().hardware
SWITCHED = SYSTEM.model_copy(update={"links": SYSTEM.links.model_copy(update={"wiring": "switch"})})


def gelu_rows() -> list[Row]:
    """Sixty rows that stream 1 TB/s, half the peak."""
    operator = catalogue()["gelu"]
    rows = []
    for tokens in range(4096, 19456, 512):
        for width in (8192, 16384):
            us = operator.work((tokens, width), Direction.FORWARD, SMS).size_bytes * US_PER_BYTE
            rows.append(Row(operator, "gelu", Direction.FORWARD, (tokens, width), us, other_us=1.5 * us))
    return rows


def gather_rows(scatter: float = 0.0) -> list[Row]:
    noise = np.random.default_rng(0).normal(0.0, scatter, 100) if scatter else np.zeros(100)
    return [
        Row(
            COLLECTIVES["all_gather"],
            "allgather_large",
            Direction.FORWARD,
            (size, 2, 1),
            size * 1e-4 * float(np.exp(noise[i])),
        )
        for i, size in enumerate(range(10**7, 10**9, 10**7 - 10**5))
    ]


def test_rows_of_another_kernel_than_most_are_dropped_and_named() -> None:
    rows = [replace(row, kernel="flash" if i % 3 else "memory-efficient") for i, row in enumerate(gelu_rows())]
    found = gate(rows, SYSTEM, "fp16")
    assert {row.kernel for row in found.kept} == {"flash"}
    assert dict(found.columns["gelu forward"].dropped) == {
        "another kernel than most rows of the operator: memory-efficient": 20
    }


def test_clean_rows_are_all_kept() -> None:
    found = gate(gelu_rows(), SYSTEM, "fp16")
    assert len(found.kept) == 60
    assert not found.columns["gelu forward"].dropped


@pytest.mark.parametrize(
    ("us", "other_us", "reason"),
    [
        (0.0, None, gates.NOT_POSITIVE),
        (float("nan"), None, gates.NOT_POSITIVE),
        (1.0, None, gates.BEATS_MEMORY),
        (500.0, 500.5, gates.REPEATED),
        (10_000.0, None, OUTLIER),
    ],
)
def test_one_bad_row_is_dropped_for_its_reason(us: float, other_us: float | None, reason: str) -> None:
    rows = gelu_rows()
    rows[30] = replace(rows[30], us=us, other_us=other_us)
    found = gate(rows, SYSTEM, "fp16")
    assert found.columns["gelu forward"].dropped == {reason: 1}
    assert rows[30] not in found.kept
    assert len(found.kept) == 59


@pytest.mark.parametrize(
    ("name", "shape", "apart", "kept"),
    [
        ("embedding", (16384, 3144, 4096), 0.015, False),  # the same bytes both ways, but a second kernel backward
        ("embedding", (16384, 3144, 4096), 0.03, True),
        ("gelu", (16384, 8192), 0.015, True),
        ("gelu", (16384, 8192), 0.004, False),
        ("attention_scores", (32, 2048, 128, 2048), 0.015, True),  # products may be better at one of their shapes
    ],
)
def test_one_number_for_both_directions_is_dropped(name: str, shape: tuple[int, ...], apart: float, kept: bool) -> None:
    row = Row(catalogue()[name], name, Direction.FORWARD, shape, 800.0, other_us=800.0 * (1.0 + apart))
    found = gate([row], SYSTEM, "fp16")
    assert bool(found.kept) is kept
    assert kept or found.columns[f"{name} forward"].dropped == {gates.REPEATED: 1}


def mask_rows(longest: int) -> list[Row]:
    """Rows of a masked fill that streams a quarter of the peak, up to tensors of twice and four times 2³¹ bytes."""
    operator = catalogue()["attention_mask"]
    shapes = [(batch, length) for batch in (16, 32, 64, 128, 256) for length in range(1024, longest, 256)]
    sizes = [operator.work(shape, Direction.FORWARD, SMS).size_bytes for shape in shapes]
    return [
        Row(operator, "fillmask", Direction.FORWARD, shape, 5.0 + size_bytes * 2.0 * US_PER_BYTE)
        for shape, size_bytes in zip(shapes, sizes, strict=True)
    ]


def test_one_launch_of_a_call_that_takes_several_is_dropped() -> None:
    rows, large = [], 0
    for row in mask_rows(4096):
        tensor_bytes = 2 * row.shape[0] * row.shape[1] ** 2
        launches = 1
        while tensor_bytes > launches * 2**31:
            launches *= 2
        large += launches > 1
        rows.append(replace(row, us=row.us / launches))
    found = gate(rows, SYSTEM, "fp16")
    assert large > 10
    assert found.columns["fillmask forward"].dropped == {gates.PART: large}
    assert len(gate(mask_rows(4096), SYSTEM, "fp16").kept) == len(rows)


def roofline_rows() -> list[Row]:
    """GEMMs as fast as the peaks allow; memory bounds the four of them whose k is small."""
    operator, gpu = catalogue()["ffn_up"], SYSTEM.gpu
    shapes = [(m, k, 4096) for m in range(2048, 18432, 1024) for k in (1024, 2048, 4096, 6144, 8192)]
    rows = []
    for shape in [*((m, 64, 4096) for m in (4096, 8192, 12288, 16384)), *shapes]:
        work = operator.work(shape, Direction.FORWARD, SMS)
        flops_us = work.flops / (gpu.peak_tflop_per_s["fp16"].value * 1e6)
        us = max(flops_us, work.size_bytes / (gpu.memory_bandwidth_gb_per_s.value * 1e3)) / 0.95
        rows.append(Row(operator, "linear3", Direction.FORWARD, shape, us))
    return rows


def test_rows_as_fast_as_can_be_do_not_disagree_with_their_neighbours() -> None:
    rows = roofline_rows()
    assert len(gate(rows, SYSTEM, "fp16").kept) == len(rows)
    rows[0] = replace(rows[0], us=rows[0].us * 3.0)
    assert gate(rows, SYSTEM, "fp16").columns["linear3 forward"].dropped == {OUTLIER: 1}


def test_a_gemm_faster_than_the_peak_is_dropped() -> None:
    operator = catalogue()["ffn_up"]
    rows = [Row(operator, "linear3", Direction.FORWARD, (4096, 4096, 4096), us) for us in (1000.0, 1001.0, 1002.0, 1.0)]
    assert gate(rows, SYSTEM, "fp16").columns["linear3 forward"].dropped == {gates.BEATS_FLOPS: 1}


def test_residual_add_may_take_equal_time_both_ways() -> None:
    operator = catalogue()["residual_add"]
    shape = (8192, 8192)
    rows = [Row(operator, "res_add", Direction.BACKWARD, shape, 400.0, other_us=400.0) for _ in range(3)]
    assert len(gate(rows, SYSTEM, "fp16").kept) == 3


def test_a_column_that_mostly_beats_a_peak_is_not_a_measurement() -> None:
    rows = [replace(row, us=1.0, other_us=None) if i % 2 else row for i, row in enumerate(gelu_rows())]
    found = gate(rows, SYSTEM, "fp16")
    assert not found.kept
    assert found.columns["gelu forward"].dropped == {gates.BEATS_MEMORY: 30, gates.NOT_A_MEASUREMENT: 30}


def test_a_transfer_faster_than_the_links_is_dropped() -> None:
    rows = gather_rows()
    rows[50] = replace(rows[50], us=rows[50].shape[0] * 1e-5)  # 100 GB/s over a link of 25
    assert gate(rows, SYSTEM, "fp16").columns["allgather_large 2x1"].dropped == {gates.BEATS_LINK: 1}


def test_links_inside_a_node_are_shared_among_peers() -> None:
    row = Row(COLLECTIVES["point_to_point"], "p2p", Direction.FORWARD, (10**9, 1, 2), 0.0)
    assert gates.link_floor_us(row, SYSTEM.links, SYSTEM.gpus_per_node) == pytest.approx(1e4)  # 300 / 3 GB/s


def test_a_scattered_transfer_is_noise() -> None:
    found = gate(gather_rows(scatter=0.3), SYSTEM, "fp16")
    assert not found.kept
    assert NOISE.format(limit="10 %") in found.columns["allgather_large 2x1"].dropped


def test_every_row_is_counted_once() -> None:
    rows = [replace(row, us=1.0) if i % 5 == 0 else row for i, row in enumerate(gelu_rows())]
    column = gate(rows, SYSTEM, "fp16").columns["gelu forward"]
    assert column.rows == column.kept + sum(column.dropped.values()) == 60


def test_behind_a_switch_a_pair_drives_all_links_of_a_gpu() -> None:
    links = SWITCHED.links
    for name, size_bytes, gpus, least_bytes in (
        ("all_gather", 2**20, 2, 2**20),
        ("all_gather", 2**20, 8, 7 * 2**20),
        ("all_reduce", 2**20, 8, 2**20),  # the switch may add up
        ("all_to_all", 2**20, 4, 2**20 * 3 / 4),
    ):
        row = Row(COLLECTIVES[name], name, Direction.FORWARD, (size_bytes, 1, gpus), 1.0)
        least_us = least_bytes / (links.intra_node_gb_per_s.value * 1e3)
        assert link_floor_us(row, links, 8) == pytest.approx(least_us), name
