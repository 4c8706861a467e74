"""Whole steps and their parts against measured runs, with the tolerances that the project set itself."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from predictor.evidence.verification.measured import fastest, summary
from tests.accuracy.compare_steps import compare, components
from tests.accuracy.step_tables import measured_components, measured_steps
from tests.accuracy.tolerances import JOB_TOLERANCE, LAYER_TOLERANCE, MOST_GPUS, SINGLE_NODE_COVERAGE, SINGLE_NODE_MAPE

pytestmark = pytest.mark.usefixtures("truth")


def test_gpt_neox_jobs_are_within_five_percent_of_their_fastest_batch(truth: Path) -> None:
    jobs = [compare(step) for step in fastest(step for step in measured_steps(truth) if step.table == "gpumodeling25")]
    assert jobs
    errors = {job.step.name: f"{job.error:+.1%}" for job in jobs}
    assert all(abs(job.error) <= JOB_TOLERANCE for job in jobs), errors
    assert all(job.is_inside for job in jobs), errors


def test_single_node_rows_of_up_to_four_gpus(truth: Path) -> None:
    rows = [
        compare(step) for step in measured_steps(truth) if step.table == "vtrain_single" and step.num_gpus <= MOST_GPUS
    ]
    assert rows
    assert summary(rows).mape <= SINGLE_NODE_MAPE
    assert summary(rows).coverage >= SINGLE_NODE_COVERAGE


@pytest.mark.parametrize("part", ["encoder_fwd", "encoder_bwd"])
def test_one_layer_is_right_and_not_only_the_sum(truth: Path, part: str) -> None:
    jobs = {step.name: compare(step) for step in fastest(measured_steps(truth))}
    for measured in measured_components(truth):
        if measured.name == part and measured.run in jobs:
            predicted = components(jobs[measured.run])[part][0]
            assert predicted == pytest.approx(median(measured.microseconds), rel=LAYER_TOLERANCE), measured.run
