"""A measured run: the records of all its ranks, checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles

from predictor.replay.files.measured_step import (
    FOLDER,
    MeasuredSteps,
    OperatorTime,
    StepProvenance,
    read_measured_steps,
)
from predictor.replay.files.record_model import RecordError

LAUNCH = "run-"
SHARED_FIELDS = ("world_size", "config_hash", "first_step", "device_kind", "num_micro_batches")


def relative_spread(samples: Sequence[float]) -> float:
    """Return interquartile range ÷ median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / median(samples)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One launch of a configuration, with the record of every rank in their order."""

    folder: Path
    ranks: tuple[MeasuredSteps, ...]

    @property
    def provenance(self) -> StepProvenance:
        """Return where it was measured, of rank 0."""
        return self.ranks[0].provenance

    @property
    def samples_us(self) -> tuple[float, ...]:
        """Return every timed step: the slowest rank's time."""
        return tuple(map(max, zip(*(rank.provenance.samples_us for rank in self.ranks), strict=True)))

    @property
    def step_us(self) -> float:
        """Return the median step."""
        return median(self.samples_us)

    @property
    def spread(self) -> float:
        """Return interquartile range ÷ median of the steps."""
        return relative_spread(self.samples_us)

    @property
    def profiled_us(self) -> tuple[float, ...]:
        """Return every profiled step: the slowest rank's time; empty where a rank has none."""
        return tuple(map(max, zip(*(rank.provenance.profiled_us for rank in self.ranks), strict=False)))

    @property
    def stages(self) -> list[int]:
        """Return the pipeline stages that ran."""
        return sorted({rank.provenance.pipeline_stage for rank in self.ranks})

    def of_stage(self, stage: int) -> list[MeasuredSteps]:
        """Return the ranks of a pipeline stage."""
        return [rank for rank in self.ranks if rank.provenance.pipeline_stage == stage]

    def part_us(self, stage: int, part: str) -> float | None:
        """Return a part of the step: median over the steps, mean over the stage's ranks; None if not recorded."""
        recorded = [rank.provenance.parts_us.get(part) for rank in self.of_stage(stage)]
        medians = [median(samples) for samples in recorded if samples]
        return mean(medians) if medians else None

    def operators(self, stage: int) -> Iterable[OperatorTime]:
        """Return the operators that the ranks of a stage recorded, rank by rank."""
        for rank in self.of_stage(stage):
            yield from rank.provenance.operators


def read_measured_run(folder: Path) -> MeasuredRun:
    """Read all ranks' records of one launch.

    Args:
        folder: holds ``step_records``, or is it.

    Raises:
        RecordError: there is no record, one is damaged or missing, or they are not of one run.
    """
    home = folder if folder.name == FOLDER else folder / FOLDER
    paths = sorted(home.glob("rank-*.json"))
    if not paths:
        raise RecordError(f"{home} has no records of measured steps (rank-00000.json …)")
    records = [read_measured_steps(path) for path in paths]
    first = records[0].provenance
    for path, record in zip(paths, records, strict=True):
        told = record.provenance
        for field in SHARED_FIELDS:
            if getattr(told, field) != getattr(first, field):
                raise RecordError(
                    f"{path} has {field} {getattr(told, field)} and {paths[0].name} {getattr(first, field)}; "
                    "the records of one run agree"
                )
        if len(told.samples_us) != len(first.samples_us):
            counts = f"{len(told.samples_us)} steps and {paths[0].name} {len(first.samples_us)}"
            raise RecordError(f"{path} has {counts}; all ranks time the same steps")
    ranks = [record.provenance.rank for record in records]
    missing = sorted(set(range(first.world_size)) - set(ranks))
    if missing or len(ranks) != first.world_size:
        lost = f"rank {', '.join(map(str, missing))} is missing" if missing else f"it has ranks {ranks}"
        raise RecordError(f"{home} is of {first.world_size} ranks, but {lost}")
    return MeasuredRun(folder, tuple(sorted(records, key=lambda record: record.provenance.rank)))


def launch_folders(folder: Path) -> list[Path]:
    """Return the launches of a run's folder: ``run-1``, ``run-2`` …, or the folder itself where it holds records."""
    if folder.name == FOLDER or (folder / FOLDER).is_dir():
        return [folder]
    launches = [path for path in folder.glob(f"{LAUNCH}*") if path.name.removeprefix(LAUNCH).isdigit()]
    return sorted(
        (path for path in launches if (path / FOLDER).is_dir()), key=lambda path: int(path.name.removeprefix(LAUNCH))
    )


def read_launches(folder: Path) -> list[MeasuredRun]:
    """Read every launch of a run's folder.

    Raises:
        RecordError: there is none, one is damaged, or they are not of one configuration.
    """
    folders = launch_folders(folder)
    if not folders:
        raise RecordError(f"{folder} has no recorded run ({LAUNCH}1/{FOLDER}, or {FOLDER})")
    launches = [read_measured_run(launch) for launch in folders]
    first = launches[0].provenance
    for launch in launches[1:]:
        told = launch.provenance
        if (told.config_hash, told.world_size, told.device_kind) != (
            first.config_hash,
            first.world_size,
            first.device_kind,
        ):
            raise RecordError(f"{launch.folder} is of another configuration or device than {launches[0].folder}")
    return launches


def noise(launches: Sequence[MeasuredRun]) -> float | None:
    """Return how far the medians of several launches are apart, relative to their mean; None for one launch."""
    medians = [launch.step_us for launch in launches]
    return (max(medians) - min(medians)) / mean(medians) if len(medians) > 1 else None
