"""Evidence for the cause of a deviation: facts of its steps against those of the usual steps before it.

Each extractor answers one question of ``causes.yaml`` with one of its values and a sentence, or with None where the
log does not say. An answer never rests on the step time alone, apart from the shape of a change of level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from statistics import median

from predictor.watch.detector import MATERIAL, Shift
from predictor.watch.events import (
    ALLOCATOR_RETRIES,
    ALLOCATOR_RETRY,
    BACKWARD,
    COLLECTED_SECONDS,
    COLLECTION,
    COMMUNICATION,
    CPU_SECONDS,
    FORWARD,
    HARDWARE,
    INVOLUNTARY_SWITCHES,
    NETWORK,
    OPTIMIZER,
    OUT_OF_MEMORY,
    PARTS,
    RECOMPILATIONS,
    RECOMPILED,
    RUN_QUEUE_SECONDS,
    THROTTLED_SECONDS,
)
from predictor.watch.health import ChangeKind
from predictor.watch.observations import (
    CAPPED,
    CLOCK,
    HOT,
    MEMORY,
    MESSAGE,
    SAMPLES,
    SECONDS,
    SEQUENCE,
    TOKENS,
    own_seconds,
)
from predictor.watch.records import Record

_MOST = 0.5  # of the extra time: what holds it is the place of the deviation
_LITTLE = 0.25  # of the extra time, or of readings
_NEAR_FULL = 0.92  # of the memory; PyTorch's allocator starts to flush its cache when a request no longer fits
_RAMPS = (1.5, 2.0, 3.0, 4.0)  # of the work from stage to stage; smaller ones cannot be told from faults
_SCALES = 0.75  # of a step grows with its work, at least; the rest is the optimizer and launches
_LEAST_ERROR = 0.02
_LEAST_NOISE = 0.01  # relative spread that is small on any level
_SETTLED = 64  # steps after which the spread of a new level is known
_SAME_SIZE = 0.08
_COMPUTE = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass(frozen=True, slots=True)
class Sign:
    """Answer to a question: its value and the fact that it rests on."""

    question: str
    value: str
    sentence: str


def duration(seconds: float) -> str:
    """Return a duration in the unit that reads best.

    >>> duration(0.0123), duration(75.0), duration(4.2)
    ('12.3 ms', '75 s', '4.2 s')
    """
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if abs(seconds) < 10 else f"{seconds:,.0f} s"


def signs_of(record: Record) -> tuple[Sign, ...]:
    """Return every answer that the log gives about a deviation; of a stated activity, that it is one."""
    if record.is_stated:
        sign = _activity(record)
        return (sign,) if sign is not None else ()
    found = (extract(record) for extract in _EXTRACTORS)
    return tuple(sign for sign in found if sign is not None)


def extra_of(record: Record) -> float:
    """Return the time of an affected step above a usual one."""
    return record.affected.run.get(SECONDS, 0.0) - record.usual.run.get(SECONDS, record.level_s)


def _growth(record: Record, name: str) -> float:
    """Return the growth of a fact of the run; 0 where it is not stated."""
    return record.affected.run.get(name, 0.0) - record.usual.run.get(name, 0.0)


def _part(record: Record) -> Sign | None:
    parts = [part for part in PARTS if part in record.affected.run]
    extra = extra_of(record)
    if not parts or extra <= 0:
        return None
    growth = {part: _growth(record, part) for part in parts}
    compute = sum(growth.get(part, 0.0) for part in _COMPUTE)
    part = max(growth, key=lambda name: growth[name])
    if part not in _COMPUTE and growth[part] >= _MOST * extra:
        return Sign("part", part, _share(part.replace("_", " "), growth[part], extra, record.affected.run[part]))
    if compute >= _MOST * extra:
        return Sign("part", "compute", _share("forward, backward and optimizer", compute, extra))
    return Sign("part", "none", f"No stated part holds half of the {duration(extra)} above the usual step")


def _share(name: str, growth: float, extra: float, value: float | None = None) -> str:
    now = f" (now {duration(value)})" if value is not None else ""
    return f"{name.capitalize()}: {duration(growth)} of the {duration(extra)} above the usual step{now}"


def own_growth(record: Record) -> dict[int, float]:
    """Return by rank how much longer it worked itself; empty where ranks state no parts."""
    return {
        rank: own_seconds(values) - own_seconds(record.usual.ranks[rank])
        for rank, values in record.affected.ranks.items()
        if rank in record.usual.ranks and any(part in values for part in _COMPUTE)
    }


def _ranks(record: Record) -> Sign | None:
    growth, extra = own_growth(record), extra_of(record)
    if len(growth) < 2 or extra <= 0:
        return None
    slow = sorted(rank for rank, seconds in growth.items() if seconds >= _MOST * extra)
    most = max(growth, key=lambda rank: growth[rank])
    rest = median([seconds for rank, seconds in growth.items() if rank != most])
    waits = [
        values.get(COMMUNICATION, 0.0) - record.usual.ranks[rank].get(COMMUNICATION, 0.0)
        for rank, values in record.affected.ranks.items()
        if rank in record.usual.ranks
    ]
    if len(slow) == 1 and rest < _LITTLE * extra:
        waiting = f", while the others wait {duration(max(waits))} longer in communication" if max(waits) > 0 else ""
        return Sign("ranks", "one", f"Rank {slow[0]} works {duration(growth[slow[0]])} longer itself{waiting}")
    if slow and rest < _LITTLE * extra:
        host = record.host_of(slow)
        if host:
            return Sign(
                "ranks", "node", f"Ranks {', '.join(map(str, slow[:8]))}, all of {host}, work longer themselves"
            )
        return Sign("ranks", "several", f"Ranks {', '.join(map(str, slow[:8]))} work longer themselves, the rest not")
    if not slow and min(waits) >= _MOST * extra:
        return Sign("ranks", "waiting", f"All {len(waits)} ranks are {duration(min(waits))} longer in communication")
    if len(slow) > len(growth) / 2:
        return Sign("ranks", "all", f"{len(slow)} of {len(growth)} ranks work longer themselves")
    return None


def _counter(question: str, name: str, text: str, message: str | None = None) -> Callable[[Record], Sign | None]:
    """Return the extractor of a counter that stands still in usual steps."""

    def extract(record: Record) -> Sign | None:
        now, told = record.affected.run.get(name), f"{MESSAGE}{message}"
        times = now * record.affected.count if now is not None else 0.0
        if message is not None and told in record.affected.run:
            times = max(times, record.affected.run[told] * record.affected.count)
        elif now is None:
            return None
        before = max(record.usual.run.get(name, 0.0), record.usual.run.get(told, 0.0))
        rate = times / max(record.affected.count, 1)
        present = rate > 2 * before and times >= 1 and rate >= 0.2
        return Sign(question, "yes" if present else "no", f"{text}: {times:.0f} in {record.affected.count} slow steps")

    return extract


def _seconds_counter(
    question: str, name: str, text: str, part: str = "", least: float = _LITTLE
) -> Callable[[Record], Sign | None]:
    """Return the extractor of a counter of seconds: whether it holds a good share of the extra time, or ``least``."""

    def extract(record: Record) -> Sign | None:
        if name not in record.affected.run and part not in record.affected.run:
            return None
        extra = extra_of(record)
        growth = max(_growth(record, name), _growth(record, part) if part else 0.0)
        present = extra > 0 and growth >= least * extra
        return Sign(question, "yes" if present else "no", f"{text}: {duration(max(growth, 0.0))} more a step")

    return extract


def _switches(record: Record) -> Sign | None:
    now, before = record.affected.run.get(INVOLUNTARY_SWITCHES), record.usual.run.get(INVOLUNTARY_SWITCHES)
    if now is None or before is None or RUN_QUEUE_SECONDS in record.affected.run:  # that is the measure itself
        return None
    text = f"Involuntary context switches: {now:.1f} a step after {before:.1f}"
    # Counts scale with time: a longer step alone has more of them. Poisson noise of the counts: 3 standard deviations.
    scaled = before * record.affected.run.get(SECONDS, 0.0) / max(record.usual.run.get(SECONDS, 1.0), 1e-9)
    noise = 3 * (max(scaled, 1.0) / max(record.affected.count, 1)) ** 0.5
    return Sign("switches", "yes" if now > 2 * scaled + noise else "no", text)


def _cpu(record: Record) -> Sign | None:
    """Whether the rank that works longest spends its extra time off the CPU."""
    growth, extra = own_growth(record), extra_of(record)
    if extra <= 0:
        return None
    if growth:
        rank = max(growth, key=lambda at: growth[at])
        now, before = record.affected.ranks[rank], record.usual.ranks[rank]
    else:
        now, before = record.affected.run, record.usual.run
    if CPU_SECONDS not in now or CPU_SECONDS not in before:
        return None
    more = now[CPU_SECONDS] - before[CPU_SECONDS]
    used = before[CPU_SECONDS] / max(record.usual.run.get(SECONDS, 0.0), 1e-9)
    text = f"CPU time of the process: {duration(more)} more in {duration(extra)} longer steps"
    return Sign("off_cpu", "yes" if more < _LITTLE * extra * max(used, 0.1) else "no", text)


def _memory_full(record: Record) -> Sign | None:
    share = record.memory_share
    if MESSAGE + OUT_OF_MEMORY in record.affected.run:
        return Sign("near_full", "yes", "The log states that memory ran out")
    grows = _memory_grows(record)
    if share is None or (share < _NEAR_FULL and grows is not None and grows.value == "yes"):
        return None  # it may be on its way there
    return Sign("near_full", "yes" if share >= _NEAR_FULL else "no", f"Memory: {share:.0%} of the limit is reserved")


def _memory_grows(record: Record) -> Sign | None:
    now, before = record.affected.run.get(MEMORY), record.usual.run.get(MEMORY)
    if now is None or not before:
        return None
    text = f"Memory: {now / 1e9:.2f} GB in the slow steps after {before / 1e9:.2f} GB"
    return Sign("memory_grows", "yes" if now > 1.05 * before else "no", text)


def _workload(record: Record) -> Sign | None:
    """Whether tokens, samples or the sequence of a step changed with its time."""
    grown = extra_of(record)
    stayed = []
    for name, text in ((TOKENS, "Tokens of a step"), (SAMPLES, "Samples of a step"), (SEQUENCE, "Sequence length")):
        now, before = record.affected.run.get(name), record.usual.run.get(name)
        if not now or not before:
            continue
        stayed.append(text)
        if abs(log(now / before)) > 0.005 and (now > before) == (grown > 0):
            sentence = f"{text}: {before:,.0f} → {now:,.0f} (× {now / before:.2f}) with the step (+ {duration(grown)})"
            return Sign("workload", "grew", sentence)
    if not stayed:
        return None
    value = "samples" if SAMPLES in record.affected.run and len(stayed) == 1 else "same"
    return Sign("workload", value, f"{' and '.join(stayed).capitalize()} stayed")


def _activity(record: Record) -> Sign | None:
    if not record.activities or not record.occurrences:
        return None
    part, steps = record.activities.most_common(1)[0]
    if steps < _MOST * record.occurrences:
        return None
    name = part.capitalize()
    if record.is_longer:
        longer = f"{name}: {duration(record.change.extra_s)} longer than the {duration(record.level_s)} before"
        return Sign("stated", part, longer)
    if record.is_stated:
        each = record.stated_s or record.lost_s / record.occurrences
        times = f"{name} {record.occurrences} times"
        return Sign("stated", part, f"{times}, {duration(each)} each" if each > MATERIAL * record.level_s else times)
    return Sign("activity", part, f"{name} at {steps} of {record.occurrences} slow steps")


def _first_steps(record: Record) -> Sign | None:
    if not record.first_steps:
        return None
    text = f"The first steps of a process, {duration(record.lost_s)} above the steps that follow"
    return Sign("first_steps", "yes", text)


def _hosts(record: Record) -> Sign | None:
    return Sign("hosts", "changed", "The process restarted on other nodes") if record.hosts_changed else None


def _planned(record: Record) -> Sign | None:
    """Whether the run that this one is compared with has the same change of level."""
    if record.planned is None:
        return None
    text = f"The other run changes its level at step {record.planned.first_step:,} too, by the same factor"
    return Sign("planned", "yes", text)


def _restarted(record: Record) -> Sign | None:
    return Sign("restarted", "yes", record.restarted) if record.restarted else None


def _devices(record: Record) -> Sign | None:
    run, before = record.affected.run, record.usual.run
    for kind, text in ((HOT, "thermal limit"), (CAPPED, "power limit")):
        read = [name for name in run if name.startswith(kind)]
        limited = [name.removeprefix(kind) for name in read if run[name] >= before.get(name, 0.0) + _LITTLE]
        if len(limited) == 1 < len(read):
            return Sign("device", "one", f"{limited[0]} alone of {len(read)} states a {text} in the slow steps")
        if limited:
            named = f"{', '.join(limited[:8])}{' and others' if len(limited) > 8 else ''}"
            told = f"{len(limited)} of {len(read)} GPUs state a {text} in the slow steps: {named}"
            return Sign("device", "limited", told)
    if CLOCK not in run or CLOCK not in before:
        return None
    text = f"Lowest GPU clock: {run[CLOCK]:.0f} MHz after {before[CLOCK]:.0f} MHz"
    return Sign("device", "limited" if run[CLOCK] < 0.97 * before[CLOCK] else "same", text)


def _message(question: str, kind: str, text: str) -> Callable[[Record], Sign | None]:
    def extract(record: Record) -> Sign | None:
        rate = record.affected.run.get(MESSAGE + kind, 0.0)
        if rate <= 2 * record.usual.run.get(MESSAGE + kind, 0.0):
            return None
        return Sign(question, "yes", f"{text} beside {rate * record.affected.count:.0f} slow steps")

    return extract


def _only_times(record: Record) -> Shift | None:
    """Return a sharp change of level of a log that states neither the work of a step nor its parts."""
    shift = record.shift
    if record.kind is not ChangeKind.JUMP or shift is None or not shift.sharp or shift.after_s <= shift.before_s:
        return None
    if _workload(record) is not None or record.affected.ranks or part_growth(record):
        return None
    return shift


def _shape(record: Record) -> Sign | None:
    """Whether a change of level looks like a stage of a ramp: at once, by half or a multiple, with the same spread."""
    shift = _only_times(record)
    if shift is None:
        return None
    grown = shift.after_s / shift.before_s
    if not any(_SCALES * (ramp - 1) <= grown - 1 <= ramp - 1 + _LEAST_ERROR for ramp in _RAMPS):
        return None
    settled = record.occurrences >= _SETTLED
    if settled and shift.after_noise > 2 * max(shift.before_noise, _LEAST_NOISE):
        return None
    text = f"Complete within a step or two, × {grown:.2f}"
    text += ", relative spread no larger" if settled else ""
    return Sign("shape", "ramp", text)


def _gap(record: Record) -> Sign | None:
    """Whether the difference between kinds of steps stayed (work was added to each) or grew with the step."""
    shift = _only_times(record)
    if shift is None:
        return None
    grown = shift.after_s / shift.before_s
    noise = shift.before_noise * shift.before_s + shift.after_noise * shift.after_s
    if shift.before_gap_s * (grown - 1) <= noise:
        return None
    share = (shift.after_gap_s / shift.before_gap_s - 1) / (grown - 1)  # 0: it stayed; 1: it grew with the step
    if 1 / 3 < share < 2 / 3:
        return None
    text = (
        f"Kinds of steps differ by {duration(shift.after_gap_s)} after {duration(shift.before_gap_s)}, "
        f"while the step grew × {grown:.2f}"
    )
    return Sign("gap", "yes" if share < 0.5 else "no", text)


def _repeated(record: Record) -> Sign | None:
    """Whether another change of level has the same size in seconds, as the stages of a ramp have."""
    shift = _only_times(record)
    if shift is None or _shape(record) is None:
        return None
    size = shift.after_s - shift.before_s
    same = [other for other in record.other_sizes_s if abs(other / size - 1) < _SAME_SIZE]
    if not same:
        return None
    return Sign("repeated", "yes", f"Another change adds the same time: {duration(same[0])} and {duration(size)}")


_EXTRACTORS: tuple[Callable[[Record], Sign | None], ...] = (
    _first_steps, _part, _ranks, _workload, _activity, _shape, _gap, _repeated, _planned, _restarted,
    _hosts, _devices, _switches, _cpu, _memory_full,
    _memory_grows,
    _seconds_counter("throttled", THROTTLED_SECONDS, "Time throttled by the cgroup's CPU limit"),
    _seconds_counter("run_queue", RUN_QUEUE_SECONDS, "Time ready to run but without a CPU", least=_MOST),
    _seconds_counter("collected", COLLECTED_SECONDS, "Time in the garbage collector", COLLECTION),
    _counter("retries", ALLOCATOR_RETRIES, "Allocator retries", ALLOCATOR_RETRY),
    _counter("recompiled", RECOMPILATIONS, "Recompilations", RECOMPILED),
    _message("network_message", NETWORK, "Messages about the network"),
    _message("hardware_message", HARDWARE, "Messages about the hardware"),
)  # fmt: skip


def part_growth(record: Record) -> Mapping[str, float]:
    """Return the growth of every stated part, the largest first."""
    growth = {part: _growth(record, part) for part in PARTS if part in record.affected.run}
    return dict(sorted(growth.items(), key=lambda item: -item[1]))
