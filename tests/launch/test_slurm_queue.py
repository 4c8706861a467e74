"""Slurm's answers are understood as recorded from 22.05: every state, arrays, and a controller that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_training_framework.slurm import JobStatus, SLURMError
from model_training_framework.slurm.commands import Patience, ask
from model_training_framework.slurm.queue import (
    accounted,
    base_id,
    expand,
    find_command,
    longest_job_s,
    parse_record,
    parse_sacct,
    parse_squeue,
    queue_of,
)
from model_training_framework.slurm.states import parse_state, status_of_exit
from tests.launch.fake_slurm import AWAY, NO_SUCH_JOB, FakeSlurm, fake_slurm

SQUEUE = """\
1|CANCELLED|None|/scratch/a/submit.sbatch
4|PENDING|BeginTime|/scratch/b/submit.sbatch
5|TIMEOUT|TimeLimit|/scratch/c d/submit.sbatch
2|RUNNING|None|/scratch/e/submit.sbatch my token|x
11_[0-2,5,7-9:2%2]|PENDING|JobHeldUser|(null)
12_3|COMPLETING|None|(null)
"""
SACCT = """\
20|COMPLETED
21|CANCELLED by 1000
22_0|OUT_OF_MEMORY
22_[1-2]|PENDING
23|NODE_FAIL
23|RUNNING
"""
RECORD = (
    "JobId=9 JobName=wrap UserId=root(0) JobState=FAILED Reason=BadConstraints Requeue=1 Restarts=2 ExitCode=0:1 "
    "NodeList= Command=(null) WorkDir=/tmp\n"
)
SHORT = Patience(0.6)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "bin", monkeypatch)


def test_squeue() -> None:
    found = {entry.job_id: entry for entry in parse_squeue(SQUEUE)}
    assert found["5"].status is JobStatus.TIMEOUT
    assert found["5"].command == "/scratch/c d/submit.sbatch"
    assert found["2"].command.endswith("token|x")
    assert found["12_3"].status is JobStatus.COMPLETING
    assert [job for job in found if job.startswith("11_")] == ["11_0", "11_1", "11_2", "11_5", "11_7", "11_9"]
    assert parse_squeue("") == []


def test_sacct_and_scontrol() -> None:
    found = parse_sacct(SACCT)
    assert found["21"] is JobStatus.CANCELLED
    assert found["22_0"] is JobStatus.OUT_OF_MEMORY
    assert found["22_2"] is JobStatus.PENDING
    assert found["23"] is JobStatus.RUNNING, "the last line of a requeued job counts"
    assert parse_sacct("") == {}
    record = parse_record(RECORD)[0]
    assert (record["Restarts"], record["Reason"], record["NodeList"]) == ("2", "BadConstraints", "")


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.UNKNOWN])
def test_every_state_is_told_apart(status: JobStatus) -> None:
    assert parse_state(str(status)) is status
    assert parse_state(f"{status}+") is status
    assert status.is_active != status.is_final


@pytest.mark.parametrize("text", ["", "DANCING", "UNKNOWN"])
def test_a_state_of_a_newer_slurm_is_not_taken_for_gone(text: str) -> None:
    with pytest.raises(SLURMError, match="known are PENDING"):
        parse_state(text)


def test_exit_codes() -> None:
    assert [status_of_exit(code) for code in (0, 1, 75)] == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.PREEMPTED]


@pytest.mark.parametrize("line", ["12|RUNNING", "no separators"])
def test_squeue_that_is_not_understood(line: str) -> None:
    with pytest.raises(SLURMError, match="expected 4 fields"):
        parse_squeue(line)


@pytest.mark.parametrize("job_id", ["", "x", "12_", "12;rm", "-1", "12 13"])
def test_what_is_no_job_id(job_id: str) -> None:
    with pytest.raises(ValueError, match="expected a number such as 12"):
        base_id(job_id)


def test_expand_leaves_single_jobs_alone() -> None:
    assert list(expand("12_3")) == ["12_3"]
    assert list(expand("12_[4]")) == ["12_4"]


def test_controller_comes_back(slurm: FakeSlurm) -> None:
    slurm.answer("squeue", error=AWAY, status=1, call=1)
    slurm.answer("squeue", "7|RUNNING|None|/x\n", call=2)
    assert queue_of(["7"], SHORT)["7"].status is JobStatus.RUNNING
    assert len(slurm.calls("squeue")) == 2


def test_controller_stays_away(slurm: FakeSlurm) -> None:
    slurm.answer("squeue", error=AWAY, status=1)
    with pytest.raises(SLURMError, match=r"no answer in 1 s: .*Unable to contact slurm controller"):
        queue_of(["7"], SHORT)


def test_unknown_job_is_an_answer(slurm: FakeSlurm) -> None:
    slurm.answer("squeue", error=NO_SUCH_JOB, status=1)
    assert queue_of(["7"], SHORT) == {}
    assert len(slurm.calls("squeue")) == 1


def test_many_jobs_few_questions(slurm: FakeSlurm) -> None:
    slurm.answer("squeue", "")
    queue_of([f"{job}_{index}" for job in range(1, 700) for index in range(3)], SHORT)
    assert len(slurm.calls("squeue")) == 2


def test_accounting_that_is_off_and_accounting_that_is_down(slurm: FakeSlurm) -> None:
    assert accounted(["7"], SHORT) == {}
    slurm.answer("sacct", error="sacct: error: Problem talking to the database: Connection refused", status=1)
    with pytest.raises(SLURMError, match="Problem talking to the database"):
        accounted(["7"], SHORT)


def test_find_command_compares_whole_paths(slurm: FakeSlurm) -> None:
    slurm.answer("squeue", "8_[0-3%2]|PENDING|None|/out/12/submit.sbatch\n9|RUNNING|None|/out/1/submit.sbatch\n")
    assert find_command("/out/1/submit.sbatch", SHORT) == "9"
    assert find_command("/out/12/submit.sbatch", SHORT) == "8"
    assert find_command("/out/2/submit.sbatch", SHORT) is None


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SLURMError, match="squeue is not on PATH: this is no machine of a Slurm cluster"):
        ask("squeue", patience=SHORT)


def test_time_limit_of_a_partition(slurm: FakeSlurm) -> None:
    partitions = (
        "PartitionName=debug AllowGroups=ALL Default=NO MaxTime=00:30:00 MinNodes=0\n"
        "PartitionName=gpu AllowGroups=ALL Default=YES MaxTime=2-00:00:00 MinNodes=0\n"
    )
    slurm.answer("scontrol", partitions)
    assert longest_job_s(None, SHORT) == 172_800
    slurm.answer("scontrol", partitions.splitlines()[0])
    assert longest_job_s("debug", SHORT) == 1_800
    assert slurm.calls("scontrol")[-1] == "show partition --oneliner debug"
    slurm.answer("scontrol", "PartitionName=long Default=NO MaxTime=UNLIMITED\n")
    assert longest_job_s("long", SHORT) is None


def test_settings_of_the_user_do_not_change_the_format(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm.folder / "squeue").write_text("#!/bin/sh\nprintf '%s' \"$SQUEUE_STATES$SQUEUE_FORMAT$SQUEUE_SORT\"\n")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert ask("squeue", patience=SHORT).output == ""


def test_job_that_we_run_in_is_not_handed_on(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm.folder / "sbatch").write_text("#!/bin/sh\nenv | grep ^SLURM_ | sort\n")
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_NTASKS", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    assert ask("sbatch", patience=SHORT).output == "SLURM_CONF=1\n"
