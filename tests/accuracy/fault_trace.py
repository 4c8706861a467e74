"""Failure rates against a trace of a cluster that takes no part in them: ``python -m tests.accuracy.fault_trace``.

The trace holds faults of half of the 400 servers of InfiniteHBD's cluster over 348 days. Judged are the rate that
published clusters leave for it, how far its own rate carries to other nodes and other months, and the spares that
suffice.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from random import Random

from predictor.core.reliability.failure_rates import failure_rates
from predictor.core.reliability.spares import MONTHLY_SCATTER, enough_spares
from tests.conftest import SHARED

FILE = SHARED / "operations" / "cluster_faults.csv"
SERVERS, DAYS, GPUS_PER_SERVER = 200, 348.0, 8
WINDOW_DAYS, SPLITS, NORMAL_95 = 60.0, 1000, 1.645


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one server; start and end in days."""

    server: int
    start: float
    end: float


def faults() -> list[Fault]:
    """Return the faults; a server's repairs end in the order of their starts."""
    with FILE.open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["day"]))
    begun: dict[tuple[str, str, str], list[float]] = {}
    found = []
    for row in rows:
        key = (row["node"], row["class"], row["description"])
        if row["event"] == "fault_start":
            begun.setdefault(key, []).append(float(row["day"]))
        else:
            server = int(row["node"].removeprefix("node-"))
            found.append(Fault(server, begun[key].pop(0), float(row["day"])))
    return found


def per_gpu_hour(found: list[Fault]) -> float:
    """Return the trace's own rate."""
    return len(found) / (SERVERS * GPUS_PER_SERVER * DAYS * 24.0)


def coverage(found: list[Fault], scatter: float = MONTHLY_SCATTER) -> float:
    """Return how often the faults of other servers in a window of other days lie in the 90 % interval of a fit.

    Half of the servers outside the window are fitted, the other half inside it is judged.
    """
    random = Random(1)
    covered = 0
    for _ in range(SPLITS):
        fitted = set(random.sample(range(SERVERS), SERVERS // 2))
        start = random.uniform(0.0, DAYS - WINDOW_DAYS)
        is_inside = {fault: start <= fault.start < start + WINDOW_DAYS for fault in found}
        count = sum(fault.server in fitted and not is_inside[fault] for fault in found)
        judged = sum(fault.server not in fitted and is_inside[fault] for fault in found)
        mean = count * WINDOW_DAYS / (DAYS - WINDOW_DAYS)
        # Counting of both halves, and months that differ.
        spread = sqrt(1.0 / mean + 1.0 / count + scatter**2 / (WINDOW_DAYS / 30.0))
        covered += abs(log(max(judged, 0.5) / mean)) <= NORMAL_95 * spread
    return covered / SPLITS


def mean_repair_hours(found: list[Fault]) -> float:
    """Return the mean time that a server is out."""
    return 24.0 * sum(fault.end - fault.start for fault in found) / len(found)


def share_beyond(found: list[Fault], spares: int) -> float:
    """Return the share of the time in which more servers are out than there are spares."""
    times = sorted({time for fault in found for time in (fault.start, fault.end)})
    beyond = 0.0
    for begin, end in pairwise(times):
        out = {fault.server for fault in found if fault.start <= begin and fault.end >= end}
        beyond += (end - begin) * (len(out) > spares)
    return beyond / (times[-1] - times[0])


def lines() -> list[str]:
    """Return what the trace says of the rates, a sentence each."""
    found = faults()
    own, published = per_gpu_hour(found), failure_rates("hopper")
    per_node_days = GPUS_PER_SERVER * 24.0 * 1000.0
    low, high = (published.per_gpu_hour * published.spread.factor(probability) for probability in (0.05, 0.95))
    rates = [f"{each * per_node_days:.1f}" for each in (own, published.per_gpu_hour, low, high)]
    repair = mean_repair_hours(found)
    spares = enough_spares([own * GPUS_PER_SERVER * SERVERS * repair], SERVERS)
    beyond = share_beyond(found, spares)
    with_months, without = coverage(found), coverage(found, scatter=0.0)
    return [
        "faults in 1,000 node-days: {}, of published clusters {} ({} to {})".format(*rates),
        f"other servers in other 60 days in the 90 % interval: {with_months:.0%}, all months alike {without:.0%}",
        f"repairs: {repair:.0f} h; more out than {spares} spares for {SERVERS}: {beyond:.1%} of the time, 1 % meant",
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
