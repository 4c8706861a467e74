"""Experts compute the choices that fall on their rank; latent attention is attention with wide keys."""

from __future__ import annotations

import pytest

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.expert_load import busiest_rank_load
from predictor.core.costs.operator import Direction
from predictor.core.costs.work import FP8_PRECISIONS

EXPERTS, MLA = catalogue()["expert_mlp"], catalogue()["mla_attention"]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
TOKENS, HIDDEN, INNER, TOP_K, NUM = 4096, 1024, 512, 2, 16


def shape(held: int = NUM, load: int = 0, gated: int = 1) -> tuple[int, ...]:
    return TOKENS, HIDDEN, INNER, TOP_K, NUM, held, load, gated


def test_balanced_experts_take_three_products_per_choice_and_two_without_a_gate() -> None:
    gated, plain = (EXPERTS.work(shape(gated=gate), FORWARD, 108).flops for gate in (1, 0))
    assert gated == 3 * 2 * TOKENS * TOP_K * HIDDEN * INNER
    assert plain == gated * 2 / 3
    assert EXPERTS.work(shape(), BACKWARD, 108).flops == 2 * gated


def test_a_rank_computes_its_share_and_the_busiest_of_uneven_ones_more() -> None:
    whole, quarter, busiest = (EXPERTS.work(shape(*case), FORWARD, 108).flops for case in ((16, 0), (4, 0), (4, 120)))
    assert quarter == pytest.approx(whole / 4)
    assert quarter < busiest < whole
    assert EXPERTS.work(shape(16, 120), FORWARD, 108).flops == pytest.approx(whole), "all experts: no rank is busier"


@pytest.mark.parametrize("exponent", [0, 101, 120])
def test_loads_are_shares_largest_first_and_the_same_every_time(exponent: int) -> None:
    load = busiest_rank_load(TOKENS, NUM, 4, exponent)
    assert load == busiest_rank_load(TOKENS, NUM, 4, exponent)
    assert sum(load.shares) == pytest.approx(load.share)
    assert list(load.shares) == sorted(load.shares, reverse=True)
    assert busiest_rank_load(TOKENS, NUM, NUM, exponent).share == pytest.approx(1.0)


def test_blocks_of_rows_are_never_fewer_than_the_rows() -> None:
    for case in (shape(), shape(4, 101), shape(1, 120)):
        work = EXPERTS.work(case, FORWARD, 132)
        small, large, waves, *_ = work.extras
        assert work.flops <= small * (1 + 1e-9) <= large * (1 + 1e-9) <= waves * (1 + 1e-9)


def test_experts_stand_on_one_product_of_the_same_flops() -> None:
    assert EXPERTS.stand_in is not None
    donor = EXPERTS.stand_in(shape(8), FORWARD, 108)
    product = catalogue()[donor.operator].work(donor.shape, FORWARD, 108).flops * donor.times
    assert product == pytest.approx(EXPERTS.work(shape(8), FORWARD, 108).flops)


def test_tables_have_experts_in_eight_bits_though_microbench_does_not_run_them() -> None:
    assert set(FP8_PRECISIONS) <= set(EXPERTS.tabled_in)
    assert not set(FP8_PRECISIONS) & set(EXPERTS.precisions)


def test_latent_attention_is_causal_attention_of_the_mean_width() -> None:
    assert MLA.stand_in is not None
    donor = MLA.stand_in((2, 4096, 16), FORWARD, 108)
    for direction in (FORWARD, BACKWARD):
        flash = catalogue()["flash_attention"].work(donor.shape, direction, 108)
        assert MLA.work((2, 4096, 16), direction, 108).flops == pytest.approx(flash.flops)
