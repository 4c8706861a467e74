"""Goodput of public histories lies in its interval, and a cluster's trace beside published rates."""

from __future__ import annotations

from math import log
from pathlib import Path
from statistics import fmean, median

import pytest

from predictor.core.base.read_yaml import read_mapping
from predictor.core.reliability.failure_rates import clusters, failure_rates
from predictor.core.reliability.spares import enough_spares
from tests.accuracy import fault_trace
from tests.accuracy.goodput import FILE as HISTORIES
from tests.accuracy.goodput import compared, histories, table

# Outside its interval with the cause that docs/accuracy.md gives; whoever comes inside is taken from here.
OUTSIDE = {"OPT-175B"}


def test_histories_lie_in_their_intervals_and_none_follows_from_itself() -> None:
    rows = histories()
    assert {row.name for row in rows if not row.is_inside} == OUTSIDE
    assert median(abs(row.error) for row in rows) < 0.04
    assert fmean(abs(row.error) for row in rows) < 0.10
    names = {cluster.name for cluster in clusters()}
    facts = read_mapping(HISTORIES)
    assert all(set(each["without"]) <= names for each in facts.values())
    # A history whose counts are among the clusters leaves them out.
    assert all(name in each["without"] for name, each in facts.items() if name in names)


def test_intervals_are_not_all_of_the_time() -> None:
    rows = histories()
    assert median(row.high - row.low for row in rows) < 0.35
    assert all(row.high - row.low < 0.75 for row in rows)


def test_a_slower_recovery_is_seen() -> None:
    facts = read_mapping(HISTORIES)["GLM-65B, automatic restarts"]
    by_hand = compared("", facts | {"budget": facts["budget"] | {"recovery": "manual"}})
    assert by_hand.predicted < compared("", facts).predicted - 0.02


def test_the_document_has_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    found = table(histories())
    assert found.rows[-1][-1] == str(len(found.rows) - 1 - len(OUTSIDE))
    assert "\n".join(found.markdown()) in text


needs_trace = pytest.mark.skipif(not fault_trace.FILE.is_file(), reason=f"no faults: {fault_trace.FILE} is absent")


@needs_trace
def test_the_rate_of_a_cluster_that_was_left_out_is_that_of_others() -> None:
    published = failure_rates("hopper")
    assert (
        abs(log(fault_trace.per_gpu_hour(fault_trace.faults()) / published.per_gpu_hour))
        < 0.5 * log(published.spread.factor(0.95)) / 1.645
    )


@needs_trace
def test_nine_of_ten_windows_of_other_servers_are_covered() -> None:
    found = fault_trace.faults()
    assert 0.85 <= fault_trace.coverage(found) <= 0.95
    assert fault_trace.coverage(found, scatter=0.0) < 0.75


@needs_trace
def test_repairs_and_spares_are_those_of_the_trace() -> None:
    found = fault_trace.faults()
    assert fault_trace.mean_repair_hours(found) == pytest.approx(118, abs=1)
    load = fault_trace.per_gpu_hour(found) * fault_trace.SERVERS * fault_trace.GPUS_PER_SERVER * 118
    assert (
        fault_trace.share_beyond(found, enough_spares([load], fault_trace.SERVERS)) < 0.04
    )  # 0.10 if months were alike
    assert fault_trace.share_beyond(found, 0) > 0.9
