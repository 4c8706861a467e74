"""Batches reach sbatch once each, whatever happens in between; states come from everything that knows."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_training_framework.config import ExecutionMode, ExperimentConfig
from model_training_framework.config.files import read_file
from model_training_framework.slurm import (
    JobStatus,
    JobSubmissionError,
    Outlook,
    SLURMError,
    SLURMLauncher,
    commands,
    submission,
)
from model_training_framework.slurm.commands import Patience
from model_training_framework.slurm.job_values import Place
from model_training_framework.slurm.launcher import requests
from model_training_framework.slurm.prepare import Source, prepare
from model_training_framework.slurm.submission import Job
from model_training_framework.slurm.template import read_template
from tests.launch.fake_slurm import AWAY, NO_SUCH_JOB, FakeSlurm, experiment, fake_slurm

AWAY_SBATCH = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def launcher(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SLURMLauncher:
    """Return a launcher whose clock moves by its pauses alone: how often it asks is no matter of the machine's load."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    for module in (commands, submission):
        monkeypatch.setattr(module, "time", clock)
    return SLURMLauncher(output_dir=tmp_path / "out", project_root=tmp_path, patience_s=0.6)


def batch(count: int, command: str = "true") -> list[ExperimentConfig]:
    return [experiment(f"e{number}", command) for number in range(count)]


def ended(launcher: SLURMLauncher, name: str, status: int, state: str | None = None) -> None:
    """Write what a job writes at its end."""
    (launcher.output_dir / name / "exit_code").write_text(f"{status}\n")
    if state:
        (launcher.output_dir / name / "final_state").write_text(f"{state}\n")


def test_one_experiment(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    odd = {"text": "1e-8", "number": 1e-8}
    assert launcher.submit_experiment(experiment("one", "echo {config}", custom_params=odd)) == "100"
    folder = launcher.output_dir / "one"
    assert ExperimentConfig.from_dict(read_file(folder / "config.yaml")) == experiment(
        "one", "echo {config}", custom_params=odd
    )
    record = json.loads((folder / "submission.json").read_text())
    assert (record["job_id"], record["array_index"], record["commit"]) == ("100", None, None)
    submitted = Path(record["script"]).read_text()
    assert f"#SBATCH --output={folder}/logs/slurm-%j.out" in submitted
    assert submitted.splitlines()[-1].startswith("exec /bin/bash ")
    assert f"echo {folder}/config.yaml" in (folder / "job.sbatch").read_text()
    name = f"one-{record['submission'][-8:]}"
    assert record["job_name"] == name, "no other submission has it"
    assert slurm.calls("sbatch") == [f"--parsable --job-name={name} {record['script']}"]


def test_array_with_a_limit(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    result = launcher.submit_experiment_batch(batch(5), max_concurrent_jobs=2)
    assert result.job_ids == {f"e{number}": f"100_{number}" for number in range(5)}
    (call,) = slurm.calls("sbatch")
    assert "--array=0-4%2" in call
    assert "/%a/logs/slurm-%A_%a.out" in call
    place = Path(call.split()[-1]).parent
    assert (place / "3").resolve() == launcher.output_dir / "e3"
    assert (launcher.output_dir / ".submissions" / "job-100").resolve() == place


def test_second_call_submits_what_is_missing_or_failed(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    launcher.submit_experiment_batch(batch(5))
    ended(launcher, "e0", 0, "COMPLETED")
    ended(launcher, "e1", 1, "FAILED")
    slurm.answer("squeue", "100_2|RUNNING|None|x\n100_3|PENDING|None|x\n")  # e4 has vanished
    result = launcher.submit_experiment_batch(batch(6))
    assert [found.experiment_name for found in result.submitted] == ["e1", "e4", "e5"]
    assert {found.experiment_name: found.status for found in result.successful if not found.is_new} == {
        "e0": JobStatus.COMPLETED,
        "e2": JobStatus.RUNNING,
        "e3": JobStatus.PENDING,
    }
    assert result.job_ids["e2"] == "100_2"
    assert result.job_ids["e4"] == "101_1"
    assert not (launcher.output_dir / "e1" / "exit_code").exists(), "the old end does not speak for the new job"
    assert "3 submitted, 3 there already, 0 failed" in str(result)


def test_limit_counts_jobs_of_earlier_calls(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    launcher.submit_experiment_batch(batch(2), max_concurrent_jobs=4)
    slurm.answer("squeue", "100_0|RUNNING|None|x\n100_1|RUNNING|None|x\n")
    launcher.submit_experiment_batch(batch(6), max_concurrent_jobs=3)
    assert "--array=0-3%1" in slurm.calls("sbatch")[1]
    launcher.submit_experiment_batch([*batch(2), experiment("x")], max_concurrent_jobs=2)
    assert "--dependency=afterany:100" in slurm.calls("sbatch")[2], "no room: after what runs"


def test_limit_counts_jobs_of_other_batches(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    launcher.submit_experiment_batch(batch(2))
    slurm.answer("squeue", "100_0|RUNNING|None|x\n100_1|RUNNING|None|x\n")
    others = [experiment(f"other{number}") for number in range(5)]
    launcher.submit_experiment_batch(others, max_concurrent_jobs=3)
    assert "--array=0-4%1" in slurm.calls("sbatch")[1]


def test_sbatch_answer_that_was_lost(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    (slurm.folder / "squeue").write_text(
        f"#!/bin/sh\nprintf '77|RUNNING|None|%s\\n' {launcher.output_dir}/.submissions/2*/submit.sbatch\n"
    )
    slurm.answer("sbatch", error=LOST, status=1, call=1)
    assert launcher.submit_experiment(experiment()) == "77"
    assert len(slurm.calls("sbatch")) == 1, "Slurm had taken it: not submitted twice"


def test_sbatch_while_the_controller_is_away(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    slurm.answer("sbatch", error=AWAY_SBATCH, status=1, call=1)
    assert launcher.submit_experiment(experiment()) == "101"
    assert len(slurm.calls("sbatch")) == 2


def test_controller_stays_away(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    for call in range(1, 10):
        slurm.answer("sbatch", error=AWAY_SBATCH, status=1, call=call)
    different = [experiment(f"e{number}", slurm={"nodes": number + 1}) for number in range(3)]
    result = launcher.submit_experiment_batch(different)
    assert [failure.experiment_name for failure in result.failed] == ["e0", "e1", "e2"]
    assert "submit the same batch again later" in result.failed[2].reason
    assert len(slurm.calls("sbatch")) == 3, "what is left is not tried for minutes each"
    for call in range(1, 10):
        slurm.answer("sbatch", f"{500 + call}\n", call=call)
    (slurm.folder / "squeue").write_text(
        f"#!/bin/sh\nls {launcher.output_dir}/.submissions/2*/submit.sbatch | sed 's/^/90|RUNNING|None|/;q'\n"
    )
    assert launcher.submit_experiment(different[0]) == "90", "a job of the call that got no answer is found"


def test_sbatch_refuses(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    slurm.answer("sbatch", error="sbatch: error: invalid partition specified: nope", status=1, call=1)
    with pytest.raises(JobSubmissionError, match=r"one: sbatch refused .*invalid partition specified: nope$"):
        launcher.submit_experiment(experiment(slurm={"partition": "nope"}))
    assert launcher.submit_experiment(experiment()) == "101"


def test_launcher_killed_before_it_wrote_the_job_down(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    launcher.submit_experiment_batch(batch(3))
    for number in range(3):
        path = launcher.output_dir / f"e{number}" / "submission.json"
        path.write_text(path.read_text().replace(f'"100_{number}"', "null"))
    script = json.loads((launcher.output_dir / "e0" / "submission.json").read_text())["script"]
    slurm.answer("squeue", f"100_[0-2]|PENDING|Priority|{script}\n")
    result = launcher.submit_experiment_batch(batch(3))
    assert result.job_ids == {f"e{number}": f"100_{number}" for number in range(3)}
    assert not result.submitted


def test_same_name_with_another_configuration(launcher: SLURMLauncher) -> None:
    launcher.submit_experiment(experiment())
    ended(launcher, "one", 0)
    other = experiment(training={"batch_size": 2, "learning_rate": 0.1, "max_steps": 1})
    with pytest.raises(JobSubmissionError, match=r"COMPLETED as job 100 with another training.batch_size; give it"):
        launcher.submit_experiment(other)
    more_time = experiment(slurm={"time_limit": "10:00:00"}, description="again")
    assert launcher.submit_experiment(more_time) == "100", "what concerns the job only makes no other experiment"


def test_names_given_twice(launcher: SLURMLauncher) -> None:
    result = launcher.submit_experiment_batch([experiment("a"), experiment("a", "false"), experiment("b")])
    assert [(failure.experiment_name, failure.reason[:28]) for failure in result.failed] == [
        ("a", "experiment_name is given twi")
    ]
    assert list(result.job_ids) == ["b"]


def test_dry_run_writes_nothing(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    result = launcher.submit_experiment_batch(batch(3), ExecutionMode.DRY_RUN, max_concurrent_jobs=2)
    assert [found.job_id for found in result.successful] == [None] * 3
    assert "--array=0-2%2" in result.successful[0].sbatch
    assert "srun" in result.successful[0].script
    assert launcher.submit_experiment(experiment(), ExecutionMode.DRY_RUN).startswith("#!/bin/bash\n#SBATCH")
    assert not launcher.output_dir.exists()
    assert slurm.calls("sbatch") == []


def test_what_does_not_fit_is_refused_unless_forced(slurm: FakeSlurm, tmp_path: Path) -> None:
    def outlook(found: ExperimentConfig) -> Outlook:
        too_large = "needs 95 GiB of 80 GiB" if found.experiment_name == "large" else None
        return Outlook(time_limit_s=3000.0, refusal=too_large, predicted={"step_us": 5.0})

    launcher = SLURMLauncher(output_dir=tmp_path / "out", project_root=tmp_path, outlook=outlook)
    found = [experiment("large", slurm={"time_limit": "auto"}), experiment("small", slurm={"time_limit": "auto"})]
    result = launcher.submit_experiment_batch(found)
    assert [failure.reason for failure in result.failed] == [
        "needs 95 GiB of 80 GiB; force=True (--force) submits it all the same"
    ]
    record = json.loads((tmp_path / "out" / "small" / "submission.json").read_text())
    assert record["predicted"] == {"step_us": 5.0}
    assert "#SBATCH --time=00:51:00\n" in (tmp_path / "out" / "small" / "job.sbatch").read_text()
    assert launcher.submit_experiment(found[0], force=True) == "101"


@pytest.mark.parametrize(
    ("squeue", "files", "sacct", "status"),
    [
        ("100|RUNNING|None|x", None, None, JobStatus.RUNNING),
        ("100|REQUEUED|None|x", (75, None), None, JobStatus.REQUEUED),
        ("100|OUT_OF_MEMORY|None|x", (137, "FAILED"), None, JobStatus.OUT_OF_MEMORY),
        ("100|FAILED|NonZeroExitCode|x", (75, "PREEMPTED"), None, JobStatus.PREEMPTED),
        ("100|NODE_FAIL|None|x", None, None, JobStatus.NODE_FAIL),
        (None, (0, "COMPLETED"), None, JobStatus.COMPLETED),
        (None, (0, None), None, JobStatus.COMPLETED),
        (None, (1, None), None, JobStatus.FAILED),
        (None, (75, "TIMEOUT"), None, JobStatus.TIMEOUT),
        (None, (143, "CANCELLED"), None, JobStatus.CANCELLED),
        (None, (75, "garbage"), None, JobStatus.PREEMPTED),
        (None, None, "100|CANCELLED by 0", JobStatus.CANCELLED),
        (None, None, "100|DEADLINE", JobStatus.DEADLINE),
        (None, None, None, JobStatus.UNKNOWN),
    ],
)
def test_states(
    launcher: SLURMLauncher,
    slurm: FakeSlurm,
    squeue: str | None,
    files: tuple[int, str | None] | None,
    sacct: str | None,
    status: JobStatus,
) -> None:
    launcher.submit_experiment(experiment())
    if squeue is None:
        slurm.answer("squeue", error=NO_SUCH_JOB, status=1)
    else:
        slurm.answer("squeue", squeue + "\n")
    if files is not None:
        ended(launcher, "one", *files)
    if sacct is not None:
        slurm.answer("sacct", sacct + "\n")
    assert launcher.get_job_status("100") is status


def test_end_of_a_later_job_does_not_speak_for_an_earlier_one(launcher: SLURMLauncher) -> None:
    launcher.submit_experiment(experiment())
    ended(launcher, "one", 1)
    assert launcher.submit_experiment(experiment()) == "101"
    ended(launcher, "one", 0)
    assert launcher.get_job_status("100") is JobStatus.UNKNOWN
    assert launcher.get_job_status("101") is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("COMPLETED", "RUNNING", "PENDING"), JobStatus.RUNNING),
        (("COMPLETED", "FAILED", "PENDING"), JobStatus.PENDING),
        (("COMPLETED", "TIMEOUT", "COMPLETED"), JobStatus.TIMEOUT),
        (("COMPLETED", "SUSPENDED", "FAILED"), JobStatus.SUSPENDED),
        (("COMPLETED", "COMPLETED", "COMPLETED"), JobStatus.COMPLETED),
    ],
)
def test_state_of_a_whole_array(
    launcher: SLURMLauncher, slurm: FakeSlurm, states: tuple[str, ...], whole: JobStatus
) -> None:
    slurm.answer("squeue", "".join(f"100_{index}|{state}|None|x\n" for index, state in enumerate(states)))
    assert launcher.get_job_status("100") is whole, "an array of somebody else"
    (slurm.folder / "squeue.calls").unlink()
    launcher.submit_experiment_batch(batch(3))
    assert launcher.get_job_statuses(["100", "100_1"]) == {"100": whole, "100_1": JobStatus(states[1])}


def test_slurm_that_is_away_is_no_state(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    launcher.submit_experiment(experiment())
    slurm.answer("squeue", error=AWAY, status=1)
    with pytest.raises(SLURMError, match="the jobs may well be running"):
        launcher.get_job_status("100")
    with pytest.raises(SLURMError):
        launcher.submit_experiment(experiment())
    assert len(slurm.calls("sbatch")) == 1


def test_cancel(launcher: SLURMLauncher, slurm: FakeSlurm) -> None:
    slurm.answer("squeue", "100|RUNNING|None|x\n101|COMPLETED|None|x\n")
    assert launcher.cancel_job("100")
    assert not launcher.cancel_job("101")
    assert not launcher.cancel_job("102")
    assert slurm.calls("scancel") == ["100"]
    slurm.answer("scancel", error="scancel: error: Kill job error on job id 100: Access/permission denied", status=1)
    with pytest.raises(SLURMError, match="permission denied"):
        launcher.cancel_job("100")
    with pytest.raises(ValueError, match="job_id is 'all'"):
        launcher.cancel_job("all")


def test_record_that_is_damaged(launcher: SLURMLauncher) -> None:
    launcher.submit_experiment(experiment())
    (launcher.output_dir / "one" / "submission.json").write_text("{")
    with pytest.raises(SLURMError, match=r"submission.json cannot be read: .*then remove the file"):
        launcher.submit_experiment(experiment())


def test_folder_that_cannot_be_written(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobSubmissionError, match=r"output_dir .*/file/out cannot be written: Not a directory"):
        SLURMLauncher(output_dir=tmp_path / "file" / "out").submit_experiment(experiment())


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_that_is_none(launcher: SLURMLauncher, limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_concurrent_jobs is {limit}; it must be 1 or more"):
        launcher.submit_experiment_batch(batch(1), max_concurrent_jobs=limit)


def jobs(tmp_path: Path, sizes: list[int]) -> list[Job]:
    """Return jobs that ask for so many nodes each."""
    template, source = read_template(None), Source(tmp_path)
    found = [experiment(f"e{index}", slurm={"nodes": size}) for index, size in enumerate(sizes)]
    return [prepare(one, tmp_path, template, source, Outlook()) for one in found]


@pytest.mark.parametrize("limit", [1, 3, 7, 50])
@pytest.mark.parametrize("largest", [2, 5, 1001])
@pytest.mark.parametrize("sizes", [[1] * 12, [1, 2] * 6, [1]])
def test_slurm_holds_the_limit(tmp_path: Path, sizes: list[int], largest: int, limit: int) -> None:
    found = requests(jobs(tmp_path, sizes), limit, [], largest, "lane")
    assert sorted(job.name for request in found for job in request.jobs) == sorted(f"e{n}" for n in range(len(sizes)))
    assert all(len(request.jobs) <= largest for request in found)
    by_lane: dict[str, int] = {}
    for index, request in enumerate(found):
        name = request.job_name if request.is_singleton else f"free {index}"
        by_lane[str(name)] = max(
            by_lane.get(str(name), 0), min(request.throttle or len(request.jobs), len(request.jobs))
        )
    assert sum(by_lane.values()) <= limit
    assert sum(by_lane.values()) == min(limit, len(sizes)) or largest == 2, "and uses what it may"


def test_lanes_are_balanced_by_time_limit(tmp_path: Path) -> None:
    template = read_template(None)
    found = [
        experiment(f"e{index}", slurm={"time_limit": limit})
        for index, limit in enumerate(["3:00:00", "60", "61", "59"])
    ]
    prepared = [prepare(one, tmp_path, template, Source(tmp_path), Outlook()) for one in found]
    lanes = [request.job_name for request in requests(prepared, 2, [], 1001, "x")]
    assert lanes == ["x-lane-1", "x-lane-2", "x-lane-2", "x-lane-2"]


def test_place_of_a_job_with_percent_signs(tmp_path: Path) -> None:
    assert Place(tmp_path / "50%", tmp_path).log == f"{tmp_path}/50%%/logs/slurm-%j.out"


def test_pauses_grow_and_end_with_the_patience() -> None:
    assert list(islice(Patience(1000.0).pauses(), 7)) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert next(Patience(0.2).pauses()) <= 0.2
    assert list(Patience(0.0).pauses()) == []
