"""Whole steps and their parts against measured runs, with the tolerances that the project set itself."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import pytest

from tests.accuracy.compare import compare, components, fastest
from tests.accuracy.truth import measured_components, measured_steps

pytestmark = pytest.mark.usefixtures("truth")

JOB_TOLERANCE = 0.05
SINGLE_NODE_MAPE = 0.09
# Of one layer's pass: the part of a step that repeats most, so that errors of parts cannot cancel out.
LAYER_TOLERANCE = 0.05


def test_gpt_neox_jobs_are_within_five_percent_of_their_fastest_batch(truth: Path) -> None:
    jobs = [compare(step) for step in fastest(step for step in measured_steps() if step.group == "gpumodeling25")]
    assert jobs
    errors = {job.step.job: f"{job.error:+.1%}" for job in jobs}
    assert all(abs(job.error) <= JOB_TOLERANCE for job in jobs), errors
    assert all(job.inside for job in jobs), errors


def test_single_node_rows_of_up_to_four_gpus(truth: Path) -> None:
    rows = [compare(step) for step in measured_steps() if step.group == "vtrain_single" and step.num_gpus <= 4]
    assert rows
    assert mean(abs(row.error) for row in rows) <= SINGLE_NODE_MAPE
    assert mean(row.inside for row in rows) >= 0.85


@pytest.mark.parametrize("part", ["encoder_fwd", "encoder_bwd"])
def test_one_layer_is_right_and_not_only_the_sum(truth: Path, part: str) -> None:
    jobs = {step.job: compare(step) for step in fastest(measured_steps())}
    for measured in measured_components():
        if measured.name == part and measured.job in jobs:
            predicted = components(jobs[measured.job].prediction)[part][0]
            assert predicted == pytest.approx(median(measured.microseconds), rel=LAYER_TOLERANCE), measured.job
