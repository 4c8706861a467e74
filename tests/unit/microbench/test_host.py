"""Launches on this host: what is written is a host section, and a rank that fails is an error in words."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from microbench.cli import main
from microbench.errors import MeasureError
from microbench.host import measure
from microbench.host.cli import section
from microbench.host.measure import DRIVER_US, HostCost, Launches, collector_share, measure_host, time_launches
from predictor.core.schema.host_section import HostSection

ALONE = Launches(4.0, 5.0, 0.1)


def test_a_launch_takes_a_few_microseconds_and_the_collector_is_as_before() -> None:
    import gc

    enabled = gc.isenabled()
    launches = time_launches(0.05)
    assert 0.1 < launches.forward_us < 1000
    assert 0.1 < launches.backward_us < 1000
    assert launches.spread >= 0.0
    assert collector_share(0.04) >= 1.0
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("together", [None, Launches(5.0, 6.25, 0.1)])
def test_what_is_written_is_a_host_section(together: Launches | None) -> None:
    cost = HostCost(ALONE, 8, together, collector=1.2)
    read = HostSection.model_validate(yaml.safe_load(section(cost, "a processor", "2.13"))["host"])
    assert read.launch_forward_us == pytest.approx(4.0 + DRIVER_US)
    assert read.launch_backward_us == pytest.approx(5.0 + DRIVER_US)
    assert read.slowdown == (None if together is None else pytest.approx(1.25 * 1.2))
    assert "not measured here" in section(cost, "a processor", "2.13")


def test_a_faster_moment_of_several_ranks_is_no_slowdown_below_one() -> None:
    assert HostCost(ALONE, 2, Launches(3.0, 4.0, 0.1), 0.9).slowdown == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "0"], "--ranks is 0"),
        (["--ranks", "4096"], "this process may use"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--seconds", "nan"], "--seconds is nan"),
    ],
)
def test_impossible_requests_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_ranks_that_fail_are_an_error_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    opened = subprocess.Popen

    def failing(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(opened([command[0], "-c", "raise SystemExit(3)"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", failing)
    with pytest.raises(MeasureError, match="several ranks could not be timed"):
        measure.time_together(2, 0.1)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_the_interrupted_measurement_leaves_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    opened = subprocess.Popen

    def waiting(command: list[str], **options: Any) -> subprocess.Popen[str]:
        code = "import sys; print('ready', flush=True); sys.stdin.readline(); import time; time.sleep(60)"
        process = opened([command[0], "-c", code], **options)
        started.append(process)

        def interrupted(*_: object, **__: object) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(process, "communicate", interrupted)
        return process

    monkeypatch.setattr(subprocess, "Popen", waiting)
    with pytest.raises(KeyboardInterrupt):
        measure.time_together(2, 0.1)
    assert all(process.poll() is not None for process in started)


def test_a_short_measurement_of_one_process() -> None:
    said: list[str] = []
    cost = measure_host(1, 0.1, said.append)
    assert cost.together is None
    assert said == ["one process", "Python's collector"]
