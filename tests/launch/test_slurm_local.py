"""LOCAL runs the same commands on this machine, so many at once, with the same files; signals are passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from model_training_framework.config import ExecutionMode, ExperimentConfig
from model_training_framework.slurm import JobStatus, JobSubmissionError, SLURMLauncher
from model_training_framework.slurm.records import exit_status, preemptions
from tests.launch.fake_slurm import experiment

LOCAL = ExecutionMode.LOCAL
SAVES = "touch {experiment_dir}/begun; trap 'exit 75' USR1 TERM; while true; do sleep 0.05; done"
RUNNER = """\
import sys
from model_training_framework.slurm import SLURMLauncher
from tests.launch.fake_slurm import experiment
launcher = SLURMLauncher(output_dir=sys.argv[1])
names = [f"e{number}" for number in range(3)]
result = launcher.submit_experiment_batch([experiment(name, sys.argv[2]) for name in names], "local", 2)
print([(failure.experiment_name, failure.reason) for failure in result.failed])
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SLURMLauncher:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return SLURMLauncher(output_dir=tmp_path / "out", project_root=tmp_path)


def output(launcher: SLURMLauncher, name: str) -> str:
    return (launcher.output_dir / name / "logs" / "local.out").read_text()


def started(tmp_path: Path, command: str) -> subprocess.Popen[str]:
    """Start a launcher in a process of its own, with three experiments, two at once."""
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path / "out"), command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).resolve().parents[2],
    )


def wait_for(path: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_success_and_failure(launcher: SLURMLauncher) -> None:
    good = experiment("good", "echo $GREETING; pwd", slurm={"environment": {"GREETING": "it's me"}})
    result = launcher.submit_experiment_batch([good, experiment("bad", "exit 4")], LOCAL)
    assert [found.experiment_name for found in result.successful] == ["good"]
    assert "exit status 4; see " in result.failed[0].reason
    assert output(launcher, "good") == f"it's me\n{launcher.project_root}\n"
    assert (exit_status(launcher.output_dir / "good"), exit_status(launcher.output_dir / "bad")) == (0, 4)
    assert launcher.get_job_status(result.job_ids["good"]) is JobStatus.COMPLETED
    assert launcher.get_job_status(str(result.failed[0].job_id)) is JobStatus.FAILED
    again = launcher.submit_experiment_batch([good, experiment("bad", "true")], LOCAL)
    assert [found.experiment_name for found in again.submitted] == ["bad"]


def test_submit_experiment_raises_what_failed(launcher: SLURMLauncher) -> None:
    with pytest.raises(JobSubmissionError, match="one: its command ended with exit status 2"):
        launcher.submit_experiment(experiment("one", "exit 2"), LOCAL)
    assert launcher.submit_experiment(experiment("one", "true"), LOCAL).startswith("local-")


def test_checkpoints_of_another_configuration_are_not_taken_up(launcher: SLURMLauncher) -> None:
    command = "mkdir -p {experiment_dir}/checkpoints/step-1; exit 3"
    assert launcher.submit_experiment_batch([experiment("e", command, seed=1)], LOCAL).failed[0].job_id
    for mode in (LOCAL, ExecutionMode.DRY_RUN):
        (refused,) = launcher.submit_experiment_batch([experiment("e", command, seed=2)], mode).failed
        assert "checkpoints of a training with another seed; give it another name" in refused.reason
        assert refused.job_id is None
    assert launcher.submit_experiment_batch([experiment("e", command, seed=1)], LOCAL).failed[0].job_id, "it goes on"
    failed_early = experiment("early", "exit 3", seed=1)
    launcher.submit_experiment_batch([failed_early], LOCAL)
    assert launcher.submit_experiment_batch([experiment("early", "exit 0", seed=2)], LOCAL).successful


def test_so_many_at_once(launcher: SLURMLauncher) -> None:
    line = "echo + >> ../log; sleep 0.2; echo - >> ../log"
    batch = [experiment(f"e{number}", f"cd {{experiment_dir}}; {line}") for number in range(6)]
    launcher.submit_experiment_batch(batch, LOCAL, max_concurrent_jobs=2)
    running, most = 0, 0
    for sign in (launcher.output_dir / "log").read_text().split():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert most == 2


def test_to_be_resumed_starts_again(launcher: SLURMLauncher) -> None:
    line = "cd {experiment_dir}; echo x >> runs; [ $(wc -l < runs) -ge 3 ] || exit 75"
    launcher.submit_experiment(experiment("one", line), LOCAL)
    assert preemptions(launcher.output_dir / "one") == 2
    result = launcher.submit_experiment_batch([experiment("two", "exit 75", preemption={"max_preemptions": 1})], LOCAL)
    assert launcher.get_job_status(str(result.failed[0].job_id)) is JobStatus.PREEMPTED


def test_several_processes(launcher: SLURMLauncher) -> None:
    line = "echo $RANK/$WORLD_SIZE $LOCAL_RANK; exit $((RANK * 3))"
    found = experiment("two", line, slurm={"ntasks_per_node": 2})
    with pytest.raises(JobSubmissionError, match="exit status 3"):
        launcher.submit_experiment(found, LOCAL)
    assert sorted(output(launcher, "two").split("\n")[:2]) == ["0/2 0", "1/2 1"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(launcher: SLURMLauncher, tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, SAVES)
    wait_for(tmp_path / "out" / "e0" / "begun")
    wait_for(tmp_path / "out" / "e1" / "begun")
    time.sleep(0.1)
    process.send_signal(number)
    printed, said = process.communicate(timeout=20)
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    if number != signal.SIGINT:
        assert printed.count(f"stopped by {number.name}; the same call again goes on with it") == 3
    assert exit_status(tmp_path / "out" / "e0") is None, "saved, to be resumed: not ended for good"
    assert not (tmp_path / "out" / "e2" / "begun").exists(), "nothing new starts"
    resumed = launcher.submit_experiment_batch([experiment(f"e{number}", "true") for number in range(3)], LOCAL)
    assert len(resumed.submitted) == 3


def test_runs_of_another_launcher_are_left_alone(launcher: SLURMLauncher, tmp_path: Path) -> None:
    process = started(tmp_path, SAVES)
    wait_for(tmp_path / "out" / "e0" / "begun")
    wait_for(tmp_path / "out" / "e1" / "begun")
    batch = [experiment(f"e{number}", SAVES) for number in range(3)]
    result = launcher.submit_experiment_batch(batch, LOCAL)
    assert not result.submitted
    assert [found.status for found in result.successful] == [JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.PENDING]
    assert launcher.cancel_job(result.job_ids["e0"])
    wait_for(tmp_path / "out" / "e0" / "exit_code")
    assert launcher.get_job_status(result.job_ids["e0"]) is JobStatus.CANCELLED
    assert not launcher.cancel_job(result.job_ids["e0"])
    process.kill()
    process.wait()
    assert launcher.get_job_status(result.job_ids["e1"]) is JobStatus.RUNNING, "its command outlives the launcher"
    pid = int((tmp_path / "out" / "e1" / "pid").read_text())
    os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while launcher.get_job_status(result.job_ids["e1"]).is_active and time.monotonic() < deadline:
        time.sleep(0.02)
    assert launcher.get_job_status(result.job_ids["e1"]) is JobStatus.UNKNOWN, "nobody holds it any more"
    again = launcher.submit_experiment_batch([experiment("e1", "true")], LOCAL)
    assert [found.experiment_name for found in again.submitted] == ["e1"], "nor does its claim hold"


def test_a_command_that_ended_after_its_launcher_was_killed_has_ended(launcher: SLURMLauncher, tmp_path: Path) -> None:
    command = "touch {experiment_dir}/begun; while [ ! -e {experiment_dir}/go ]; do sleep 0.02; done"
    process = started(tmp_path, command)
    wait_for(tmp_path / "out" / "e0" / "begun")
    process.kill()
    process.wait()
    (tmp_path / "out" / "e0" / "go").touch()
    wait_for(tmp_path / "out" / "e0" / "exit_code")
    again = launcher.submit_experiment_batch([experiment("e0", command)], LOCAL)
    assert [found.status for found in again.successful] == [JobStatus.COMPLETED]
    assert not again.submitted


def test_in_a_thread(launcher: SLURMLauncher) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(launcher.submit_experiment(experiment(), LOCAL)))
    thread.start()
    thread.join(20)
    assert found


def test_experiment_is_the_same_through_slurm(launcher: SLURMLauncher) -> None:
    found: ExperimentConfig = experiment("one", "true")
    launcher.submit_experiment(found, LOCAL)
    result = launcher.submit_experiment_batch([found], ExecutionMode.SLURM)
    assert not result.submitted, "done is done, wherever it ran; no Slurm is needed to know"
