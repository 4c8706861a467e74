"""``replay`` on the command line: what a user can get wrong is one line, and nothing is half written."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.__main__ import main
from tests.conftest import ROOT
from tests.kineto_made import write_job
from tests.traces_made import make_job
from tests.unit.kineto_traces import NVIDIA, event, public_trace, recorded_traces, written

Capture = pytest.CaptureFixture[str]
RANKS = [str(ROOT / "docs" / "traces" / f"mlp-rank-{rank}.json.gz") for rank in (0, 1)]


def refused(arguments: list[str], capsys: Capture) -> str:
    assert main(["replay", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1, told.err
    return told.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["absent.json"], "absent.json"),
        ([str(ROOT / "README.md")], "is no trace"),
        ([*RANKS, "--step", "7"], "7"),
        ([*RANKS, "--top", "0"], "--top is 0"),
        ([*RANKS, "--set", "operatr:x*=2"], "Did you mean operator?"),
        ([*RANKS, "--set", "operator:aten::liner*=2"], "Did you mean aten::linear?"),
        ([*RANKS, "--set", "ranks=4", "--set", "ranks=8"], "contradicts"),
        ([*RANKS, "--set", "ranks=4", "--system", "Perlmuter"], "Did you mean Perlmutter?"),
        ([*RANKS, "--system", "H101"], "Did you mean H100?"),
        ([*RANKS, "--costs", "absent.json", "--set", "precision:*=bf16"], "absent.json: No such file"),
        ([*RANKS, "--set", "precision:*=bf16"], "is not known; give a trace in bf16"),
        ([*RANKS, "--to", "H100"], "the trace is of a CPU"),
        ([*RANKS, "--set", "links=H200"], "name the one with its links with --system"),
        ([*RANKS, "--set", "precision:*=fp7"], "fp7 is no precision. Did you mean fp8? Precisions: fp32"),
        ([*RANKS, "--report", "absent/page.html"], "--report absent/page.html: there is no folder"),
        ([*RANKS, "--report", RANKS[0]], "the same command reads or writes it"),
        ([*RANKS, "--nonsense"], "--help"),
        ([], "TRACE"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(arguments, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_trace_is_one_line_or_what_is_whole(tmp_path: Path, capsys: Capture) -> None:
    whole = gzip.decompress(Path(RANKS[0]).read_bytes())
    path = tmp_path / "torn.json"
    for length in (1, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:length])
        code = main(["replay", str(path)])
        told = capsys.readouterr()
        if code == 0:
            assert "Note: torn.json: " in told.out
        else:
            assert code == 2
            assert told.err.count("\n") == 1


def test_one_rank_of_two_says_that_it_waits_inside_its_collectives(capsys: Capture) -> None:
    assert main(["replay", RANKS[1]]) == 0
    told = capsys.readouterr().out
    assert "1 of 2 ranks" in told
    assert "waiting" in told
    assert "Note: " in told


@pytest.fixture
def traced_gpu(tmp_path: Path) -> str:
    """Return the traces of two ranks with GPUs."""
    made = make_job([[600.0, 600.0], [500.0, 700.0]], [30.0, 45.0], launch_us=9.0, sizes=[1 << 20, 1 << 21])
    write_job(tmp_path / "gpu", made)
    return str(tmp_path / "gpu")


@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "Perlmutter"])
def test_the_gpu_of_the_trace_changes_nothing(gpu: str, traced_gpu: str, capsys: Capture) -> None:
    assert main(["replay", traced_gpu, "--to", gpu, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"]["ratio"] == 1.0
    assert document["changed"]["low_us"] is None
    assert document["changed"]["source"] == "measured"


def test_another_form_of_the_gpu_is_another_one(traced_gpu: str, capsys: Capture) -> None:
    assert main(["replay", traced_gpu, "--to", "A100-SXM4-40GB"]) == 0
    assert "moved from NVIDIA A100-SXM4-80GB" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("ranks=1", "link.bandwidth_GBps=5"),
        ("communication*=0", "ranks=4"),
        ("kernel:nccl*=remove", "ranks=4"),
    ],
)
def test_collectives_that_a_change_removed_are_told(first: str, then: str, traced_gpu: str, capsys: Capture) -> None:
    told = refused([traced_gpu, "--set", first, "--set", then], capsys)
    assert f"--set {then}: a change before it lets the step's collectives take no time" in told


def test_what_a_step_adds_to_a_run_is_told_where_it_differs(tmp_path: Path, capsys: Capture) -> None:
    events = [event("user_annotation", "ProfilerStep#1", 0, 100), event("cpu_op", "aten::mm", 10, 80)]
    events += [
        event("cuda_runtime", "cudaLaunchKernel", 80, 5, correlation=1),
        event("kernel", "gemm", 100, 80, (0, 7), device=0, stream=7, correlation=1),
    ]
    path = str(written(tmp_path, events, **NVIDIA))
    assert main(["replay", path]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Step time 100 µs measured; ProfilerStep#1, 1 rank")
    assert "Backlog not counted: 0 µs that the device still ran earlier steps, 80 µs that it ran this one" in said
    assert "Replay 100 µs +0.00% beside the measured step" in said
    assert main(["replay", path, "--set", "kernel:gemm*=2"]) == 0
    assert "Changed    160 µs   1.6 × the replayed step" in capsys.readouterr().out
    events.append(event("cuda_runtime", "cudaDeviceSynchronize", 95, 90))
    events[0]["dur"] = 190
    assert main(["replay", str(written(tmp_path, events, **NVIDIA))]) == 0
    assert "Steady" not in capsys.readouterr().out


def test_the_measured_step_is_the_profilers_and_a_change_moves_what_a_run_takes(capsys: Capture) -> None:
    path = str(public_trace("tracelens_mi300_resnet_act_checkpoint.json.gz"))
    assert main(["replay", path, "--json", "--set", "kernel:*=x0.5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"]["step_us"] == pytest.approx(15_887.0, abs=0.1)
    assert document["replayed"]["error"] == pytest.approx(0.0, abs=1e-9)
    (rank,) = document["step"]["ranks"]
    assert rank["backlog_us"] == pytest.approx([35_257.2, 37_924.5], abs=0.1)
    gpu_us, host_us = 53_811.5 - 35_257.2, 15_887.0  # this step on the GPU alone, and on the host, which never waited
    assert document["replayed"]["step_us"] == pytest.approx(gpu_us, rel=1e-3)
    assert document["changed"]["step_us"] == pytest.approx(host_us, rel=1e-3)
    for parts in (document["replayed"], document["changed"]):
        assert sum(parts["ranks"][0]["parts"].values()) == pytest.approx(parts["step_us"])
        assert sum(share["path_us"] for share in parts["critical_path"]) == pytest.approx(parts["step_us"], abs=1.0)


def test_a_trace_that_a_replay_wrote_is_not_replayed_again(tmp_path: Path, traced_gpu: str, capsys: Capture) -> None:
    out = str(tmp_path / "out.json")
    assert main(["replay", traced_gpu, "--trace", out]) == 0
    capsys.readouterr()
    assert "is what replay --trace wrote" in refused([out], capsys)


def test_other_commands_do_not_load_replay() -> None:
    code = "import sys, predictor.__main__; print([n for n in sys.modules if n.startswith('predictor.replay')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", recorded_traces())
def test_public_traces_replay_to_their_measured_step(path: Path, capsys: Capture) -> None:
    assert main(["replay", str(path), "--json", "--set", "host*=0.5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert abs(document["replayed"]["error"]) <= 0.05
    assert document["changed"]["ratio"] <= 1.0 + 1e-9
    for replay in (document["replayed"], document["changed"]):
        for rank in replay["ranks"]:
            assert sum(rank["parts"].values()) == pytest.approx(replay["step_us"])
