"""ModelTrainingFramework without a cluster: no Slurm on PATH, stand-ins of its commands, runs on this machine."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_training_framework import (
    ConfigurationError,
    ExecutionMode,
    GridSearchResult,
    ModelTrainingFramework,
    ParameterGrid,
)
from model_training_framework.config import ConfigurationManager, ExperimentState, NamingStrategy
from model_training_framework.slurm import GitOperationError, SLURMError, SLURMLauncher
from tests.launch.examples import small, transformer
from tests.launch.fake_slurm import FakeSlurm, fake_slurm

DRY_RUN, LOCAL, SLURM = ExecutionMode.DRY_RUN, ExecutionMode.LOCAL, ExecutionMode.SLURM
PLANNED, COMPLETED, FAILED = ExperimentState.PLANNED, ExperimentState.COMPLETED, ExperimentState.FAILED
SUBMITTED, REFUSED = ExperimentState.SUBMITTED, ExperimentState.REFUSED
# Fails for a seed that a file names.
COMMAND = "echo {experiment_name} >> ran; test ! -e fails-{experiment_name}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave on PATH what a machine without Slurm has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "echo", "git", "mkdir", "test"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm-bin", monkeypatch)


def seeds(*values: int) -> ParameterGrid:
    grid = ParameterGrid("seeds")
    grid.add_parameter("seed", values)
    return grid


def base(**sections: Any) -> dict[str, Any]:
    return {**small(), "command": COMMAND, **sections}


def search(project: Path, mode: ExecutionMode, *values: int, **more: Any) -> GridSearchResult:
    more.setdefault("naming_strategy", NamingStrategy.DESCRIPTIVE)
    content = more.pop("base_config", None) or base()
    return ModelTrainingFramework(project).run_grid_search([seeds(*values)], content, execution_mode=mode, **more)


def states(result: GridSearchResult) -> list[ExperimentState]:
    return [experiment.state for experiment in result.experiments]


@pytest.mark.usefixtures("no_slurm")
def test_dry_run_prints_the_table_and_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = search(project, DRY_RUN, 1, 2, base_config={**transformer(), "command": COMMAND})
    assert capsys.readouterr().out == f"{result.text()}\n"
    assert states(result) == [PLANNED, PLANNED]
    assert all(experiment.forecast is not None and experiment.job_id is None for experiment in result.experiments)
    assert result.submitted_jobs == []
    assert list(project.iterdir()) == []


@pytest.mark.usefixtures("no_slurm")
def test_what_cannot_be_predicted_is_planned_and_says_why(project: Path) -> None:
    (experiment,) = search(project, DRY_RUN, 1).experiments
    assert experiment.state is PLANNED
    assert experiment.reason is not None
    assert experiment.reason.startswith("not predicted: model 'mlp' cannot be predicted without model.hidden_size")


@pytest.mark.usefixtures("no_slurm")
def test_local_runs_again_only_what_failed_or_is_new(project: Path) -> None:
    (project / "fails-small_seed=2").touch()
    first = search(project, LOCAL, 1, 2)
    assert states(first) == [COMPLETED, FAILED]
    assert "exit status 1" in str(first.experiments[1].reason)
    assert (first.success_rate, len(first.submitted_jobs)) == (0.5, 2)
    (project / "fails-small_seed=2").unlink()
    planned = search(project, DRY_RUN, 1, 2, 3)
    assert states(planned) == [COMPLETED, PLANNED, PLANNED]
    assert [experiment.is_new for experiment in planned.experiments] == [False, True, True]
    second = search(project, LOCAL, 1, 2, 3)
    assert states(second) == [COMPLETED] * 3
    assert len(second.submitted_jobs) == 2
    ran = (project / "ran").read_text().split()
    assert sorted(ran) == ["small_seed=1", "small_seed=2", "small_seed=2", "small_seed=3"]
    assert search(project, LOCAL, 1, 2, 3).submitted_jobs == []


@pytest.mark.usefixtures("no_slurm")
def test_slurm_mode_without_slurm_is_refused_and_leaves_nothing_in_the_way(project: Path) -> None:
    for values in ((1,), (1, 2)):
        with pytest.raises(SLURMError, match=r"^sbatch is not on PATH.*use LOCAL or DRY_RUN$"):
            search(project, SLURM, *values)
    assert list(project.iterdir()) == []
    assert states(search(project, LOCAL, 1, 2)) == [COMPLETED, COMPLETED]


@pytest.mark.usefixtures("no_slurm")
def test_an_output_folder_is_relative_to_where_the_call_is_made(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    result = search(project, LOCAL, 1, output_dir="runs")
    assert result.output_dir == other / "runs"
    assert (other / "runs" / "small_seed=1" / "config.yaml").is_file()
    assert (project / "ran").is_file(), "commands start in the project"
    assert search(project, DRY_RUN, 1).output_dir == project / "experiments"


def test_slurm_submits_an_array_once(project: Path, slurm: FakeSlurm) -> None:
    first = search(project, SLURM, 1, 2, 3, max_concurrent_jobs=2)
    assert first.submitted_jobs == ["100_0", "100_1", "100_2"]
    (call,) = slurm.calls("sbatch")
    assert "--array=0-2%2" in call
    slurm.answer("squeue", "100_[0-2%2]|PENDING|Resources|submit.sbatch\n")
    again = search(project, SLURM, 1, 2, 3, max_concurrent_jobs=2)
    assert states(again) == [SUBMITTED] * 3
    assert again.submitted_jobs == []
    assert [experiment.job_id for experiment in again.experiments] == ["100_0", "100_1", "100_2"]
    assert len(slurm.calls("sbatch")) == 1


def test_a_completed_job_is_neither_submitted_nor_planned_again(project: Path, slurm: FakeSlurm) -> None:
    search(project, SLURM, 1, 2)
    (project / "experiments" / "small_seed=1" / "exit_code").write_text("0\n")
    (project / "experiments" / "small_seed=2" / "exit_code").write_text("1\n")
    assert states(search(project, DRY_RUN, 1, 2)) == [COMPLETED, PLANNED]
    assert search(project, SLURM, 1, 2).submitted_jobs == ["101"]


def test_same_name_with_other_parameters_is_refused_also_when_planned(project: Path, slurm: FakeSlurm) -> None:
    search(project, SLURM, 1)
    slurm.answer("squeue", "100|RUNNING|None|submit.sbatch\n")
    other = base(description="said otherwise", optimizer={"name": "adamw"})
    for mode in (DRY_RUN, SLURM):
        (experiment,) = search(project, mode, 1, base_config=other).experiments
        assert experiment.state is REFUSED
        assert "optimizer.name" in str(experiment.reason)
    assert len(slurm.calls("sbatch")) == 1


def test_what_does_not_fit_is_refused_unless_forced_and_runs_here(project: Path, slurm: FakeSlurm) -> None:
    large = transformer(model={"hidden_size": 8192, "num_layers": 80, "num_heads": 64})
    content = {**large, "command": COMMAND}
    for mode in (DRY_RUN, SLURM):
        (experiment,) = search(project, mode, 1, base_config=content).experiments
        assert experiment.state is REFUSED
        assert "GiB on the fullest GPU and Perlmutter has 80.0" in str(experiment.reason)
    assert slurm.calls("sbatch") == []
    assert states(search(project, DRY_RUN, 1, base_config=content, force=True)) == [PLANNED]
    assert states(search(project, SLURM, 1, base_config=content, force=True)) == [SUBMITTED]
    assert states(search(project, LOCAL, 1, base_config=content, output_dir=project / "here")) == [COMPLETED]


def test_a_time_limit_comes_from_the_prediction(project: Path, slurm: FakeSlurm) -> None:
    content = {**transformer(slurm={"time_limit": "auto"}), "command": COMMAND}
    result = search(project, SLURM, 1, base_config=content)
    (experiment,) = result.experiments
    assert experiment.forecast is not None
    script = (project / "experiments" / experiment.name / "job.sbatch").read_text()
    (line,) = [line for line in script.splitlines() if "--time=" in line]
    hours, minutes, seconds = map(int, line.partition("=")[2].split(":"))
    limit_s = 3600 * hours + 60 * minutes + seconds
    high_s = 3600 * experiment.forecast.to_dict()["high_hours"]
    assert high_s < limit_s < 1.2 * high_s + 1800
    record = json.loads((project / "experiments" / experiment.name / "submission.json").read_text())
    assert record["predicted"]["high_hours"] == experiment.forecast.to_dict()["high_hours"]


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"prediction": {"system": "Perlmuter"}}, "Did you mean Perlmutter?"),
        ({"training": {"max_steps": None, "epochs": 2}}, "set training.max_steps, or data.num_samples"),
    ],
)
def test_a_time_limit_that_cannot_be_predicted_says_why(
    project: Path, slurm: FakeSlurm, sections: dict[str, Any], reason: str
) -> None:
    content = transformer(slurm={"time_limit": "auto"}, **sections)
    for mode in (DRY_RUN, SLURM):
        (experiment,) = search(project, mode, 1, base_config=content).experiments
        assert experiment.state is REFUSED
        assert str(experiment.reason).startswith("slurm.time_limit is auto: ")
        assert reason in str(experiment.reason)
    assert slurm.calls("sbatch") == []
    assert states(search(project, LOCAL, 1, base_config={**content, "command": COMMAND})) == [COMPLETED]


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.email=a@b", "-c", "user.name=a", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_jobs_run_the_commit_and_uncommitted_changes_are_refused(
    project: Path, slurm: FakeSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "train.py").write_text("first\n")
    (project / ".gitignore").write_text("experiments/\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Train"]):
        git(project, *words)
    assert search(project, SLURM, 1).submitted_jobs == ["100"]
    record = json.loads((project / "experiments" / "small_seed=1" / "submission.json").read_text())
    assert record["commit"] == git(project, "rev-parse", "HEAD")
    (project / "train.py").write_text("second\n")
    assert (Path(record["worktree"]) / "train.py").read_text() == "first\n"
    with pytest.raises(GitOperationError, match=r"train\.py"):
        search(project, SLURM, 2)
    with caplog.at_level(logging.WARNING):
        assert states(search(project, DRY_RUN, 2)) == [PLANNED]
    assert "without uncommitted changes of train.py" in caplog.text
    framework = ModelTrainingFramework(project, allow_dirty=True)
    assert framework.run_grid_search([seeds(2)], base()).submitted_jobs == ["101"]


def test_the_folder_of_experiments_is_none_of_the_project_s_files(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    git(project, "init", "-q")
    git(project, "commit", "-qm", "Begin", "--allow-empty")
    for seed in (1, 2):
        assert states(search(project, LOCAL, seed)) == [COMPLETED]
    assert caplog.text == ""
    assert git(project, "status", "--porcelain") == ""


def test_a_folder_that_is_not_in_the_commit_is_named(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "commit", "-qm", "Begin", "--allow-empty")
    new = project / "new"
    new.mkdir()
    with pytest.raises(GitOperationError, match=r"new is not in commit .* commit its files"):
        search(new, LOCAL, 1)


def test_a_repository_without_a_commit_runs_as_it_is(project: Path, slurm: FakeSlurm) -> None:
    git(project, "init", "-q")
    assert states(search(project, LOCAL, 1)) == [COMPLETED]


def test_several_grids_follow_one_another_in_both_kinds_of_call(project: Path) -> None:
    framework = ModelTrainingFramework(project)
    path = project / "configs" / "base.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(base()))
    for said in ({"base_config": "base"}, {"base_config": path}, {"base_config_path": "base.yaml"}):
        result = framework.run_grid_search([seeds(2, 1), seeds(3)], execution_mode=DRY_RUN, **said)
        assert [config.seed for config in result.generated_experiments] == [2, 1, 3]
    one = framework.run_grid_search(seeds(1), base(), execution_mode=DRY_RUN)  # type: ignore[arg-type]
    assert one.total_experiments == 1, "a single grid is taken for a list of it"
    assert framework.run_grid_search([], base(), execution_mode=DRY_RUN).text() == "no experiments"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give base_config or base_config_path"),
        ({"base_config": small(), "base_config_path": "x.yaml"}, "one of them, and not both"),
        ({"base_config_path": "absent.yaml"}, "absent.yaml does not exist"),
        ({"base_config": {**small(), "modle": {}}}, "modle is not a known key. Did you mean model?"),
        ({"base_config": {"experiment_name": "x"}}, "is required"),
        ({"base_config": 3}, "3"),
        ({"base_config": small(), "naming_strategy": "by age"}, "naming strategy"),
        ({"base_config": small(), "max_concurrent_jobs": 0}, "max_concurrent_jobs is 0"),
        ({"base_config": small(), "execution_mode": "cloud"}, "cloud"),
    ],
)
def test_bad_arguments_are_value_errors_of_one_line(project: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        ModelTrainingFramework(project).run_grid_search([seeds(1)], **{"execution_mode": DRY_RUN, **arguments})
    assert "\n" not in str(caught.value)


def test_a_project_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder"):
        ModelTrainingFramework(tmp_path / "absent")


def test_the_parts_belong_to_the_project(project: Path) -> None:
    framework = ModelTrainingFramework(str(project), "settings")
    manager, launcher = framework.get_config_manager(), framework.get_slurm_launcher()
    assert isinstance(manager, ConfigurationManager)
    assert manager is framework.get_config_manager()
    assert isinstance(launcher, SLURMLauncher)
    assert (launcher.output_dir, launcher.project_root) == (project / "experiments", project)
