"""Counters of a process, and the cgroups that limit it."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import pytest

from model_training_framework.health import process
from model_training_framework.health.process import Mount, ProcessCounters, cgroup_mounts
from predictor.watch.events import COLLECTED_SECONDS, COUNTERS, CPU_SECONDS, THROTTLED_SECONDS

V2 = "30 23 0:26 /{root} {place} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:27 / {place} rw - cgroup cgroup rw,cpu,cpuacct\n32 23 0:28 / /nowhere rw - cgroup cgroup rw,memory\n"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's proc")


def proc(folder: Path, cgroup: str, mountinfo: str) -> Path:
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup, encoding="utf-8")
    (folder / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mountinfo, encoding="utf-8")
    return folder


def test_folders_of_version_2_up_to_the_mount(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    (top / "job" / "step").mkdir(parents=True)
    found = list(cgroup_mounts("cpu", proc(tmp_path / "proc", "0::/job/step\n", V2.format(root="", place=top))))
    assert found == [Mount((top / "job" / "step", top / "job", top), is_v2=True)]


def test_a_container_sees_its_own_cgroup_at_the_mount(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    top.mkdir()
    found = list(cgroup_mounts("cpu", proc(tmp_path / "proc", "0::/pod/a\n", V2.format(root="pod/a", place=top))))
    assert found == [Mount((top,), is_v2=True)]


def test_the_controller_s_hierarchy_of_version_1(tmp_path: Path) -> None:
    top = tmp_path / "cpu"
    (top / "job").mkdir(parents=True)
    groups = "4:memory:/other\n2:cpu,cpuacct:/job\n"
    assert list(cgroup_mounts("cpu", proc(tmp_path / "proc", groups, V1.format(place=top)))) == [
        Mount((top / "job", top), is_v2=False)
    ]


def test_no_cgroups_are_no_error(tmp_path: Path) -> None:
    assert list(cgroup_mounts("cpu", tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("usage_usec 5\nthrottled_usec 1500000\n", 1.5), ("nr_throttled 2\nthrottled_time 20000000\n", 0.02)],
)
def test_throttled_time_of_both_versions_adds_up(
    text: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    for folder in (tmp_path, tmp_path / "job"):
        (folder / "cpu.stat").write_text(text, encoding="utf-8")
    monkeypatch.setattr(process, "cgroup_mounts", lambda _: [Mount((tmp_path / "job", tmp_path), is_v2=True)])
    counters = ProcessCounters()
    assert counters.read()[THROTTLED_SECONDS] == pytest.approx(2 * seconds)
    counters.close()


@linux_only
def test_counters_count_this_process() -> None:
    counters = ProcessCounters()
    began, before = time.process_time(), counters.read()
    while time.process_time() < began + 0.02:
        pass
    gc.collect()
    after = counters.read()
    used_s = time.process_time() - began
    assert after.keys() <= set(COUNTERS)
    assert after[CPU_SECONDS] - before[CPU_SECONDS] == pytest.approx(used_s, abs=0.01)
    assert after[COLLECTED_SECONDS] > before[COLLECTED_SECONDS]
    memory = counters.memory
    assert memory is not None
    held, limit = memory
    assert limit is not None
    assert 1e6 < held < limit
    counters.close()
    assert counters.memory is None


@linux_only
def test_of_two_limits_the_nearest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    counters = ProcessCounters()
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    data = int(pages[5]) * os.sysconf("SC_PAGE_SIZE")
    none = resource.RLIM_INFINITY
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (int(1.01 * data) if kind == resource.RLIMIT_DATA else none, none)
    )
    counters.read()
    assert list(counters.memory or ()) == [pytest.approx(data, rel=0.05), float(int(1.01 * data))]
    counters.close()
