"""Alarms on real runs without known faults, and detection of faults injected into them.

``python -m tests.accuracy.false_alarms`` reads ../shared/operations/step_series.csv.gz: cumulative training time after
every step of runs of 8 H100. Runs are split by the folder of their record: the method was designed on every other folder
(``design``); the rest is ``held out``. ``--rows`` prints each alarm.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.watch.events import EVALUATION, Activity, Event, Start, Step
from predictor.watch.health import Finding
from predictor.watch.monitor import Monitor
from tests.conftest import SHARED

SERIES = SHARED / "operations" / "step_series.csv.gz"


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its name, the seconds of each step by number, and the steps after which it was evaluated."""

    name: str
    steps: tuple[tuple[int, float], ...]
    evaluations: frozenset[int]

    @property
    def folder(self) -> str:
        """Return the record that the run belongs to."""
        return self.name.split("/")[0]


def read(path: Path) -> list[Run]:
    """Return the runs. A cumulative time that falls is a timer set to zero: that step's time is not known."""
    rows: dict[str, list[tuple[int, float, bool]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["run"]].append((int(row["step"]), float(row["train_time_ms"]), row["validated"] == "1"))
    runs = []
    for name, marks in rows.items():
        steps = []
        before: tuple[int, float] | None = None
        for number, at, validated in marks:
            if validated:
                continue
            if before is not None and number > before[0] and at > before[1]:
                steps.append((number, (at - before[1]) / 1e3 / (number - before[0])))
            before = (number, at)
        runs.append(Run(name, tuple(steps), frozenset(number for number, _, validated in marks if validated)))
    return runs


def events(run: Run, steps: Sequence[tuple[int, float]]) -> Iterator[Event]:
    """Return a run's events."""
    yield Start()
    for number, seconds in steps:
        if number - 1 in run.evaluations:
            yield Activity(EVALUATION, step=number - 1)
        yield Step(number, seconds)


def findings(run: Run, steps: Sequence[tuple[int, float]] | None = None) -> tuple[Finding, ...]:
    """Return the monitor's findings at the end of a run."""
    monitor = Monitor()
    for event in events(run, run.steps if steps is None else steps):
        monitor.take(event)
    return monitor.health().findings


def text(finding: Finding) -> str:
    """Return a finding in a line."""
    change, first = finding.change, finding.explanations[0]
    period = f" every {change.period}" if change.period else ""
    return (
        f"{change.kind.value}{period} from {change.first_step} to {change.last_step}: {change.occurrences} steps, "
        f"{change.level_s * 1e3:.1f} + {change.extra_s * 1e3:.1f} ms, {first.title} {first.belief:.2f}"
        f"{' (expected)' if finding.is_expected else ''}"
    )


def alarms(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a healthy run would not show."""
    return [finding for finding in found if not finding.is_expected]


def halves(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by half, split by folder."""
    folders = sorted({run.folder for run in runs})
    design = set(folders[::2])
    return {
        "design": [run for run in runs if run.folder in design],
        "held out": [run for run in runs if run.folder not in design],
    }


def main() -> None:
    """Print alarms and detections by half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=Path, default=SERIES)
    parser.add_argument("--rows", action="store_true", help="print each alarm")
    parser.add_argument("--half", choices=("design", "held out"))
    arguments = parser.parse_args()
    for half, runs in halves(read(arguments.series)).items():
        if arguments.half not in (None, half):
            continue
        kinds: Counter[str] = Counter()
        alarmed = 0
        for run in runs:
            found = alarms(findings(run))
            alarmed += bool(found)
            kinds.update(finding.change.kind.value for finding in found)
            if arguments.rows and found:
                print(run.name)
                for finding in found:
                    print("   ", text(finding))
        print(f"{half}: {len(runs)} runs, {alarmed} with an alarm, {sum(kinds.values())} alarms {dict(kinds)}")


if __name__ == "__main__":
    main()
