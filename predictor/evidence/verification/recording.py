"""Where runs lie, and what of them is recorded: launches run-1, run-2 … of a configuration on a device."""

from __future__ import annotations

from pathlib import Path

from predictor.core.base.files import write_whole
from predictor.evidence.verification.configurations import Configured
from predictor.evidence.verification.watch import Watch
from predictor.replay.files.measured_run import LAUNCH, MeasuredRun, launch_folders, read_measured_run
from predictor.replay.files.record_model import RecordError

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


def record(watch: Watch, configuration: Configured, folder: Path, repeat: int) -> list[MeasuredRun]:
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
            watch.say(f"{configuration.name}: launch {number} of {repeat}, {ranks}, {watch.runner.device}")
            watch.launch(configuration, folder / program.config_file, place)
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
