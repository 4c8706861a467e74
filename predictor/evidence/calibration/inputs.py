"""Read measured steps: tables of runs, configurations with a measured time, and records of runs and traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.plan.loading import read_config
from predictor.evidence.calibration.observations import Observation, observed_run
from predictor.evidence.calibration.traced import observed_components
from predictor.evidence.verification.answer import Failed
from predictor.evidence.verification.configurations import SUFFIXES, configured
from predictor.evidence.verification.run_tables import read_table
from predictor.evidence.verification.runs import measured_step, recorded_configuration
from predictor.evidence.verification.transformers import recorded
from predictor.replay.files.measured_run import launch_folders, read_launches
from predictor.replay.files.verified_run import FILE, read_verified_run

MEASURED = "measured_seconds"
TABLE = ".csv"
TRACED_STEP = "estimate-train-time/traced-step/"
VERIFIED_RUN = "estimate-train-time/verified-run/"
HELD = f"no {FILE}, step records, traced steps or configurations with {MEASURED}"
Read = tuple[list[Observation], list[Failed]]


def _table(path: Path, system: str) -> Read:
    rows, errors = read_table(
        path, system, lambda run, step: observed_run(run, step.seconds * 1e6, str(path), name=step.name)
    )
    return rows, [Failed.of(name, error) for name, error in errors]


def _format_of(path: Path) -> str:
    """Return the format that a JSON file says it has; empty where it says none."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return ""
    return str(content.get("format", "")) if isinstance(content, dict) else ""


def _verified_run(path: Path, system: str) -> list[Observation]:
    record = read_verified_run(path)
    configuration = configured(record.name, recorded(record.configuration), path.parent, system)
    return [observed_run(configuration, record.measured_us, str(path), record.noise)]


def _recorded_run(folder: Path, system: str) -> list[Observation]:
    """Return a run that a trainer, or verification, recorded step by step."""
    launches = read_launches(folder)
    configuration = recorded_configuration(folder.resolve().name, launches, system)
    step = measured_step(configuration, launches)
    medians = [launch.step_us for launch in launches]
    noise = (max(medians) - min(medians)) / (step.seconds * 1e6) if len(medians) > 1 else None
    return [observed_run(configuration, step.seconds * 1e6, str(folder), noise)]


def _configuration(path: Path, system: str) -> list[Observation]:
    content, base = read_config(path)
    seconds: Any = content.pop(MEASURED, None)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.0 < seconds < float("inf"):
        raise ConfigError(f"{path}: {MEASURED} is {seconds!r}; expected the seconds that one step took")
    return [observed_run(configured(path.stem, content, base, system), seconds * 1e6, str(path))]


def _file(path: Path, system: str) -> list[Observation]:
    told = _format_of(path) if path.suffix == ".json" and path.is_file() else ""
    if told.startswith(TRACED_STEP):
        return observed_components(path, system)
    return _verified_run(path, system) if told.startswith(VERIFIED_RUN) else _configuration(path, system)


def _places(path: Path) -> list[tuple[Path, Callable[[Path, str], list[Observation]]]]:
    """Return what a folder holds: a run, or runs, records of a trace and configurations in it."""
    if (path / FILE).is_file():
        return [(path / FILE, _verified_run)]
    if launch_folders(path):
        return [(path, _recorded_run)]
    inside = sorted(path.glob("*"))
    files = [(entry, _file) for entry in inside if entry.is_file() and entry.suffix in SUFFIXES]
    folders = [place for entry in inside if entry.is_dir() for place in _places(entry)]
    return [*files, *folders]


def _one_by_one(places: Sequence[tuple[Path, Callable[[Path, str], list[Observation]]]], system: str) -> Read:
    """Return what each place holds; of several, those that cannot be predicted are told apart."""
    observations: list[Observation] = []
    errors: list[tuple[Path, ConfigError | PublishedError]] = []
    for place, read in places:
        try:
            observations += read(place, system)
        except (ConfigError, PublishedError) as error:
            errors.append((place, error))
    if errors and not observations:
        raise errors[0][1]
    return observations, [Failed.of(str(place), error) for place, error in errors]


def read_observations(paths: Sequence[str], system: str) -> Read:
    """Read every measured step that is named, beside those that cannot be predicted.

    Args:
        paths: tables of runs, configurations with ``measured_seconds``, records, or folders of them.
        system: published, that is calibrated.

    Raises:
        ConfigError, PublishedError, OSError, yaml.YAMLError: a path holds no measured step that can be predicted.
    """
    observations: list[Observation] = []
    failed: list[Failed] = []
    for name in paths:
        path = Path(name)
        if path.suffix.lower() == TABLE:
            read, errors = _table(path, system)
        elif path.is_dir():
            read, errors = _one_by_one(_places(path), system)
            if not read:
                raise ConfigError(f"{path} holds no measured step: {HELD}")
        else:
            read, errors = _one_by_one([(path, _file)], system)
        observations += read
        failed += errors
    return observations, failed
