"""A field that the driver refuses is that field's loss alone, through nvidia-ml-py and through nvidia-smi."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from microbench import device, nvml
from microbench.nvml import Nvml, driver_branch, gpu_session
from microbench.rows import DeviceState

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


class RefusedError(Exception):
    """What nvidia-ml-py raises."""


def library(**changes: Any) -> Any:
    """Return a driver's library; a change of None takes a question away, an exception is raised."""
    answers: dict[str, Any] = {
        "nvmlDeviceGetClockInfo": lambda gpu, which: 1980 if which == "sm" else 3201,
        "nvmlDeviceGetMaxClockInfo": lambda gpu, which: 1980,
        "nvmlDeviceGetPowerUsage": lambda gpu: 512_300,
        "nvmlDeviceGetPowerManagementLimit": lambda gpu: 700_000,
        "nvmlDeviceGetTemperature": lambda gpu, which: 61,
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=97),
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        REASONS: lambda gpu: 4,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 8,
    } | changes

    def answer(value: Any) -> Any:
        if not isinstance(value, Exception):
            return value

        def refuse(*_: object) -> None:
            raise value

        return refuse

    names = {"NVMLError": RefusedError, "NVML_CLOCK_SM": "sm", "NVML_CLOCK_MEM": "memory", "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(**names, **{name: answer(value) for name, value in answers.items() if value is not None})


def test_a_session_records_what_the_driver_says() -> None:
    said = Nvml(library(), "gpu").session()
    assert said == {
        "driver": "580.159.04",
        "sm_clock_mhz": "1980",
        "memory_clock_mhz": "3201",
        "max_sm_clock_mhz": "1980",
        "power_w": "512.3",
        "power_limit_w": "700",
        "temperature_c": "61",
        "clocks_event_reasons": "0x4",
        "utilization_percent": "97",
    }
    assert Nvml(library(), "gpu").state() == DeviceState(1980.0, 512.3, 61.0)


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetPowerManagementLimit", "power_limit_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetMaxClockInfo", "max_sm_clock_mhz"),
        ("nvmlDeviceGetUtilizationRates", "utilization_percent"),
    ],
)
@pytest.mark.parametrize("how", [RefusedError("Not Supported"), None])
def test_a_refused_field_loses_that_field_only(question: str, field: str, how: Any) -> None:
    whole, without = (Nvml(library(**changes), "gpu").session() for changes in ({}, {question: how}))
    assert whole.keys() - without.keys() == {field}


def test_why_clocks_are_held_down_has_an_older_name() -> None:
    assert Nvml(library(**{REASONS: None}), "gpu").session()["clocks_event_reasons"] == "0x8"


@pytest.mark.parametrize(("count", "found"), [(1, "the only one"), (2, None)])
def test_an_identifier_that_the_driver_does_not_know_is_that_of_the_only_gpu(
    count: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uuid: str) -> None:
        raise RefusedError("Not Found")

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": unknown,
        "nvmlDeviceGetHandleByIndex": lambda index: "the only one",
        "nvmlDeviceGetCount": lambda: count,
    }
    monkeypatch.setitem(sys.modules, "pynvml", library(**answers))
    monkeypatch.setattr(nvml, "which_gpu", lambda: "GPU-1234")
    opened = nvml.nvml.__wrapped__()
    assert (opened.handle if opened else None) == found


SMI = """#!/bin/sh
echo >>"$0.calls"
case "$*" in
  *driver_version,*) echo 470.57.02, 1410, 0x0000000000000004;;
  *clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
  *clocks_throttle_reasons.active*) echo 0x0000000000000004;;
  *driver_version*) echo 470.57.02;;
  *power.draw*) echo '[N/A]';;
  *temperature.gpu*) echo '[Insufficient Permissions]';;
  *clocks.sm*) echo 1410;;
  *) echo '[Not Supported]';;
esac
"""


def test_without_the_library_every_field_is_queried_from_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nvml, "nvml", lambda: None)
    monkeypatch.setattr(nvml, "which_gpu", lambda: "0")
    nvml._answered.cache_clear()
    assert gpu_session() == {
        "driver": "470.57.02",
        "sm_clock_mhz": "1410",
        "clocks_event_reasons": "0x0000000000000004",
    }
    assert driver_branch("470.57.02") == "470"
    asked = len((tmp_path / "nvidia-smi.calls").read_text())
    assert gpu_session()["sm_clock_mhz"] == "1410"
    assert len((tmp_path / "nvidia-smi.calls").read_text()) == asked + 1, "once it knows the fields, one query"


def test_code_without_its_history_is_known_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = device.commit()
    assert "sources " in found
    assert found == device.commit()
    (tmp_path / "COMMIT").write_text("abc123\n")
    monkeypatch.setattr(device, "COMMIT_FILE", tmp_path / "COMMIT")
    assert device.commit() == "abc123"
