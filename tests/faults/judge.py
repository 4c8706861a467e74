"""Judge the monitor by stored runs whose fault is known; needs no training."""

from __future__ import annotations

import gzip
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from predictor.watch.events import Activity, End, Event, Start, Step
from predictor.watch.health import ChangeKind, Finding, Health
from predictor.watch.monitor import Monitor
from tests.faults.truth import CAUSES, TRUTH, Fault, Kind

WITHIN = 20  # steps, in which a fault is to be detected
EARLY = 3  # steps before the fault at which its change may be dated
EVENTS = {"step": Step, "activity": Activity, "start": Start, "end": End}
REPEATED = 36  # steps that a restarted run may have been ahead of its last checkpoint and its last lines
EXPECTED = (Kind.BATCH, Kind.RESTART)  # that the monitor rightly takes for no alarm
CONTENDED = 0.5  # cores that others took, from which contention in a healthy run is true


def event_of(line: str) -> Event:
    """Return the event of a line of telemetry."""
    values = json.loads(line)
    kind = EVENTS[values.pop("event")]
    names = {one.name for one in fields(kind)}
    known = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in names
    }
    event: Event = kind(**known)
    return event


def events_of(folder: Path) -> Iterator[Event]:
    """Yield the events of all ranks of a run, in the order of time."""
    ranks = []
    for path in sorted(folder.glob("rank-*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            ranks.append([event_of(line) for line in lines])
    yield from heapq.merge(*ranks, key=lambda event: event.at or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the monitor said of a run.

    Attributes:
        detected: within ``WITHIN`` steps.
        causes: of the finding that costs the most since the fault began, the most probable first; empty: none.
        alarms: causes of unexpected findings that began before the fault, or in a healthy run at all.
        cores_of_others: that other work of the machine took meanwhile.
    """

    fault: Fault
    detected: bool
    causes: tuple[str, ...]
    alarms: tuple[str, ...]
    cores_of_others: float

    @property
    def is_first(self) -> bool:
        """Whether the right cause came first."""
        return bool(CAUSES[self.fault.kind] & set(self.causes[:1]))

    @property
    def is_among_two(self) -> bool:
        """Whether it was among the first two."""
        return bool(CAUSES[self.fault.kind] & set(self.causes[:2]))


def judge(folder: Path) -> Verdict | None:
    """Return the verdict of a stored run; None of one that was skipped or failed."""
    facts: dict[str, Any] = json.loads((folder / TRUTH).read_text())
    fault = Fault.from_dict(facts["fault"])
    if "skipped" in facts or "failed" in facts or facts["began"] is None:
        return None
    began = int(facts["began"])
    monitor, early = Monitor(), None
    is_back = fault.kind is not Kind.RESTART  # steps are counted from the second start on
    for event in events_of(folder):
        is_back = is_back or (isinstance(event, Start) and event.resumed_step is not None)
        if early is None and is_back and isinstance(event, Step) and event.number > began + WITHIN:
            early = monitor.health(event.at)
        monitor.take(event)
    last = monitor.health()
    if fault.kind is Kind.NONE:
        alarms = tuple(one.explanations[0].cause for one in last.findings if not one.is_expected)
        return Verdict(fault, False, (), alarms, facts["cores_of_others"])
    found = _since(last, began, fault)
    before = [one for one in last.findings if not one.is_expected and one.change.first_step < began - EARLY]
    causes = tuple(one.cause for one in found[0].explanations) if found else ()
    return Verdict(
        fault,
        bool(early and _since(early, began, fault)),
        causes,
        tuple(one.explanations[0].cause for one in before),
        facts["cores_of_others"],
    )


def _since(health: Health, began: int, fault: Fault) -> list[Finding]:
    """Return findings of a fault, the most costly first: those that began with it; a drift's beginning is vague."""
    return sorted((one for one in health.findings if _is_of(one, began, fault)), key=lambda one: -one.change.lost_s)


def _is_of(finding: Finding, began: int, fault: Fault) -> bool:
    change, names_it = finding.change, finding.explanations[0].cause in CAUSES[fault.kind]
    if finding.is_expected and not (names_it and fault.kind in EXPECTED):
        return False
    early = REPEATED if fault.kind is Kind.RESTART else WITHIN if change.kind is ChangeKind.DRIFT else EARLY
    return change.first_step >= began - early and (change.last_step is None or change.last_step >= began - early)


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the confusion table and the rates, as Markdown."""
    by_kind: dict[Kind, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_kind[verdict.fault.kind].append(verdict)
    faulty = [kind for kind in Kind if kind is not Kind.NONE and by_kind[kind]]
    all_faulty = [verdict for kind in faulty for verdict in by_kind[kind]]
    rows = [(kind.value, by_kind[kind]) for kind in faulty] + ([("**all**", all_faulty)] if faulty else [])
    return "\n".join([
        "| fault | runs | within 20 steps | right first | among two | first causes |",
        "|---|---|---|---|---|---|",
        *(_row(name, found) for name, found in rows),
        "",
        _alarms(by_kind[Kind.NONE], all_faulty),
    ])  # fmt: skip


def _alarms(healthy: list[Verdict], faulty: list[Verdict]) -> str:
    """Return how often there was an alarm without a fault, and how busy the machine was with other work."""
    alarmed = [verdict for verdict in healthy if verdict.alarms]
    named = ", ".join(sorted({cause for verdict in alarmed for cause in verdict.alarms})) or "none"
    true = [one for one in alarmed if set(one.alarms) == {"contention"} and one.cores_of_others >= CONTENDED]
    before = sum(bool(verdict.alarms) for verdict in faulty)
    others = median([verdict.cores_of_others for verdict in (*healthy, *faulty)] or [0.0])
    return (
        f"Healthy runs: {len(healthy)}, of which {len(alarmed)} with an alarm ({named}); {len(true)} of these name "
        f"contention alone while other work took half a core or more.\n"
        f"Faulty runs with an alarm before the fault: {before} of {len(faulty)}. "
        f"Other work of the machine took {others:.1f} cores in the median."
    )


def _row(name: str, verdicts: list[Verdict]) -> str:
    count = len(verdicts)
    causes = Counter(verdict.causes[0] if verdict.causes else "no finding" for verdict in verdicts)
    told = ", ".join(f"{cause.replace('_', ' ')} {times}" for cause, times in causes.most_common())
    shares = [sum(getattr(one, what) for one in verdicts) for what in ("detected", "is_first", "is_among_two")]
    return f"| {name} | {count} | " + " | ".join(f"{share} ({share / count:.0%})" for share in shares) + f" | {told} |"


def misses(verdicts: Iterable[Verdict]) -> str:
    """Return a line for every run that was judged wrongly."""
    lines = []
    for verdict in verdicts:
        fault = verdict.fault
        if fault.kind is Kind.NONE and not verdict.alarms:
            continue
        if verdict.detected and verdict.is_first:
            continue
        said = verdict.causes if fault.kind is not Kind.NONE else verdict.alarms
        run = f"{fault.number:03d} {fault.kind.value}, size {fault.size:g}, {fault.ranks} ranks"
        time = "detected" if verdict.detected else "not in time"
        lines.append(f"{run}, others {verdict.cores_of_others:g}: {time}, {', '.join(said) or 'no finding'}")
    return "\n".join(lines)
