"""The table of the highest published MFUs is that of the tables of published steps."""

from __future__ import annotations

from pathlib import Path

from predictor.core.step.highest_mfu import published_mfus
from predictor.evidence.published.tables import STEPS, read_rows
from tests.accuracy.highest_mfu import converted_mfu, highest


def test_the_stored_table_is_that_of_the_published_steps(truth: Path) -> None:
    assert tuple(highest(truth)) == published_mfus()


def test_the_count_is_that_of_a_source_that_prints_its_own(truth: Path) -> None:
    # llm-foundry prints the MFU of MPT-3b over 512 tokens on 8 A100, attention counted over all keys as here.
    printed = {"llmfoundry-0105": 0.6371, "llmfoundry-0104": 0.6273, "llmfoundry-0097": 0.5801}
    for cells in read_rows(truth / STEPS):
        if cells["id"] in printed:
            row = converted_mfu(cells)
            assert row is not None
            assert abs(row.mfu - printed.pop(cells["id"])) < 2e-3
    assert not printed
