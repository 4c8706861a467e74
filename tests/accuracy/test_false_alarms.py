"""Real runs without known faults raise few alarms, and faults injected into them are found."""

from __future__ import annotations

import random

import pytest

from tests.accuracy.false_alarms import FAULTS, SERIES, Fault, Run, alarms, delay, findings, read

pytestmark = pytest.mark.skipif(not SERIES.is_file(), reason=f"no step series: {SERIES} is absent")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read(SERIES)


def test_one_run_in_twenty_ends_with_an_alarm(runs: list[Run]) -> None:
    alarmed = [run.name for run in runs[::2] if alarms(findings(run))]
    assert len(alarmed) <= len(runs[::2]) / 20, alarmed


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_within_twenty_steps(fault: Fault, runs: list[Run]) -> None:
    draw = random.Random(7)
    chosen = [run for run in runs[::8] if len(run.steps) > 300]
    found = [found for run in chosen if (found := delay(run, fault, draw)) is not None and found <= 20]
    assert len(found) >= 0.8 * len(chosen)
