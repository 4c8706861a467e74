"""Records of metrics: JSON lines, tables, telemetry; device readings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from predictor.watch.events import Activity, DeviceSample, End, Event, Message, Start, Step
from predictor.watch.readers.devices import Accounting, Dmon, nvidia_smi
from predictor.watch.readers.nodes import host_file, nodes
from predictor.watch.readers.records import JsonLines, event_of, metric_rows
from predictor.watch.readers.tracker import Job, StepTracker
from predictor.watch.sources.text_source import Reader


def read(reader: Reader, *lines: Mapping[str, Any] | str) -> list[Event]:
    data = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    return [*reader.feed(data), *reader.finish()]


def test_the_step_records_of_our_trainers() -> None:
    assert read(
        JsonLines(StepTracker()),
        {"phase": "train", "step": 1, "epoch": 0, "loss": 2.5, "lr": 0.1, "step_time_s": 0.25},
        {"phase": "validation", "step": 1, "epoch": 0, "loss": 2.4, "time_s": 3.0},
        {"phase": "train", "step": 2, "epoch": 0, "loss": None, "lr": 0.1, "step_time_s": 0.5},
        "half of a li",
    ) == [Step(1, 0.25, loss=2.5), Activity("evaluation", 1, 3.0), Step(2, 0.5)]


def test_wandb_s_history_and_llama_factory_s_log() -> None:
    assert read(
        JsonLines(StepTracker()),
        {"_step": 4, "_timestamp": 100.5, "train/global_step": 40, "train/loss": 2.0},
        {"_step": 5, "_timestamp": 101.0, "train/global_step": 40, "eval/loss": 2.1, "eval/runtime": 4.0},
    ) == [Step(40, at=100.5, loss=2.0), Activity("evaluation", 40, 4.0, at=101.0)]
    steps = read(
        JsonLines(StepTracker()),
        {"current_steps": 10, "total_steps": 100, "loss": 2.0, "elapsed_time": "0:00:20", "remaining_time": "0:03:00"},
        {"current_steps": 20, "total_steps": 100, "loss": 1.9, "elapsed_time": "0:00:45", "remaining_time": "0:03:00"},
    )
    assert steps == [Step(10, loss=2.0), Step(20, 2.5, 10, loss=1.9)]


def test_lightning_s_table() -> None:
    assert read(metric_rows(StepTracker()), "epoch,step,train_loss,val_loss", "0,9,2.5,", "0,19,2.4,", "0,19,,2.3") == [
        Step(9, loss=2.5),
        Step(19, steps=10, loss=2.4),
        Activity("evaluation", 19),
    ]


def test_step_times_of_ranks_in_either_form() -> None:
    wide = read(metric_rows(StepTracker(speaks=False)), "step,rank_0,rank_1", "5,0.5,0.75")
    long = read(metric_rows(StepTracker(speaks=False)), "step,rank,seconds", "5,0,0.5", "5,1,0.75")
    assert wide == long == [Step(5, 0.5, rank=0), Step(5, 0.75, rank=1)]


RECORDS: tuple[tuple[dict[str, Any], Event], ...] = (
    (
        {"number": 3, "seconds": 0.5, "at": 9.5, "rank": 1, "parts": {"data": 0.1}, "counters": {"cpu_seconds": 2}},
        Step(3, 0.5, at=9.5, rank=1, parts={"data": 0.1}, counters={"cpu_seconds": 2.0}),
    ),
    ({"part": "checkpoint", "step": 3, "seconds": 1, "in_step": True}, Activity("checkpoint", 3, 1.0, True)),
    ({"at": 1.5, "resumed_step": None, "hosts": ["a"], "world_size": 2}, Start(1.5, None, ("a",), 2)),
    ({"state": "COMPLETED", "at": 2}, End("COMPLETED", 2.0)),
    ({"kind": "network", "text": "NCCL", "rank": 0}, Message("network", "NCCL", rank=0)),
    (
        {"device": "0", "throttle_reasons": ["sw_power_cap"]},
        DeviceSample("0", throttle_reasons=frozenset({"sw_power_cap"})),
    ),
)
NAMES = {Step: "step", Activity: "activity", Start: "start", End: "end", Message: "message", DeviceSample: "device"}


@pytest.mark.parametrize(("record", "event"), RECORDS, ids=lambda value: type(value).__name__)
def test_telemetry_has_the_names_of_events(record: dict[str, Any], event: Event) -> None:
    assert event_of({"event": NAMES[type(event)], "unknown": 1, **record}) == event


@pytest.mark.parametrize(
    "record",
    [
        {"event": "step"},
        {"event": "step", "number": "three"},
        {"event": "step", "number": 1, "parts": [1]},
        {"event": "step", "number": 1, "parts": {"data": "x"}},
        {"event": "start", "hosts": "a"},
        {"event": "other", "number": 1},
        {"event": ["step"], "number": 1},
    ],
)
def test_telemetry_of_wrong_types_is_no_event(record: dict[str, Any]) -> None:
    assert event_of(record) is None


def test_a_rank_s_file_names_the_rank_of_its_records() -> None:
    assert read(JsonLines(StepTracker(), 3), {"event": "step", "number": 1}) == [Step(1, rank=3)]


def test_dcgm_s_rows() -> None:
    rows = (
        "#Entity   SMCLK  POWER  TMPTR  GPUTL  FBUSD  DVCCTR",
        "ID   MHz W C",
        "GPU 3     1980   690.5  71  98  1024  68",
    )
    (sample,) = read(Dmon("node-1"), *rows)
    assert sample == DeviceSample(
        "3",
        None,
        "node-1",
        sm_clock_mhz=1980.0,
        power_w=690.5,
        temperature_c=71.0,
        utilization=0.98,
        memory_bytes=2.0**30,
        throttle_reasons=frozenset({"sw_power_cap", "hw_thermal_slowdown"}),
    )


def test_reasons_of_nvidia_smi_in_columns_of_their_own() -> None:
    header = "timestamp, uuid, clocks_throttle_reasons.hw_slowdown, clocks_throttle_reasons.gpu_idle"
    (sample,) = read(nvidia_smi(), header, "2026/03/02 10:00:00, GPU-1, Active, Active")
    assert isinstance(sample, DeviceSample)
    assert (sample.device, sample.throttle_reasons) == ("GPU-1", frozenset({"hw_slowdown"}))
    assert sample.at is not None


def test_a_row_without_readings_is_no_sample() -> None:
    assert read(nvidia_smi(), "index, power.draw [W]", "0, [N/A]", "0, [Unknown Error]") == []


def test_accounting_says_nodes_and_ends() -> None:
    jobs: list[Job] = []
    events = read(
        Accounting(jobs), "JobID|State|NodeList", "7|OUT_OF_MEMORY|a[1-2]", "7.0|OUT_OF_MEMORY|a1", "8|RUNNING|b"
    )
    assert events == [End("OUT_OF_MEMORY")]
    assert [job.hosts for job in jobs] == [("a1", "a2"), ("b",)]


LISTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("n[08-11]", ("n08", "n09", "n10", "n11")),
    ("a-1.x,b[1,3]-ib", ("a-1.x", "b1-ib", "b3-ib")),
    ("n[5-2]", ()),
    ("n[", ()),
    ("", ()),
)


@pytest.mark.parametrize(("text", "names"), LISTS)
def test_lists_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert nodes(text) == names


def test_lists_of_nodes_are_bounded() -> None:
    assert len(nodes("n[1-999999999]")) == 1 << 16
    assert host_file("a slots=8\n\n# spare\nb:8\na\n") == ("a", "b")
