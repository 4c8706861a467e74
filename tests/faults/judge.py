"""Judge the monitor by stored runs whose fault is known; needs no training."""

from __future__ import annotations

import gzip
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from predictor.watch.events import RUN_QUEUE_SECONDS, Event, Start, Step
from predictor.watch.health import Finding, Health, State
from predictor.watch.monitor import Monitor
from predictor.watch.readers.records import event_of
from tests.faults.truth import CAUSES, TRUTH, Fault, Kind

WITHIN = 20  # steps, in which a fault is to be detected
REPEATED = 36  # steps that a restarted run may have been ahead of its last checkpoint and its last lines
EXPECTED = (Kind.BATCH, Kind.RESTART)  # that the monitor rightly takes for no alarm
DISTURBED = 0.15  # share of the time before the fault that a rank waits for a CPU: other work slows it


def events_of(folder: Path) -> Iterator[Event]:
    """Yield the events of all ranks of a run, in the order of time."""
    ranks = []
    for path in sorted(folder.glob("rank-*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            ranks.append([event for line in lines if (event := event_of(json.loads(line))) is not None])
    yield from heapq.merge(*ranks, key=lambda event: getattr(event, "at", None) or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the monitor said of a run.

    Attributes:
        detected: within ``WITHIN`` steps.
        causes: of the finding that costs the most since the fault began, the most probable first; empty: none.
        alarms: causes of unexpected findings that began before the fault, or in a healthy run at all.
        cores_of_others: that other work of the machine took meanwhile.
        waited: share of the time for which the rank that waited most for a CPU did so, before the fault.
    """

    fault: Fault
    detected: bool
    causes: tuple[str, ...]
    alarms: tuple[str, ...]
    cores_of_others: float
    waited: float

    @property
    def is_disturbed(self) -> bool:
        """Whether other work slowed the run already before the fault, so that the truth is not known."""
        return self.waited > DISTURBED

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
    monitor, before, early = Monitor(), Health(State.WAITING), None
    is_back = fault.kind is not Kind.RESTART  # steps are counted from the second start on
    for event in events_of(folder):
        is_second = isinstance(event, Start) and event.resumed_step is not None
        if isinstance(event, Step) and event.number == began and before.state is State.WAITING:
            before = monitor.health(event.at)
        if early is None and is_back and isinstance(event, Step) and event.number > began + WITHIN:
            early = monitor.health(event.at)
        is_back = is_back or is_second
        monitor.take(event)
    last = monitor.health()
    known = frozenset(one.change.first_step for one in before.findings if not one.is_expected)
    found = _of_the_fault(last, fault, began, known)
    alarms = [one for one in (last if fault.kind is Kind.NONE else before).findings if not one.is_expected]
    return Verdict(
        fault,
        bool(early and _of_the_fault(early, fault, began, known)),
        tuple(one.cause for one in found[0].explanations) if found and fault.kind is not Kind.NONE else (),
        tuple(one.explanations[0].cause for one in alarms),
        facts["cores_of_others"],
        _waited(folder, began),
    )


def _waited(folder: Path, began: int) -> float:
    """Return the largest share of the time for which a rank waited for a CPU in the steps before the fault."""
    times: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for event in events_of(folder):
        if isinstance(event, Start) and event.resumed_step is not None:
            break
        if isinstance(event, Step) and WITHIN <= event.number < began and RUN_QUEUE_SECONDS in event.counters:
            times[event.rank].append((event.at or 0.0, event.counters[RUN_QUEUE_SECONDS]))
    shares = [(last[1] - first[1]) / (last[0] - first[0]) for first, *_, last in times.values() if last[0] > first[0]]
    return max(shares, default=0.0)


def _of_the_fault(health: Health, fault: Fault, began: int, known: frozenset[int]) -> list[Finding]:
    """Return the findings that came up with a fault, the most costly first.

    A finding may be dated some steps too early: what counts is that it was not there before the fault began.
    """
    early = REPEATED if fault.kind is Kind.RESTART else WITHIN
    found = []
    for one in health.findings:
        names_it = one.explanations[0].cause in CAUSES[fault.kind]
        is_new = one.change.first_step not in known and one.change.first_step >= began - early
        goes_on = one.change.last_step is None or one.change.last_step >= began - (early if early == REPEATED else 0)
        if is_new and goes_on and (not one.is_expected or (names_it and fault.kind in EXPECTED)):
            found.append(one)
    return sorted(found, key=lambda one: -one.change.lost_s)


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the confusion table and the rates, as Markdown."""
    by_kind: dict[Kind, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_kind[verdict.fault.kind].append(verdict)
    faulty = [kind for kind in Kind if kind is not Kind.NONE and by_kind[kind]]
    all_faulty = [verdict for kind in faulty for verdict in by_kind[kind]]
    quiet = [verdict for verdict in all_faulty if not verdict.is_disturbed]
    rows = [(kind.value, by_kind[kind]) for kind in faulty]
    rows += [(name, found) for name, found in (("**all**", all_faulty), ("**all, undisturbed**", quiet)) if found]
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
    quiet = [verdict for verdict in healthy if not verdict.is_disturbed]
    before = sum(bool(verdict.alarms) for verdict in faulty)
    others = median([verdict.cores_of_others for verdict in (*healthy, *faulty)] or [0.0])
    return (
        f"Healthy runs: {len(healthy)}, of which {len(alarmed)} with an alarm ({named}); "
        f"undisturbed ones: {len(quiet)}, of which {sum(bool(verdict.alarms) for verdict in quiet)}.\n"
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
        lines.append(f"{run}, waited {verdict.waited:.0%}: {time}, {', '.join(said) or 'no finding'}")
    return "\n".join(lines)
