"""Values of a job script: an experiment's configuration as options of sbatch and as shell code."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from model_training_framework.config import ExperimentConfig, SLURMConfig
from model_training_framework.config.fields import AUTO, UNLIMITED, duration_s
from model_training_framework.slurm.claims import claim_script
from model_training_framework.slurm.errors import JobSubmissionError
from model_training_framework.slurm.results import Outlook
from model_training_framework.slurm.start import launch, launch_here, num_tasks, tasks_per_node
from predictor.core.base.errors import nearest

FILLED_IN = re.compile(r"(?<![$\{])\{([A-Za-z_][\w.]*)\}")
SECTIONS = ("model", "training", "data", "optimizer", "scheduler", "custom_params")  # whose keys a command may take
# The launcher decides these for all jobs of a batch.
OURS = (
    "--array", "-a", "--wrap", "--parsable", "--test-only", "--wait", "-W", "--clusters", "-M", "--dependency", "-d",
    "--output", "-o", "--open-mode", "--requeue", "--no-requeue", "--signal", "--job-name", "-J",
)  # fmt: skip
HEADER_CHARACTERS = re.compile(r"[A-Za-z0-9_@%+=:,./^~\[\]*&|!<>-]+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs and writes.

    Attributes:
        folder: of the experiment.
        project: folder that the command starts in.
        log: output of the job, with sbatch's ``%j``.
    """

    folder: Path
    project: Path

    @property
    def config(self) -> Path:
        """Return the file with the whole configuration."""
        return self.folder / "config.yaml"

    @property
    def log(self) -> str:
        """Return the job's output as sbatch --output takes it, where %j is the job's id."""
        return str(self.folder).replace("%", "%%") + "/logs/slurm-%j.out"


def seconds_text(seconds: float) -> str:
    """Return a duration as sbatch --time takes it, rounded up to whole minutes, which is Slurm's resolution.

    >>> seconds_text(90_061)
    '1-01:02:00'
    """
    minutes = max(1, math.ceil(seconds / 60.0))
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02}:{rest % 60:02}:00"


def further_starts(experiment: ExperimentConfig, outlook: Outlook, longest_s: float | None) -> int:
    """Return how often a job must go on from its checkpoint, since its partition ends jobs before it can be done.

    Args:
        experiment: only a ``slurm.time_limit`` of ``auto`` is spread over several starts.
        outlook: upper bound of the run's predicted duration.
        longest_s: time limit of the partition; None: none.

    Raises:
        JobSubmissionError: it must, and ``slurm.requeue`` is false, or the limit is within the grace period.
    """
    slurm, grace_s = experiment.slurm or SLURMConfig(), experiment.preemption.grace_period_seconds
    if slurm.time_limit != AUTO or outlook.time_limit_s is None or longest_s is None:
        return 0
    if outlook.time_limit_s + grace_s <= longest_s:
        return 0
    needed = f"it needs {seconds_text(outlook.time_limit_s + grace_s)} and its partition ends jobs after "
    if longest_s <= grace_s or not slurm.requeue:
        way_out = "take another partition" if slurm.requeue else "set slurm.requeue to true, or take another partition"
        raise JobSubmissionError(f"{needed}{seconds_text(longest_s)}; {way_out}")
    return math.ceil(outlook.time_limit_s / (longest_s - grace_s)) - 1


def time_limit(
    experiment: ExperimentConfig, outlook: Outlook, is_here: bool = False, longest_s: float | None = None
) -> str | None:
    """Return the time limit of a job as sbatch --time takes it; None leaves it to the partition.

    Args:
        experiment: its ``slurm.time_limit`` may be ``auto``.
        outlook: upper bound of the run's predicted duration, or why there is none.
        is_here: it runs on this machine, where nothing ends it.
        longest_s: time limit of the partition, beyond which ``auto`` does not go; None: none.

    Raises:
        JobSubmissionError: ``auto`` without a prediction, or a limit that leaves no time before the signal.
    """
    slurm, grace_s = experiment.slurm or SLURMConfig(), experiment.preemption.grace_period_seconds
    limit = slurm.time_limit
    if limit == AUTO:
        if outlook.time_limit_s is not None:
            return seconds_text(min(outlook.time_limit_s + grace_s, longest_s or math.inf))
        if is_here:
            return UNLIMITED[0]
        raise JobSubmissionError(
            f'slurm.time_limit is auto: {outlook.why_no_limit}; or give a limit, such as "24:00:00"'
        )
    if limit is not None and limit.upper() not in UNLIMITED and duration_s(limit) <= grace_s:
        raise JobSubmissionError(
            f"slurm.time_limit is {limit}; it must be longer than "
            f"preemption.grace_period_seconds, {grace_s:g}: the job is told to save that long before its end"
        )
    return limit


def _extra_options(slurm: SLURMConfig) -> list[list[str]]:
    """Return the additional arguments, an option with its value each."""
    found: list[list[str]] = []
    for word in slurm.additional_args:
        if word.startswith("-"):
            found.append([word])
        elif found:
            found[-1].append(word)
        else:
            raise JobSubmissionError(
                f"slurm.additional_args starts with {word!r}; expected an option such as --exclusive"
            )
    for option, *_ in found:
        name = option.partition("=")[0] if option.startswith("--") else option[:2]
        if name in OURS:
            raise JobSubmissionError(
                f"slurm.additional_args has {option}: the launcher sets {name} itself; leave it out"
            )
    return found


def _header_word(word: str) -> str:
    """Return a word quoted for a #SBATCH line, which sbatch splits as a shell does."""
    if HEADER_CHARACTERS.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def options(experiment: ExperimentConfig, place: Place, limit: str | None) -> list[str]:
    """Return the options of sbatch that an experiment asks for, in a stable order."""
    slurm = experiment.slurm or SLURMConfig()
    pairs: list[tuple[str, object | None]] = [
        ("job-name", slurm.job_name or experiment.experiment_name),
        ("output", place.log),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{math.ceil(experiment.preemption.grace_period_seconds)}"),
        ("nodes", slurm.nodes),
        ("ntasks-per-node", tasks_per_node(experiment)),
        ("cpus-per-task", slurm.cpus_per_task),
        ("mem", slurm.mem),
        ("gres", slurm.gres),
        ("time", limit),
        ("partition", slurm.partition),
        ("account", slurm.account),
        ("qos", slurm.qos),
        ("constraint", slurm.constraint),
    ]
    words = [f"--{key}={_header_word(str(value))}" for key, value in pairs if value is not None]
    words.append("--requeue" if slurm.requeue else "--no-requeue")
    return words + [" ".join(map(_header_word, option)) for option in _extra_options(slurm)]


def _value(experiment: ExperimentConfig, key: str) -> str:
    """Return the value of a dotted key, such as training.max_steps.

    Raises:
        JobSubmissionError: the experiment does not say it, or it is a whole section.
    """
    value: object = experiment.to_dict()
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or isinstance(value, dict | list):
        raise JobSubmissionError(f"command takes {{{key}}}, which the experiment does not say; give {key} a value")
    return str(value)


def command(experiment: ExperimentConfig, place: Place) -> str:
    """Return the experiment's command with its files, and values of dotted keys, filled in, quoted.

    Raises:
        JobSubmissionError: it names something in braces that is not known, or a key that the experiment leaves out.
    """
    known = {
        "config": shlex.quote(str(place.config)),
        "experiment_dir": shlex.quote(str(place.folder)),
        "experiment_name": shlex.quote(experiment.experiment_name),
    }

    def value_of(found: re.Match[str]) -> str:
        if found[1].partition(".")[0] in SECTIONS and "." in found[1]:
            return shlex.quote(_value(experiment, found[1]))
        if "." in found[1]:
            return found[0]
        if found[1] not in known:
            hint = nearest(found[1], known) or f" Known are {', '.join(known)}."
            raise JobSubmissionError(f"command has {{{found[1]}}}, which is not known.{hint}")
        return known[found[1]]

    return FILLED_IN.sub(value_of, experiment.command)


def setup(slurm: SLURMConfig) -> str:
    """Return shell code before the command: environment, modules, the setup lines as they are."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in slurm.environment.items()]
    if slurm.modules:
        lines += [
            "if ! type module >/dev/null 2>&1; then",
            '    for file in /etc/profile.d/{modules,lmod,z00_lmod}.sh; do if [ -r "$file" ]; then . "$file"; fi; done',
            "fi",
        ]
    lines += [f"module load {shlex.quote(module)} || exit 1" for module in slurm.modules]
    return "\n".join([*lines, *slurm.setup])


def local_script(experiment: ExperimentConfig, place: Place) -> str:
    """Return shell code that runs the command on this machine; modules and containers belong to the cluster."""
    slurm = experiment.slurm or SLURMConfig()
    before = setup(SLURMConfig(environment=slurm.environment, setup=slurm.setup))
    return launch_here(experiment, place.folder, before, command(experiment, place))


def values(
    experiment: ExperimentConfig, place: Place, limit: str | None, commit: str | None, starts: int = 0
) -> dict[str, str | None]:
    """Return what every placeholder of a template stands for, quoted; None where the configuration says nothing.

    Args:
        experiment: its configuration.
        place: where the job runs and writes.
        limit: its time limit, as sbatch takes it.
        commit: that the project folder is checked out at.
        starts: how often it must go on beyond its time limit, beside the preemptions that it may have.
    """
    slurm = experiment.slurm or SLURMConfig()
    plain: dict[str, object | None] = {
        "experiment_name": experiment.experiment_name,
        "experiment_dir": place.folder,
        "config": place.config,
        "project_dir": place.project,
        "job_name": slurm.job_name or experiment.experiment_name,
        "log_file": place.log,
        "commit": commit,
        "nodes": slurm.nodes,
        "ntasks_per_node": tasks_per_node(experiment),
        "tasks": num_tasks(experiment),
        "cpus_per_task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "gres": slurm.gres,
        "time_limit": limit,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "container": slurm.container,
        "requeue": int(slurm.requeue),
        "max_preemptions": experiment.preemption.max_preemptions + starts,
        "grace_period_seconds": math.ceil(experiment.preemption.grace_period_seconds),
    }
    found: dict[str, str | None] = {
        key: None if value is None else shlex.quote(str(value)) for key, value in plain.items()
    }
    return found | {
        "claim": claim_script(place.folder),
        "sbatch_options": "\n".join(f"#SBATCH {option}" for option in options(experiment, place, limit)),
        "setup": setup(slurm),
        "command": command(experiment, place),
        "launch": launch(experiment, place.folder, place.project, command(experiment, place)),
    }
