"""Memory of published steps: what ran fits, and a known peak is met within 8 % in the mean of a group."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from predictor.base.errors import ConfigError, PublishedError
from predictor.configuration.loading import prepare
from predictor.step.memory import GIB, step_memory
from predictor.verification.published.tables import published_tables
from predictor.workloads.transformer_step import transformer_step

pytestmark = pytest.mark.usefixtures("truth")

PEAK_ERROR = 0.08
# Steps that ran and do not fit by prediction, and what is known about them.
UNFIT = {
    "mlperf50_llama31_405b-0013": "a little above 141 GiB: what fp8 weights take beside 16-bit ones is assumed",
    "dgxc_recent-0047": "the document does not say what Nemotron-4 340B recomputes; without, 84 GiB are needed of 80",
}
# Groups that miss the bar, and what is known about them.
MISSED = {
    "BLOOM, preparatory runs": "its last rows accumulated in fp32 (DeepSpeed's BF16_Optimizer); no column says so",
    "Vocabulary-parallel fork, A100": "no column says in which precision gradients are accumulated; the logits of "
    "256,000 tokens took 16 GiB on the last stage, four times what the fork's loss keeps",
}


class Fullest(NamedTuple):
    """GiB of the fullest GPU of a published step.

    Attributes:
        limit: of the GPU; None where it is not known.
        peak: measured; None where it was not.
    """

    name: str
    groups: tuple[str, ...]
    predicted: float
    limit: float | None
    peak: float | None


@cache
def fullest_gpus(folder: Path) -> tuple[Fullest, ...]:
    rows = []
    for step in published_tables(folder).steps:
        try:
            loaded = prepare(dict(step.config), Path.cwd())
        except (ConfigError, PublishedError):
            continue  # the report counts these by reason
        fullest = max(stage.total for stage in step_memory(transformer_step(loaded.run))) / GIB
        limit = loaded.system.hardware.gpu.memory_gib
        rows.append(Fullest(step.name, tuple(step.groups), fullest, limit.value if limit else None, step.peak_gib))
    return tuple(rows)


def test_every_published_step_fits(truth: Path) -> None:
    rows = fullest_gpus(truth)
    assert rows
    unfit = {row.name: row.predicted for row in rows if row.limit is not None and row.predicted > row.limit}
    assert set(unfit) == set(UNFIT), unfit


def test_peaks_are_met_in_the_mean_of_each_group(truth: Path) -> None:
    errors = defaultdict(list)
    for row in fullest_gpus(truth):
        if row.peak is not None:
            for group in row.groups:
                errors[group].append(abs(row.predicted / row.peak - 1.0))
    assert errors
    means = {group: fmean(each) for group, each in errors.items()}
    missed = {group: mean for group, mean in means.items() if mean > PEAK_ERROR}
    assert set(missed) == set(MISSED), missed
