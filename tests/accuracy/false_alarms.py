"""Alarms on real runs without known faults, and detection of faults injected into them.

``python -m tests.accuracy.false_alarms`` reads ../shared/operations/step_series.csv.gz: cumulative training time after
every step of runs of 8 H100. Runs are split by the folder of their record: the method was designed on every other
folder (``design``); the rest is ``held out``. ``--rows`` prints each alarm.

An alarm is a finding that is not expected. It counts at the end of the log, and (``at any time``) if it stood at any
step, checked every ten. A fault counts as detected by an alarm that begins with it; its delay ends with the step at
which the alarm stands. A drift's delay counts from the step at which it has reached 5 %.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject: seconds of a step from usual seconds and steps since the onset; steps until it can be seen."""

    name: str
    slow: Callable[[float, int, random.Random], float]
    visible_after: int = 0


DRIFT_PER_STEP = 0.002
PERIOD = 8
FAULTS = (
    Fault("jump of 5 %", lambda seconds, since, draw: 1.05 * seconds),
    Fault("jump of 10 %", lambda seconds, since, draw: 1.1 * seconds),
    Fault("jump of 30 %", lambda seconds, since, draw: 1.3 * seconds),
    Fault(
        "drift of 0.2 % a step", lambda seconds, since, draw: seconds * (1 + DRIFT_PER_STEP * min(since, 200)), 25
    ),
    Fault("double every 8th step", lambda seconds, since, draw: seconds * (1 + (since % PERIOD == 0))),
    Fault("pause of 50 steps", lambda seconds, since, draw: seconds * (50 if since == 0 else 1)),
    Fault("3 of 10 steps × 1.5 to 3", lambda s, since, draw: s * (draw.uniform(1.5, 3) if draw.random() < 0.3 else 1)),
)  # fmt: skip
LONGEST_DELAY = 100


def inject(run: Run, fault: Fault, onset: int, draw: random.Random) -> list[tuple[int, float]]:
    """Return a run's steps with a fault from the index ``onset`` on, rounded to milliseconds as its timer is."""
    steps, total, before = [], 0.0, 0
    for index, (number, seconds) in enumerate(run.steps):
        total += fault.slow(seconds, index - onset, draw) if index >= onset else seconds
        now = round(total * 1e3)
        steps.append((number, max(now - before, 0.1) / 1e3))
        before = now
    return steps


def delay(run: Run, fault: Fault, draw: random.Random) -> int | None:
    """Return the steps from a fault at a random place to its alarm; None: none within ``LONGEST_DELAY``."""
    onset = draw.randrange(100, len(run.steps) - 150)
    steps = inject(run, fault, onset, draw)
    first, sees = run.steps[onset][0], run.steps[onset + fault.visible_after][0]
    monitor, known = Monitor(), set[tuple[str, int]]()
    for event in events(run, steps[: onset + fault.visible_after + LONGEST_DELAY]):
        monitor.take(event)
        if not isinstance(event, Step) or event.number < first - 1:
            continue
        found = {(alarm.change.kind.value, alarm.change.first_step) for alarm in alarms(monitor.health().findings)}
        if event.number < first:
            known = found
        elif any(start >= first - 3 for _, start in found - known):
            return max(event.number - sees, 0)
    return None


def alarmed_at_any_time(run: Run) -> bool:
    """Whether an alarm stood at any tenth step."""
    monitor = Monitor()
    for event in events(run, run.steps):
        monitor.take(event)
        if isinstance(event, Step) and event.number % 10 == 0 and alarms(monitor.health().findings):
            return True
    return False


def _print_alarms(half: str, runs: Sequence[Run], rows: bool) -> None:
    kinds: Counter[str] = Counter()
    alarmed = 0
    for run in runs:
        found = alarms(findings(run))
        alarmed += bool(found)
        kinds.update(finding.change.kind.value for finding in found)
        if rows and found:
            print(run.name, *map(text, found), sep="\n    ")
    ever = sum(map(alarmed_at_any_time, runs))
    print(
        f"{half}: {len(runs)} runs; with an alarm at the end {alarmed} ({alarmed / len(runs):.1%}), at any time {ever}"
    )
    print("    alarms at the end:", ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none")


def _print_detection(runs: Sequence[Run]) -> None:
    long = [run for run in runs if len(run.steps) > 300]
    for fault in FAULTS:
        draw = random.Random(31)
        delays = [delay(run, fault, draw) for run in long]
        found = sorted(value for value in delays if value is not None)
        within = sum(value <= 20 for value in found) / len(long)
        middle = f"{median(found):.0f}" if found else "-"
        print(f"    {fault.name:26} within 20 steps {within:4.0%}, ever {len(found) / len(long):4.0%}, median {middle}")


def main() -> None:
    """Print alarms and detections by half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=Path, default=SERIES)
    parser.add_argument("--rows", action="store_true", help="print each alarm")
    parser.add_argument("--no-faults", action="store_true", help="inject none")
    parser.add_argument("--half", choices=("design", "held out"))
    arguments = parser.parse_args()
    for half, runs in halves(read(arguments.series)).items():
        if arguments.half not in (None, half):
            continue
        _print_alarms(half, runs, arguments.rows)
        if not arguments.no_faults:
            _print_detection(runs)


if __name__ == "__main__":
    main()
