"""The shipped job script, run by bash beside stand-ins of srun and scontrol: what it records, and when it requeues."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_training_framework.slurm import JobStatus, JobSubmissionError, Outlook
from model_training_framework.slurm.claims import claim_script
from model_training_framework.slurm.job_values import (
    Place,
    command,
    further_starts,
    options,
    seconds_text,
    time_limit,
    values,
)
from model_training_framework.slurm.records import preemptions
from model_training_framework.slurm.template import header, read_template, render
from tests.launch.fake_slurm import experiment
from tests.launch.job_script import Script


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


SAVES = "trap 'echo saved > saved; exit 75' USR1 TERM; for i in {1..200}; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("line", "status", "end"),
    [("true", 0, JobStatus.COMPLETED), ("exit 3", 3, JobStatus.FAILED), ("exec false", 1, JobStatus.FAILED)],
)
def test_ends_for_good(script: Script, line: str, status: int, end: JobStatus) -> None:
    assert script.run(line) == status
    assert script.end is end
    assert (script.experiment_dir / "exit_code").read_text() == f"{status}\n"
    assert "requeue" not in script.calls("scontrol")
    assert not list(script.experiment_dir.glob(".*")), "nothing half-written is left"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_told_to_save_it_goes_back_to_the_queue(script: Script, number: signal.Signals) -> None:
    assert script.signalled(SAVES, number) == 75
    assert (script.folder / "saved").exists()
    assert "requeue 5_2" in script.calls("scontrol"), "the task, not the array whose id the last task has"
    assert script.end is None


def test_killed_by_the_signal_it_goes_back_to_the_queue(script: Script) -> None:
    assert script.signalled("exec sleep 20", signal.SIGTERM) == 75
    assert "requeue 5_2" in script.calls("scontrol")


def test_told_to_save_but_failed_by_itself(script: Script) -> None:
    assert script.signalled("trap 'exit 4' USR1; for i in {1..200}; do sleep 0.05; done", signal.SIGUSR1) == 4
    assert script.end is JobStatus.FAILED
    assert "requeue" not in script.calls("scontrol")


def test_max_preemptions(script: Script) -> None:
    preemption = {"max_preemptions": 2}
    assert script.run("exit 75", restarts=1, preemption=preemption) == 75
    assert script.end is None
    script.says(restarts=2)
    assert script.run("exit 75", restarts=2, preemption=preemption) == 75
    assert script.end is JobStatus.PREEMPTED
    assert preemptions(script.experiment_dir) == 2
    assert script.calls("scontrol").count("requeue") == 1
    script.says(restarts=3)
    assert script.run("touch never", restarts=3, preemption=preemption) == 75, "Slurm itself requeued it once more"
    assert not (script.folder / "never").exists()


def test_slurm_refuses_to_requeue(script: Script) -> None:
    (script.folder / "no_requeue").touch()
    assert script.run("exit 75") == 75
    assert script.end is JobStatus.PREEMPTED


def test_requeue_is_off(script: Script) -> None:
    assert script.run("exit 75", slurm={"requeue": False}) == 75
    assert script.end is JobStatus.PREEMPTED
    assert "requeue" not in script.calls("scontrol")


@pytest.mark.parametrize(
    ("reason", "restarts", "end"),
    [
        ("None", 0, JobStatus.CANCELLED),
        ("TimeLimit", 0, JobStatus.TIMEOUT),
        ("NodeDown", 0, JobStatus.NODE_FAIL),
        ("None", 1, None),
    ],
)
@pytest.mark.parametrize("line", [SAVES, "exec sleep 20"])
def test_ended_by_slurm(script: Script, reason: str, restarts: int, end: JobStatus | None, line: str) -> None:
    script.says("COMPLETING", reason, restarts)
    script.signalled(line, signal.SIGTERM)
    assert script.end is end, "Restarts in the controller says whether Slurm itself requeued the job"
    assert "requeue" not in script.calls("scontrol")


def test_node_lost_under_a_step_is_no_success(script: Script) -> None:
    script.says("COMPLETING", "None", restarts=1)
    (script.folder / "srun.loses_node").touch()
    script.run("sleep 1")
    assert script.end is None


def test_done_in_the_moment_of_a_preemption(script: Script) -> None:
    assert script.run("echo run >> runs") == 0
    script.says(restarts=1)
    assert script.run("echo run >> runs", restarts=1) == 0
    assert (script.folder / "runs").read_text() == "run\n"


def test_a_step_that_did_not_start_is_tried_again(script: Script) -> None:
    (script.folder / "srun.broken").touch()
    assert script.run("echo run >> runs") == 0
    assert (script.folder / "runs").read_text() == "run\n"
    assert script.calls("srun").count("start") == 2


def test_a_failure_is_not_tried_again(script: Script) -> None:
    assert script.run("exit 1") == 1
    assert script.calls("srun").count("start") == 1


def test_setup_that_fails(script: Script) -> None:
    assert script.run("touch never", slurm={"setup": ["false || exit 9"]}) == 9
    assert script.end is JobStatus.FAILED
    assert not (script.folder / "never").exists()


def test_modules_that_are_not_there(script: Script) -> None:
    assert script.run("touch never", slurm={"modules": ["cuda/12; touch bad"]}) == 1
    assert script.end is JobStatus.FAILED
    assert not (script.folder / "bad").exists()


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=30))
def test_any_value_reaches_the_command(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    script = Script(tmp_path_factory.mktemp("value"))
    assert script.run('printf %s "$VALUE" > value', slurm={"environment": {"VALUE": value}}) == 0
    assert (script.folder / "value").read_text() == value


def test_command_is_filled_in(tmp_path: Path) -> None:
    place = Place(tmp_path / "it's here", tmp_path)
    found = command(experiment("one", "run {config} --to {experiment_dir} ${HOME} {a,b}"), place)
    assert shlex.split(found)[:4] == ["run", str(place.config), "--to", str(place.folder)]
    assert "${HOME} {a,b}" in found
    steps = experiment("one", "run --lr {training.learning_rate} {a.b}").training
    filled = command(experiment("one", "run --lr {training.learning_rate} {a.b}"), place)
    assert filled == f"run --lr {steps.learning_rate} {{a.b}}"
    with pytest.raises(JobSubmissionError, match=r"command takes \{custom_params.tokenizer\}, which the experiment"):
        command(experiment("one", "run {custom_params.tokenizer}"), place)
    with pytest.raises(JobSubmissionError, match=r"command has \{confg\}, which is not known. Did you mean config"):
        command(experiment("one", "run {confg}"), place)


def test_options(tmp_path: Path) -> None:
    slurm = {
        "partition": "gpu", "account": "a", "qos": "q", "constraint": "a100|h100", "mem": "32G", "gres": "gpu:a100:4",
        "nodes": 2, "ntasks_per_node": 4, "cpus_per_task": 8, "time_limit": "1:00:00",
        "additional_args": ["--exclusive", "--mail-type", "END"], "requeue": False,
    }  # fmt: skip
    found = experiment("one", slurm=slurm)
    assert options(found, Place(tmp_path / "one", tmp_path), "1:00:00") == [
        "--job-name=one", f"--output={tmp_path}/one/logs/slurm-%j.out", "--open-mode=append", "--signal=B:USR1@60",
        "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=8", "--mem=32G", "--gres=gpu:a100:4", "--time=1:00:00",
        "--partition=gpu", "--account=a", "--qos=q", "--constraint=a100|h100", "--no-requeue", "--exclusive",
        "--mail-type END",
    ]  # fmt: skip
    assert "--cpus-per-task=8" in str(values(found, Place(tmp_path / "one", tmp_path), None, None)["launch"])


def test_a_prediction_longer_than_the_partition_allows_is_several_starts(tmp_path: Path) -> None:
    slurm = {"time_limit": "auto"}
    found, outlook = experiment("one", slurm=slurm), Outlook(time_limit_s=10 * 3600.0)
    starts = further_starts(found, outlook, 4 * 3600.0)
    assert (time_limit(found, outlook, longest_s=4 * 3600.0), starts) == ("04:00:00", 2), "4 hours less a minute each"
    written = values(found, Place(tmp_path / "one", tmp_path), "04:00:00", None, starts)
    assert written["max_preemptions"] == "5", "three preemptions, as ever"
    assert further_starts(found, outlook, None) == further_starts(found, outlook, 11 * 3600.0) == 0
    assert time_limit(found, outlook, longest_s=11 * 3600.0) == "10:01:00"
    held = experiment("one", slurm=slurm | {"requeue": False})
    with pytest.raises(
        JobSubmissionError, match=r"needs 10:01:00 and its partition ends jobs after 04:00:00; set slurm"
    ):
        further_starts(held, outlook, 4 * 3600.0)


@pytest.mark.parametrize("word", ["--array=0-3", "-a", "--wrap=x", "--dependency=afterok:1", "--output=x", "-Jx"])
def test_options_that_are_the_launchers(tmp_path: Path, word: str) -> None:
    with pytest.raises(JobSubmissionError, match=r"the launcher sets .* itself; leave it out"):
        options(experiment(slurm={"additional_args": [word]}), Place(tmp_path, tmp_path), None)


def test_additional_argument_that_is_no_option(tmp_path: Path) -> None:
    with pytest.raises(JobSubmissionError, match="starts with 'exclusive'; expected an option"):
        options(experiment(slurm={"additional_args": ["exclusive"]}), Place(tmp_path, tmp_path), None)


def test_time_limits() -> None:
    assert time_limit(experiment(), Outlook(10.0)) is None
    assert time_limit(experiment(slurm={"time_limit": "90"}), Outlook(1e9)) == "90"
    assert time_limit(experiment(slurm={"time_limit": "auto"}), Outlook(7200.0)) == "02:01:00", (
        "the prediction and the grace period"
    )
    assert seconds_text(1.0) == "00:01:00"
    assert time_limit(experiment(slurm={"time_limit": "auto"}), Outlook(), is_here=True) == "UNLIMITED"
    with pytest.raises(JobSubmissionError, match=r"slurm.time_limit is auto: nothing was predicted"):
        time_limit(experiment(slurm={"time_limit": "auto"}), Outlook())
    with pytest.raises(
        JobSubmissionError, match=r"is 0:30; it must be longer than preemption.grace_period_seconds, 60"
    ):
        time_limit(experiment(slurm={"time_limit": "0:30"}), Outlook())


def written(tmp_path: Path, text: str) -> tuple[str, str]:
    (tmp_path / "own.sbatch").write_text(text)
    return read_template(tmp_path / "own.sbatch")


def test_template_of_the_users_own(tmp_path: Path) -> None:
    found = experiment("one", "echo {config}", slurm={"partition": "gpu"})
    text = "#!/bin/sh -e\n#SBATCH -p {{partition}} --nodes={{ nodes }}\n# a comment\ncd {{project_dir}}\n{{command}}\n"
    made = render(*written(tmp_path, text), values(found, Place(tmp_path / "one", tmp_path), None, None))
    assert made.splitlines()[1:3] == ["#SBATCH -p gpu --nodes=1", "# a comment"]
    assert made.splitlines()[-2:] == [f"cd {tmp_path}", f"echo {tmp_path}/one/config.yaml"]
    assert made.splitlines()[3:-2] == claim_script(tmp_path / "one").splitlines(), "before all else the claim"
    assert header(made) == ["#SBATCH -p gpu --nodes=1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\n{{comand}}\n", r"line 2: \{\{comand\}\} is no placeholder. Did you mean command\?"),
        ("#!/bin/sh\n{{command}}\n{{two words}}\n", r"line 3: \{\{two words\}\} is no placeholder"),
        (
            "#!/bin/sh\n#SBATCH -p {{partition}}\n{{command}}\n",
            r"line 2: \{\{partition\}\} needs slurm.partition, which",
        ),
        ("#!/bin/sh\necho done\n", r"never runs the experiment: \{\{launch\}\} is missing"),
        ("echo {{command}}\n", "sbatch wants a shell there"),
    ],
)
def test_template_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(JobSubmissionError, match=message):
        render(*written(tmp_path, text), values(experiment(), Place(tmp_path / "one", tmp_path), None, None))


def test_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobSubmissionError, match="No such file"):
        read_template(tmp_path / "nowhere.sbatch")
