"""Answers of the command line: one function a command."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from model_training_framework.config import ConfigurationError, ExecutionMode, ExperimentConfig, NamingStrategy
from model_training_framework.config.search import Experiment
from model_training_framework.core import ModelTrainingFramework
from model_training_framework.run_health import health_of
from model_training_framework.slurm import JobStatus, SLURMLauncher
from model_training_framework.slurm.records import exit_status, preemptions
from model_training_framework.utils.tables import aligned
from predictor.watch.health import Health
from predictor.watch.json_document import to_json
from predictor.watch.words import brief

JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?|local-.+")
AT_A_TERMINAL_S = 20.0  # for questions; submissions wait for a controller that restarts
COLUMNS = ("experiment", "state", "reason", "job", "preempted", "exit", "health")


class Answer(NamedTuple):
    """What a command prints, and whether nothing failed or was refused."""

    text: str
    is_good: bool = True


class Row(NamedTuple):
    """An experiment that was submitted."""

    name: str
    state: JobStatus
    reason: str
    job_id: str | None
    preemptions: int
    exit_status: int | None
    health: Health | None


def grid(arguments: argparse.Namespace) -> Answer:
    """Predict, run or submit a grid."""
    framework = _framework(arguments)
    grids = framework.get_config_manager().load_grids(arguments.grids)
    strategy = NamingStrategy(arguments.naming)
    experiments = framework.grid_experiments(grids, arguments.base, naming_strategy=strategy)
    return _run(framework, experiments, arguments)


def submit(arguments: argparse.Namespace) -> Answer:
    """Predict, run or submit experiments."""
    framework = _framework(arguments)
    manager = framework.get_config_manager()
    return _run(framework, [manager.load_experiment(path) for path in arguments.configs], arguments)


def status(arguments: argparse.Namespace) -> Answer:
    """Tell the states of submitted experiments."""
    rows = _rows(_launcher(arguments), arguments.names, is_health_asked=True)
    if arguments.json:
        content = [{**row._asdict(), "state": str(row.state), "health": _health_json(row.health)} for row in rows]
        return Answer(f"{json.dumps(content, indent=2)}\n")
    if not rows:
        return Answer(f"no experiments in {_launcher(arguments).output_dir}\n")
    lines = aligned([dict(zip(COLUMNS, _cells(row), strict=True)) for row in rows], COLUMNS)
    return Answer("\n".join([*lines, ""]))


def cancel(arguments: argparse.Namespace) -> Answer:
    """Cancel experiments by name or job."""
    launcher = _launcher(arguments)
    if arguments.all == bool(arguments.names):
        raise ConfigurationError("name the experiments to cancel, or give --all")
    jobs: dict[str, str] = {}
    known = {path.parent.name for path in launcher.output_dir.glob("*/submission.json")}
    names = [name for name in arguments.names if name in known]
    if arguments.all or names:
        jobs = {row.name: row.job_id for row in _rows(launcher, names) if row.job_id is not None}
    strange = next((name for name in arguments.names if name not in known and not JOB_ID.fullmatch(name)), None)
    if strange is not None:
        raise ConfigurationError(f"{strange} is no submitted experiment of {launcher.output_dir}, and no id of a job")
    jobs |= {job_id: job_id for job_id in arguments.names if job_id not in known}
    cancelled = [name for name, job_id in jobs.items() if launcher.cancel_job(job_id)]
    lines = [f"{name}: {'cancelled' if name in cancelled else 'had ended'}" for name in jobs]
    return Answer("\n".join([*lines, ""]) if lines else "nothing to cancel\n")


def logs(arguments: argparse.Namespace) -> Answer:
    """Return the end of what an experiment's newest job printed."""
    if arguments.lines < 1:
        raise ConfigurationError(f"--lines is {arguments.lines}; it must be 1 or more")
    folder = _launcher(arguments).output_dir / arguments.name
    files = sorted((folder / "logs").glob("*.out"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ConfigurationError(
            f"{folder / 'logs'} has no output: the experiment has not started, or has another name"
        )
    with files[-1].open(encoding="utf-8", errors="replace") as stream:
        return Answer("".join(deque(stream, maxlen=arguments.lines)))


def _framework(arguments: argparse.Namespace) -> ModelTrainingFramework:
    template = getattr(arguments, "template", None)
    is_dirty_allowed = getattr(arguments, "allow_dirty", False)
    return ModelTrainingFramework(arguments.project, None, template, allow_dirty=is_dirty_allowed)


def _launcher(arguments: argparse.Namespace) -> SLURMLauncher:
    return _framework(arguments).get_slurm_launcher(output_dir=arguments.output, patience_s=AT_A_TERMINAL_S)


def _run(
    framework: ModelTrainingFramework,
    experiments: Sequence[Experiment | ExperimentConfig],
    arguments: argparse.Namespace,
) -> Answer:
    result = framework.run_experiments(
        experiments,
        ExecutionMode(arguments.mode),
        arguments.output,
        arguments.max_concurrent_jobs,
        force=arguments.force,
    )
    text = json.dumps(result.to_dict(), indent=2) if arguments.json else result.text()
    return Answer(f"{text}\n", is_good=not result.failed_submissions)


def _rows(launcher: SLURMLauncher, names: Sequence[str], is_health_asked: bool = False) -> list[Row]:
    """Return the experiments of these names, or all; never submitted ones are an error."""
    known = sorted(path.parent.name for path in launcher.output_dir.glob("*/submission.json"))
    strange = next((name for name in names if name not in known), None)
    if strange is not None:
        raise ConfigurationError(f"{strange} is no submitted experiment of {launcher.output_dir}; see status")
    found = launcher.get_states(names or known)
    rows = []
    for name in names or known:
        folder = launcher.output_dir / name
        earlier = found.get(name)
        state, reason = (earlier.status, earlier.reason) if earlier else (JobStatus.UNKNOWN, "")
        job_id = earlier.record.job_id if earlier else None
        health = None
        if is_health_asked and earlier is not None:
            health = health_of(folder, earlier.record.predicted, None if state.is_final else time.time())
        rows.append(Row(name, state, reason, job_id, preemptions(folder), exit_status(folder), health))
    return rows


def _health_json(health: Health | None) -> dict[str, Any] | None:
    return None if health is None else to_json(health, [], time.time())


def _cells(row: Row) -> tuple[str, ...]:
    exit_status = "-" if row.exit_status is None else str(row.exit_status)
    health = "" if row.health is None else brief(row.health)
    return row.name, str(row.state), row.reason, row.job_id or "-", str(row.preemptions), exit_status, health
