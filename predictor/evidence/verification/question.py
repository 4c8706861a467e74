"""Question of a verification (configurations, system, how they run), and its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.base.files import write_whole
from predictor.evidence.verification.answer import Failed, Verification
from predictor.evidence.verification.configurations import Configured, read_configurations
from predictor.evidence.verification.launching import RunFailed, Runner, find_device
from predictor.evidence.verification.quiet_launches import QuietLaunches
from predictor.evidence.verification.run_tables import verified_table
from predictor.evidence.verification.runs import Verified, recorded_configuration, verified_launches
from predictor.replay.files.measured_run import LAUNCH, MeasuredRun, launch_folders, read_launches, read_measured_run
from predictor.replay.files.record_model import RecordError
from predictor.replay.files.verified_run import write_verified_run

HASH_DIGITS = 8
DEVICES = ("cuda", "cpu")


def run_folder(out: Path, configuration: Configured, device: str, threads: int) -> Path:
    """Return the folder of a configuration's run; another configuration, device or number of threads has another."""
    where = f"cpu-{threads}" if device == "cpu" else device
    return out / f"{configuration.name}-{configuration.config_hash[:HASH_DIGITS]}-{where}"


def recorded(folder: Path, repeat: int) -> list[MeasuredRun] | None:
    """Return the launches of a run; None where fewer than ``repeat`` are complete."""
    try:
        return [read_measured_run(folder / f"{LAUNCH}{number}") for number in range(1, repeat + 1)]
    except RecordError:
        return None


def recorded_folder(out: Path, configuration: Configured, device: str, threads: int, repeat: int) -> Path | None:
    """Return the folder where a configuration's run is recorded; with the device "auto" a GPU's before a CPU's."""
    for kind in DEVICES if device == "auto" else (device,):
        folder = run_folder(out, configuration, kind, threads)
        if recorded(folder, repeat) is not None:
            return folder
    return None


def record(quiet: QuietLaunches, configuration: Configured, folder: Path, repeat: int) -> list[MeasuredRun]:
    """Run a configuration as often as it is not recorded yet.

    Raises:
        RunFailed: a launch failed.
        RecordError: a launch left no whole record.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = configuration.workload.program
    for name, text in program.files(configuration.content).items():
        write_whole(folder / name, text)
    for number in range(1, repeat + 1):
        place = folder / f"{LAUNCH}{number}"
        try:
            read_measured_run(place)
        except RecordError:
            ranks = f"{configuration.num_gpus} rank{'s' * (configuration.num_gpus > 1)}"
            quiet.say(f"{configuration.name}: launch {number} of {repeat}, {ranks}, {quiet.runner.device}")
            quiet.launch(configuration, folder / program.config_file, place)
    return [read_measured_run(folder / f"{LAUNCH}{number}") for number in range(1, repeat + 1)]


def recorded_folders(folder: Path) -> list[Path]:
    """Return the recorded runs of a folder: itself, or the folders in it that are one.

    Raises:
        RecordError: there is none.
    """
    if launch_folders(folder):
        return [folder]
    below = sorted(path for path in folder.glob("*") if path.is_dir() and launch_folders(path))
    if not below:
        raise RecordError(f"{folder} holds no recorded run: no step_records with rank-00000.json")
    return below


TABLE = ".csv"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What to verify.

    Attributes:
        paths: configuration files, folders of them, or tables of others' runs.
        system: that predicts; None for every configuration's own.
        recorded: folder of runs that were recorded; None to look into ``out``.
        runs_missing: run what is not recorded yet.
        out: folder of runs.
        device: "auto", "cpu" or "cuda".
        repeat: launches of every configuration.
        again: most repetitions of a launch during which the machine was busier than while it was measured.
    """

    paths: tuple[str, ...]
    system: str | None
    recorded: Path | None
    runs_missing: bool
    out: Path
    python: str
    device: str
    steps: int
    repeat: int
    threads: int
    timeout_s: float
    again: int = 0


def _from_records(question: Question, folder: Path) -> Verification:
    """Compare what a folder holds, predicted from its own configuration or from the one that is named.

    Raises:
        ConfigError, PublishedError: no run of it can be compared.
    """
    places = recorded_folders(folder)
    named = read_configurations(question.paths, question.system)
    if named and (len(places) != 1 or len(named) != 1):
        raise ConfigError(
            f"--run {folder} holds {len(places)} runs and {len(named)} configurations are named; name one for one run, "
            "or none"
        )
    answered: list[Verified] = []
    errors: list[tuple[str, ConfigError | PublishedError]] = []
    for place in places:
        name = place.resolve().name
        try:
            launches = read_launches(place)
            configuration = named[0] if named else recorded_configuration(name, launches, question.system)
            answered.append(_stored(place, verified_launches(configuration, launches)))
        except (ConfigError, PublishedError) as error:
            errors.append((name, error))
    if not answered:
        raise errors[0][1]
    return Verification(tuple(answered), _failures(errors))


def _failures(errors: Sequence[tuple[str, Exception]]) -> tuple[Failed, ...]:
    """Return errors by the name of their configuration, each in one line."""
    return tuple(Failed.of(name, error) for name, error in errors)


def _stored(folder: Path, run: Verified) -> Verified:
    """Store a comparison beside its run."""
    if not folder.is_dir():
        return run
    write_verified_run(folder, run.record)
    return run


def _launches(
    question: Question, quiet: QuietLaunches | None, configuration: Configured
) -> tuple[Path, list[MeasuredRun]]:
    """Return a configuration's run, recorded already or now.

    Raises:
        RunFailed, RecordError: there is none.
    """
    repeat = question.repeat
    device = question.device if quiet is None else quiet.runner.device
    folder = recorded_folder(question.out, configuration, device, question.threads, repeat)
    if folder is not None:
        return folder, recorded(folder, repeat) or []
    if quiet is None:
        raise RunFailed(f"{repeat} launches of it are not recorded in {question.out}; without --no-run it is run")
    folder = run_folder(question.out, configuration, device, quiet.runner.threads)
    return folder, record(quiet, configuration, folder, repeat)


def _runner(question: Question, configurations: Sequence[Configured]) -> Runner | None:
    """Return how what is missing is run; None where nothing is missing, or is to be run."""
    device, threads, repeat = question.device, question.threads, question.repeat
    missing = [
        configuration
        for configuration in configurations
        if recorded_folder(question.out, configuration, device, threads, repeat) is None
    ]
    if not missing or not question.runs_missing:
        return None
    packages = {name for configuration in missing for name in configuration.workload.program.packages}
    device = find_device(question.python, device, sorted(packages))
    return Runner(question.python, device, question.steps, threads, question.timeout_s)


def _predictable(configurations: Sequence[Configured]) -> tuple[list[Configured], list[Failed]]:
    """Return the configurations that their system can predict, and those that it lacks a regressor for.

    Raises:
        PublishedError: it can predict none.
    """
    known: list[Configured] = []
    errors: list[tuple[str, PublishedError]] = []
    for configuration in configurations:
        try:
            configuration.workload.predict()
            known.append(configuration)
        except PublishedError as error:
            errors.append((configuration.name, error))
    if not known:
        raise errors[0][1]
    return known, list(_failures(errors))


def _from_configurations(question: Question, paths: Sequence[str], progress: Progress) -> Verification:
    """Run what is not recorded, and compare; a run that fails does not keep the others from theirs."""
    known, failed = _predictable(read_configurations(paths, question.system))  # all are checked before the first runs
    runner = _runner(question, known)
    quiet = None if runner is None else QuietLaunches(runner, question.again, progress)
    answered: list[Verified] = []
    for configuration in known:
        try:
            folder, launches = _launches(question, quiet, configuration)
            answered.append(_stored(folder, verified_launches(configuration, launches)))
        except (RunFailed, RecordError, ConfigError, PublishedError) as error:
            failed.append(Failed.of(configuration.name, error))
            progress(f"{failed[-1].name}: {failed[-1].reason}")
    return Verification(tuple(answered), tuple(failed))


def answer(question: Question, progress: Progress) -> Verification:
    """Return what is asked.

    Raises:
        ConfigError, PublishedError, OSError, yaml.YAMLError: bad input, before anything is run.
    """
    if question.recorded is not None:
        return _from_records(question, question.recorded)
    tables = [Path(path) for path in question.paths if Path(path).suffix.lower() == TABLE]
    others = [path for path in question.paths if Path(path).suffix.lower() != TABLE]
    if not question.paths:
        raise ConfigError("nothing to verify: name configurations, a folder of them or a CSV of runs, or --run FOLDER")
    parts = [verified_table(path, question.system) for path in tables]
    if others:
        parts.append(_from_configurations(question, others, progress))
    return Verification(
        tuple(run for part in parts for run in part.runs), tuple(failed for part in parts for failed in part.failed)
    )
