"""The monitor finds faults that are injected into real trainings, and names them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from predictor.watch.events import Activity, End, Event, Start, Step
from tests.faults.judge import Verdict, event_of, judge, misses, table
from tests.faults.truth import CAUSES, SIZES, TRUTH, Fault, Kind, faults

ROOT = Path(__file__).parents[2]
FAULTS = [kind for kind in Kind if kind is not Kind.NONE]
PROGRAM = """
import json, sys
from pathlib import Path
from tests.faults.runner import run_all
from tests.faults.truth import Fault
run_all([Fault.from_dict(one) for one in json.loads(sys.argv[1])], Path(sys.argv[2]))
"""
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("lightning_fabric") is None or sys.platform != "linux",
    reason="trains on Linux with torch and lightning-fabric",
)


def run(planned: list[Fault], out: Path) -> list[Verdict]:
    """Run faults in a process that has no other threads to fork, and judge those that this machine allows."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([fault.as_dict() for fault in planned]), str(out)]
    paths = [ROOT, *(ROOT / name for name in ("training", "profiling", "slurm"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    folders = sorted(path.parent for path in out.glob(f"*/{TRUTH}"))
    assert len(folders) == len(planned), ran.stderr
    assert "failed" not in ran.stderr, ran.stderr
    return [verdict for folder in folders if (verdict := judge(folder)) is not None]


@needs_torch
def test_a_slow_loader_is_found_in_a_real_training(tmp_path: Path) -> None:
    verdicts = run([Fault(0, Kind.LOADER, ranks=2, size=4.0, start=50, rank=0, variant=0, seed=1)], tmp_path)
    assert [verdict.is_among_two for verdict in verdicts] == [True], misses(verdicts)


@needs_torch
@pytest.mark.thorough
def test_most_large_faults_are_found_and_named(tmp_path: Path) -> None:
    planned = [Fault(i, kind, 2, SIZES[kind][-1], 55, 1, 1, seed=i) for i, kind in enumerate(FAULTS)]
    verdicts = run(planned, tmp_path)
    assert len(verdicts) >= 5
    assert sum(verdict.is_among_two for verdict in verdicts) >= 0.8 * len(verdicts), misses(verdicts)


def test_runs_go_through_all_kinds_sizes_and_ranks_alike_for_a_seed() -> None:
    planned = faults(60, (2, 4), seed=3)
    assert planned == faults(60, (2, 4), seed=3)
    assert planned != faults(60, (2, 4), seed=4)
    for kind in FAULTS:
        mine = [(fault.size, fault.ranks) for fault in planned if fault.kind is kind]
        assert sorted(mine) == sorted((size, ranks) for size in SIZES[kind] for ranks in (2, 4))
    assert CAUSES.keys() == SIZES.keys() == set(Kind)
    assert Fault.from_dict(planned[5].as_dict()) == planned[5]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('{"event":"start","hosts":["a","b"],"world_size":4,"later":1}', Start(hosts=("a", "b"), world_size=4)),
        ('{"event":"step","number":3,"rank":1,"parts":{"data":0.5}}', Step(3, rank=1, parts={"data": 0.5})),
        ('{"event":"activity","part":"checkpoint","step":8,"seconds":0.25}', Activity("checkpoint", 8, 0.25)),
        ('{"event":"end","state":"COMPLETED"}', End("COMPLETED")),
    ],
)
def test_a_line_is_an_event(line: str, event: Event) -> None:
    assert event_of(line) == event


def stored(folder: Path, kind: Kind, extra_s: float, began: int = 61) -> Path:
    """Write a run of two ranks by hand: steps of 0.1 s, rank 1's data later than that from a step on."""
    fault = Fault(0, kind, 2, 1.0, began, 1, 0, seed=0)
    place = folder / kind.value
    place.mkdir()
    facts = {"fault": fault.as_dict(), "began": None if kind is Kind.NONE else began, "cores_of_others": 0.7}
    (place / TRUTH).write_text(json.dumps(facts | {"began": began}), encoding="utf-8")
    for rank in (0, 1):
        with gzip.open(place / f"rank-{rank:05d}.jsonl.gz", "wt") as stream:
            for number in range(1, 121):
                late = extra_s if number >= began else 0.0
                wobble = 0.001 * (number * 7 % 5)
                parts = {
                    "forward": 0.05 + wobble,
                    "data": late * (rank == 1),
                    "communication": 0.01 + late * (rank == 0),
                }
                seconds = 0.1 + wobble + late
                values = {"number": number, "seconds": seconds, "rank": rank, "at": 0.1 * number, "parts": parts}
                stream.write(json.dumps({"event": "step", **values}) + "\n")
    return place


def test_verdicts_of_stored_runs(tmp_path: Path) -> None:
    made = ((Kind.LOADER, 0.1), (Kind.NETWORK, 0.0), (Kind.NONE, 0.0))
    slow, missed, healthy = (verdict for one in made if (verdict := judge(stored(tmp_path, *one))) is not None)
    assert (slow.detected, slow.is_first) == (True, True)
    assert (missed.detected, missed.causes, missed.is_among_two) == (False, (), False)
    assert healthy.alarms == ()
    printed = table([slow, missed, healthy])
    assert "| slow data loader | 1 | 1 (100%) | 1 (100%) | 1 (100%) | data loading 1 |" in printed
    assert "| **all** | 2 | 1 (50%) | 1 (50%) | 1 (50%) | data loading 1, no finding 1 |" in printed
    assert "Healthy runs: 1, of which 0 with an alarm" in printed
    assert misses([slow, missed, healthy]).startswith("000 slow collectives")


def test_a_run_that_could_not_be_injected_is_left_out(tmp_path: Path) -> None:
    place = stored(tmp_path, Kind.CGROUP, 0.0)
    facts = json.loads((place / TRUTH).read_text(encoding="utf-8")) | {"skipped": "no cgroup"}
    (place / TRUTH).write_text(json.dumps(facts), encoding="utf-8")
    assert judge(place) is None
