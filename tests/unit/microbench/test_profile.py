"""Measuring operators on this CPU: every kernel runs, a run resumes, and a fault is a row or one line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from microbench import cli, profile
from microbench.device import Device
from microbench.profile import Job, Outcome
from microbench.rows import DeviceState
from microbench.sweep import SWEEPS, read_sweep
from microbench.table import Status, read_table, read_tables
from microbench.timing import Policy, Timed, take_turns
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import BOTH, Operator

POLICY = Policy(precision=0.1, fewest_samples=3, most_samples=6, budget_ms=1000, warmup_ms=1, batch=2)


class Clock:
    """A clock on which every pass takes what the test says, and a little more every time."""

    def __init__(self, growth: float = 0.0) -> None:
        self.now, self.growth, self.order = 0.0, growth, list[str]()

    def time(self, run: Any, samples: Any) -> Any:
        output = run()
        self.now += 1e-6
        samples.whole_us.append(100.0 * (1.0 + self.growth * len(samples.whole_us)))
        return output

    def seconds(self) -> float:
        return self.now

    def state(self) -> DeviceState:
        return DeviceState()

    def is_lost(self) -> bool:
        return False


def timed(name: str, clock: Clock, fail: Exception | None = None) -> Timed:
    def forward() -> None:
        clock.order.append(name)
        if fail is not None and clock.order.count(name) > 2:
            raise fail

    call = SimpleNamespace(forward=forward, backward=lambda: None, inputs=(), kernel=name)
    return Timed(lambda: call, (1,), BOTH, clock, POLICY)  # type: ignore[arg-type, return-value]


def test_calls_of_a_batch_take_turns_until_each_is_known() -> None:
    clock = Clock()
    calls = [timed("a", clock), timed("b", clock)]
    clock.order.clear()
    assert list(take_turns(calls)) == calls
    assert "".join(clock.order) == "ababab"
    assert [len(row.samples_us) for call in calls for row in call.finish()] == [3] * 4


def test_a_noisy_call_is_repeated_to_the_most_samples() -> None:
    call = timed("a", Clock(growth=1.0))
    assert list(take_turns([call])) == [call]
    assert len(call.finish()[0].samples_us) == POLICY.most_samples


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), Status.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), Status.OUT_OF_MEMORY),
        (MemoryError("needs about 900.0 GB"), Status.OUT_OF_MEMORY),
        (RuntimeError("No available kernel. Aborting execution.\nmore"), Status.ERROR),
    ],
)
def test_what_a_kernel_refuses_is_a_row_and_the_others_go_on(error: Exception, status: Status) -> None:
    clock = Clock()
    calls = [timed("a", clock, error), timed("b", clock)]
    assert len(list(take_turns(calls))) == 2
    rows = [call.finish() for call in calls]
    assert {row.status for row in rows[0]} == {status}
    assert all(not row.samples_us and "\n" not in row.kernel for row in rows[0])
    assert {row.status for row in rows[1]} == {Status.OK}


TINY = {
    "shapes_per_operator": 3,
    "shapes_per_linear": 3,
    "largest_call_gflop": 0.1,
    "largest_call_mb": 8,
    "timing": {"precision": 0.5, "fewest_samples": 3, "most_samples": 3, "budget_ms": 20, "warmup_ms": 1, "batch": 3},
}


def tiny_sweep(folder: Path, **changes: object) -> str:
    content = yaml.safe_load((SWEEPS / "smoke.yaml").read_text())
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content | TINY | changes))
    return str(path)


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")


def test_every_kernel_runs_in_all_its_directions(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("operator", "all", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--out", tmp_path / "r")
    assert run(*words) == 0
    names = {name for name, one in catalogue().items() if "fp32" in one.precisions}
    assert len(capsys.readouterr().out.splitlines()) == len(names)
    tables = read_tables(tmp_path / "r", "operator")
    assert {table.provenance.identity.name for table in tables} == names
    for table in tables:
        operator = catalogue()[table.provenance.identity.name]
        failed = [row.kernel for row in table.rows if row.status is not Status.OK]
        assert not failed, f"{operator.name}: {failed}"
        assert len(table.rows) == 3 * len(operator.directions)
        assert min(min(row.best_samples_us) for row in table.rows) > 0.0
        session = table.provenance.sessions[-1]
        assert session.finished
        assert session.relative_spread is not None
        assert len(session.reference_us) == 2  # before and after
        assert min(session.reference_us) > 0.0
    assert run(*words) == 0
    assert "3 there already" in capsys.readouterr().err
    assert [len(table.rows) for table in read_tables(tmp_path / "r", "operator")] == [len(t.rows) for t in tables]


def test_shards_are_tables_of_their_own_and_a_budget_stops_in_order(torch: Any, tmp_path: Path) -> None:
    words = ("operator", "gelu", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--out", tmp_path / "r")
    assert run(*words, "--shard", "0/2", "--budget-minutes", "-1") == 0
    assert not read_table(tmp_path / "r/operator/gelu_fp32.0of2.csv").rows
    assert [run(*words, "--shard", f"{i}/2") for i in range(2)] == [0, 0]
    first, second = read_tables(tmp_path / "r", "operator")
    assert len({row.shape for row in (*first.rows, *second.rows)}) == 3


def test_a_budget_counts_from_the_start_of_the_process(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["operator", "gelu", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--out", str(tmp_path / "r")]
    assert cli.main([*words, "--budget-minutes", "2"], age_s=121.0) == 0
    assert "gelu: 0 measured, 3 left: out of time" in capsys.readouterr().err
    program = "import time; time.sleep(1.0); from microbench.device import process_age_s; print(process_age_s())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 1.0


def test_a_budget_is_shared_or_spent_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []

    def measured(
        job: Job, operator: Operator, shapes: object, clock: object, before_us: float
    ) -> tuple[Outcome, float]:
        given.append((operator.name, job.deadline))
        return Outcome(operator.name, tmp_path, 1, 0, 0, 0, 1, ""), before_us

    monkeypatch.setattr(profile, "_profile_one", measured)
    monkeypatch.setattr(profile, "clock_for", lambda *_: None)
    monkeypatch.setattr(profile, "reference_us", lambda kind: 1.0)
    monkeypatch.setattr(profile, "time", SimpleNamespace(monotonic=lambda: 100.0))
    job = Job(
        tmp_path, Device("cpu", "CPU", None, 2**20, 1, 2**30, ("fp32",)), "fp32", read_sweep("smoke"), deadline=160.0
    )
    for in_order in (False, True):
        profile.profile(replace(job, in_order=in_order), ["gelu", "rope"], lambda text: None)
    assert given == [("gelu", 130.0), ("rope", 160.0), ("gelu", 160.0), ("rope", 160.0)]


def test_a_shape_beyond_memory_is_recorded_and_the_sweep_goes_on(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("microbench.device.free_memory_bytes", lambda: 1_000_000)
    words = ("operator", "gelu", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--out", tmp_path / "r")
    assert run(*words) == 0
    statuses = [row.status for row in read_table(tmp_path / "r/operator/gelu_fp32.0of1.csv").rows]
    assert set(statuses) == {Status.OK, Status.OUT_OF_MEMORY}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gelo"], "gelo is not an operator. Did you mean gelu? Known: attention_mask"),
        (["gelu", "--sweep", "smoky"], "smoky is not a sweep. Did you mean smoke? There are full, recommender, smoke"),
        (["gelu", "--shard", "4/4"], "--shard is 4/4; expected i/n with 0 ≤ i < n"),
        (["gelu", "--device", "tpu"], "device is tpu; expected cpu, cuda or auto"),
        (["gelu", "--precision", "fp8"], "precision is fp8; "),
        (["fp8_quantize", "gelu"], "fp8_quantize: nothing to measure in fp32, in which there are attention_mask"),
        (["gelu", "--threads", "none"], "invalid int value: 'none'"),
    ],
)
def test_bad_input_is_one_line(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = ["--device", "cpu", "--sweep", "smoke", "--out", tmp_path]
    assert run("operator", *given, *words) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


def test_a_gpu_that_is_not_there_is_one_line(torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run("operator", "gelu", "--device", "cuda", "--sweep", "smoke", "--out", tmp_path) == 2
    assert "device is cuda, but torch finds no GPU here" in capsys.readouterr().err


def test_a_results_folder_that_is_a_file_is_one_line(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").write_text("")
    assert run("operator", "gelu", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--out", tmp_path / "r") == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"error: {tmp_path / 'r'}")


def test_listing_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["operator"] for row in listed["operators"]} == set(catalogue())


def test_repeatability_says_how_far_apart_two_rounds_are(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("repeatability", "--device", "cpu", "--sweep", tiny_sweep(tmp_path), "--shapes", "2") == 0
    assert "2 shapes (4 passes) measured twice" in capsys.readouterr().out


def test_a_reader_that_ends_early_is_no_traceback() -> None:
    words = f"{sys.executable} -m microbench list --json | head -n 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
