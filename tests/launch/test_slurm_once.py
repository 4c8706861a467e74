"""A launcher that is killed at any point, and started again, has submitted each experiment once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.config import ExecutionMode, ExperimentConfig
from model_training_framework.slurm import JobStatus, SLURMLauncher, delivery, prepare, submission
from model_training_framework.slurm.claims import newest_claim, take_claim
from model_training_framework.slurm.records import read_record
from tests.launch.fake_slurm import ACCOUNTING_OFF, FakeSlurm, experiment, fake_slurm
from tests.launch.job_script import wait_for

# Takes jobs that wait for ever; « forgotten » makes squeue forget them, « accounting » makes sacct keep them.
SBATCH = """\
#!/bin/bash
cd {folder} || exit 1
tasks=
for word; do
    case $word in
    --array=*) tasks="_[${{word#--array=}}]" ;;
    --job-name=*) name=${{word#--job-name=}} ;;
    esac
done
touch in_flight
until [ ! -e slow ]; do sleep 0.02; done
job=$((100 + $(cat queue | wc -l)))
echo "$job$tasks|PENDING|None|$word" >> queue
echo "$job$tasks|$name" >> names
echo "$job"
"""
SQUEUE = """\
#!/bin/bash
cd {folder} || exit 1
[ -e forgotten ] || cat queue
"""
SACCT = """\
#!/bin/bash
cd {folder} || exit 1
[ -e accounting ] || {{ echo "{off}" >&2; exit 1; }}
case $* in
*JobName*) echo "99_0|somebody"; cat names ;;
*) echo "100|FAILED" ;;
esac
"""
KEPT = ("queue", "names")
POINTS = (
    (delivery, "write"),
    (delivery, "write_record"),
    (submission, "link_tasks"),
    (submission, "put"),
    (submission, "run_once"),
    (submission, "link_job"),
)


class Killed(BaseException):
    """Nothing of the launcher runs after it."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = fake_slurm(tmp_path / "bin", monkeypatch)
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("sacct", SACCT)):
        (found.folder / name).write_text(text.format(folder=found.folder, off=ACCOUNTING_OFF))
    for name in KEPT:
        (found.folder / name).touch()
    return found


@pytest.fixture
def launcher(slurm: FakeSlurm, tmp_path: Path) -> SLURMLauncher:
    return SLURMLauncher(output_dir=tmp_path / "out", project_root=tmp_path, patience_s=0.6)


def queued(slurm: FakeSlurm) -> int:
    """Return how many jobs Slurm was given."""
    return len((slurm.folder / "queue").read_text().splitlines())


def killed_at(point: int, launcher: SLURMLauncher, experiments: list[ExperimentConfig]) -> bool:
    """Submit, and kill the launcher before (even) or after (odd) the n-th thing that it does; whether it got there."""
    number = count()

    def faulty(done: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            if next(number) == point:
                raise Killed
            result = done(*words, **options)
            if next(number) == point:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in POINTS:
            patch.setattr(module, name, faulty(getattr(module, name)))
        try:
            launcher.submit_experiment_batch(experiments)
        except Killed:
            return True
    return False


def each_point(launcher: SLURMLauncher, slurm: FakeSlurm, experiments: list[ExperimentConfig]) -> Iterator[int]:
    """Yield every point at which a launcher was killed, with a Slurm and a folder that are new."""
    for point in count():
        was_killed = killed_at(point, launcher, experiments)
        yield point
        if not was_killed:
            assert point > 10, "the hooks are called"
            return
        shutil.rmtree(launcher.output_dir)
        for name in KEPT:
            (slurm.folder / name).write_text("")
        (slurm.folder / "forgotten").unlink(missing_ok=True)


BATCHES = {
    "one": [experiment("one")],
    "array": [experiment(f"e{number}") for number in range(3)],
    "unlike": [experiment(f"e{number}", slurm={"nodes": number + 1}) for number in range(2)],
}
in_batches = pytest.mark.parametrize("experiments", BATCHES.values(), ids=BATCHES.keys())


@in_batches
def test_killed_at_any_point(launcher: SLURMLauncher, slurm: FakeSlurm, experiments: list[ExperimentConfig]) -> None:
    for point in each_point(launcher, slurm, experiments):
        again = launcher.submit_experiment_batch(experiments)
        names = {found.experiment_name for found in again.successful}
        assert names == {found.experiment_name for found in experiments}, point
        scripts = [line.rpartition("|")[2] for line in (slurm.folder / "queue").read_text().splitlines()]
        tasks = [task.resolve() for script in scripts for task in Path(script).parent.glob("[0-9]")]
        assert sorted(task.name for task in tasks) == sorted(names), f"each once, killed at point {point}"
        assert launcher.submit_experiment_batch(experiments).job_ids == again.job_ids, point


@pytest.mark.parametrize("has_accounting", [False, True])
@in_batches
def test_killed_at_any_point_and_done_and_forgotten(
    launcher: SLURMLauncher, slurm: FakeSlurm, experiments: list[ExperimentConfig], has_accounting: bool
) -> None:
    if has_accounting:
        (slurm.folder / "accounting").touch()
    for point in each_point(launcher, slurm, experiments):
        done: set[str] = set()
        for line in (slurm.folder / "queue").read_text().splitlines():
            for task in Path(line.rpartition("|")[2]).parent.glob("[0-9]"):
                job = line.partition("|")[0].partition("_")[0] + (f"_{task.name}" if "_[" in line else "")
                claim = take_claim(task.resolve(), job, 0)
                assert claim is not None
                (task / "exit_code").write_text("0\n")
                claim.end()
                done.add(task.resolve().name)
        (slurm.folder / "forgotten").touch()
        again = launcher.submit_experiment_batch(experiments)
        submitted = {found.experiment_name for found in again.submitted}
        assert submitted == {found.experiment_name for found in experiments} - done, point
        assert all(again.job_ids.values()), point


def test_accounting_knows_a_job_that_the_queue_has_forgotten(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    for name in ("accounting", "forgotten"):
        (slurm.folder / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "link_job", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            launcher.submit_experiment(experiment())
    assert launcher.get_states(["one"])["one"].record.job_id == "100"
    assert launcher.submit_experiment(experiment()) == "101", "it failed, says accounting, and is submitted again"
    first, second = (line.partition("|")[2] for line in (slurm.folder / "names").read_text().splitlines())
    assert first != second, "a name of its own for each attempt"


def test_name_in_accounting_is_not_that_of_another_job_of_the_lane(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    (slurm.folder / "accounting").touch()
    unlike = [experiment(f"e{number}", slurm={"nodes": number + 1}) for number in range(3)]
    jobs = launcher.submit_experiment_batch(unlike, max_concurrent_jobs=1).job_ids
    assert len({line.partition("|")[2] for line in (slurm.folder / "names").read_text().splitlines()}) == 1, "singleton"
    (launcher.output_dir / ".submissions" / f"job-{jobs['e1']}").unlink()
    record = launcher.output_dir / "e1" / "submission.json"
    record.write_text(record.read_text().replace(f'"job_id": "{jobs["e1"]}"', '"job_id": null'))
    (slurm.folder / "forgotten").touch()
    assert launcher.get_states(["e1"])["e1"].record.job_id == jobs["e1"]


LAUNCH = """\
import sys
from model_training_framework.slurm import SLURMLauncher
from tests.launch.fake_slurm import experiment
SLURMLauncher(output_dir=sys.argv[1], patience_s=0.6).submit_experiment(experiment())
"""


def test_killed_while_sbatch_is_in_flight(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    (slurm.folder / "slow").touch()
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-c", LAUNCH, str(launcher.output_dir)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    first = subprocess.Popen(words, cwd=root, env=environment)
    wait_for((slurm.folder / "in_flight").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    again = subprocess.Popen(words, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)
    assert again.stderr is not None
    assert "waits for another launcher, or its sbatch" in again.stderr.readline()
    assert queued(slurm) == 0
    (slurm.folder / "slow").unlink()
    again.communicate(timeout=30)
    assert again.returncode == 0
    assert queued(slurm) == 1
    assert launcher.submit_experiment(experiment()) == "100"


def gave_way(launcher: SLURMLauncher, slurm: FakeSlurm) -> Path:
    """Submit job 100; job 99, of which no launcher knows, has claimed the experiment, so that 100 gave way."""
    launcher.submit_experiment(experiment())
    folder = launcher.output_dir / "one"
    assert take_claim(folder, "99", 0)
    (slurm.folder / "queue").write_text("99|RUNNING|None|x\n100|FAILED|NonZeroExitCode|x\n")
    return folder


def test_experiment_that_an_unknown_job_runs_is_left_to_it(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    folder = gave_way(launcher, slurm)
    assert launcher.get_states(["one"])["one"].status is JobStatus.RUNNING
    assert launcher.submit_experiment(experiment()) == "99"
    (folder / "exit_code").write_text("0\n")
    (folder / "final_state").write_text("COMPLETED\n")
    (slurm.folder / "queue").write_text("100|FAILED|NonZeroExitCode|x\n")
    assert launcher.get_job_status("100") is JobStatus.COMPLETED, "exit_code 0 counts, whichever job it is of"
    assert launcher.submit_experiment(experiment()) == "100"


def test_experiment_whose_unknown_job_has_failed_is_submitted_again(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    folder = gave_way(launcher, slurm)
    (slurm.folder / "queue").write_text("99|FAILED|None|x\n100|FAILED|NonZeroExitCode|x\n")
    claim = newest_claim(folder)
    assert claim is not None
    assert claim.stands
    assert launcher.submit_experiment(experiment()) == "102"
    claim = newest_claim(folder)
    assert claim is not None
    assert not claim.stands, "the launcher has said for it that it ended"


def test_end_with_0_between_question_and_submission_stays(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:

    def ends_just_now(job: submission.Job) -> None:
        (job.folder / "logs").mkdir(parents=True)
        (job.folder / "exit_code").write_text("0\n")
        prepare.write(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "write", ends_just_now)
        launcher.submit_experiment(experiment())
    assert launcher.get_states(["one"])["one"].status is JobStatus.COMPLETED


def test_local_run_gives_way_to_a_job(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    folder = launcher.output_dir / "one"
    folder.mkdir(parents=True)
    claim = take_claim(folder, "99", 0)
    assert claim is not None
    (slurm.folder / "queue").write_text("99|RUNNING|None|x\n")
    line = experiment("one", "touch {experiment_dir}/ran")
    (failed,) = launcher.submit_experiment_batch([line], ExecutionMode.LOCAL).failed
    assert failed.reason == "job 99 runs it"
    assert not (folder / "ran").exists()
    claim.end()
    (folder / "exit_code").write_text("0\n")
    assert launcher.submit_experiment(line, ExecutionMode.LOCAL).startswith("local-")
    assert not (folder / "ran").exists(), "it has ended with 0"


def test_local_run_says_who_it_is(launcher: SLURMLauncher) -> None:
    found = experiment(
        "one", "cat {experiment_dir}/claim.1 > {experiment_dir}/seen; [ -e again ] || { touch again; exit 75; }"
    )
    job = launcher.submit_experiment(found, ExecutionMode.LOCAL)
    folder = launcher.output_dir / "one"
    first, second = (dict(_values(folder / f"claim.{number}")) for number in (1, 2))
    assert (first["job"], first["restart"], second["restart"]) == (job, "0", "1")
    assert first["end"]
    assert second["end"]
    record = read_record(folder)
    assert record is not None
    assert record.job_name is None, "of Slurm only"


def _values(path: Path) -> list[list[str]]:
    return [line.split("=", 1) for line in path.read_text().splitlines()]
