"""Softmax over long rows: PyTorch reads the end of a row element by element where its block does not divide it."""

from __future__ import annotations

import pytest

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction
from predictor.core.costs.operators.softmax import tail
from predictor.core.predict.system import load_system


@pytest.mark.parametrize(("sequence", "left"), [(512, 0), (1024, 0), (1536, 512), (4608, 512), (6144, 2048), (8192, 0)])
def test_a_row_ends_in_what_whole_blocks_leave(sequence: int, left: int) -> None:
    assert tail(sequence) == left
    for direction in Direction:
        work = catalogue()["softmax"].work((4, sequence), direction, 108)
        assert work.extras[-1] == work.size_bytes * left / sequence


def test_rows_longer_than_measured_have_their_tails() -> None:
    softmax = load_system("Perlmutter", precision="fp16")
    per_score = {
        length: softmax.cost("softmax", (256, length)).us / length**2 for length in (3584, 4096, 4608, 5120, 8192)
    }
    assert per_score[8192] == pytest.approx(per_score[4096], rel=0.05)
    assert per_score[5120] > 1.1 * per_score[4096]
    assert per_score[4608] > 1.05 * per_score[4096]
