"""Run a fault: fork the ranks, begin the fault at its step, and keep what the ranks wrote."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.injectors import (
    Busy,
    NotPossibleError,
    Outside,
    Pulses,
    Quota,
    own_namespaces,
    shaped_for,
)
from tests.faults.training import train
from tests.faults.truth import TRUTH, Fault, Kind
from tests.ranks import free_port

DEADLINE_S = 90.0
POLL_S = 0.001
OTHER_HOST = "node-b"
_FORK = multiprocessing.get_context("fork")
HERTZ = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Run:
    """A run under way: its ranks, and the fault once it has begun.

    Attributes:
        began: first step that is affected; None: not yet.
    """

    fault: Fault
    folder: Path
    has_namespaces: bool
    told: Any = None
    ranks: list[Any] = field(default_factory=list)
    outside: Outside | None = None
    quota: Quota | None = None
    began: int | None = None
    times: list[tuple[float, int, float]] = field(default_factory=list)

    def start(self, host: str = "") -> None:
        """Fork the ranks."""
        fault = self.fault
        self.told = _FORK.Array("i", fault.ranks, lock=False)
        port = free_port()
        self.ranks = [
            _FORK.Process(target=_rank, args=(fault, self.folder, r, self.told, port, host)) for r in range(fault.ranks)
        ]
        for rank in self.ranks:
            rank.start()
            if self.quota is not None:
                self.quota.take(rank.pid)

    @property
    def step(self) -> int:
        """The last step that a rank has ended."""
        return int(max(self.told))

    def usual_s(self) -> float:
        """Mean seconds of a step from the 15th on, as seen from here."""
        first = next(at for at in self.times if at[1] >= 15)
        last = self.times[-1]
        return (last[0] - first[0]) / max(1, last[1] - first[1])

    def cores_taken(self) -> float:
        """Mean cores that the ranks took since the 15th step."""
        first = next(at for at in self.times if at[1] >= 15)
        last = self.times[-1]
        return (last[2] - first[2]) / (last[0] - first[0])

    def watch(self) -> None:
        """Begin the fault at its step, and wait for the end."""
        fault, end = self.fault, time.monotonic() + DEADLINE_S
        while any(rank.is_alive() for rank in self.ranks):
            if time.monotonic() > end:
                raise TimeoutError(f"not at its end after {DEADLINE_S:g} s, at step {self.step}")
            if self.began is None and self.step >= (self.times[-1][1] if self.times else 14) + 1:
                self.times.append((time.monotonic(), self.step, sum(_cpu_s(rank.pid) for rank in self.ranks)))
            if self.began is None and self.step + 1 >= fault.start:
                self.begin()
            if self.outside is not None:
                self.outside.poll()
            time.sleep(POLL_S)
        codes = [rank.exitcode for rank in self.ranks]
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")

    def begin(self) -> None:
        """Begin the fault."""
        fault = self.fault
        self.began = self.step + 1
        if fault.kind is Kind.SLOW_RANK:
            self.outside = Pulses(self.ranks[fault.rank].pid, fault.size, self.usual_s())
        elif fault.kind is Kind.CONTENTION:
            self.outside = Busy(int(fault.size))
        elif fault.kind is Kind.CGROUP and self.quota is not None:
            self.quota.limit(fault.size * self.cores_taken())
        elif fault.kind is Kind.NETWORK:
            self.outside = shaped_for(fault.size * self.usual_s(), fault.ranks)
        elif fault.kind is Kind.RESTART:
            self.restart()
        else:
            self.began = fault.start  # the ranks begin it themselves

    def restart(self) -> None:
        """Kill all ranks, and start them again after a while, on another host where the variant says so."""
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.join()
        time.sleep(self.fault.size)
        self.start(OTHER_HOST if self.fault.variant else "")

    def close(self) -> None:
        """End what is left."""
        if self.outside is not None:
            self.outside.close()
        for rank in self.ranks:
            if rank.is_alive():
                rank.kill()
            rank.join()
        if self.quota is not None:
            self.quota.close()


def _rank(fault: Fault, folder: Path, rank: int, told: Any, port: int, host: str) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(fault.ranks),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with (folder / f"rank-{rank}.log").open("a") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    train(fault, folder, rank, told, host)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process. Source: proc(5), utime and stime of /proc/PID/stat."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(values[11]) + int(values[12])) / HERTZ


def _busy_s() -> float:
    """CPU seconds of the whole machine, time that its host gave to others included."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = values[:8]
    return (user + nice + system + irq + softirq + steal) / HERTZ


def _own_s() -> float:
    return sum(
        u.ru_utime + u.ru_stime
        for u in (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _run(fault: Fault, out: Path) -> None:
    """Run a fault in a process of its own, and write what came of it."""
    has_namespaces = own_namespaces()
    facts: dict[str, Any] = {"fault": fault.as_dict()}
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder = Path(place)
        run = Run(fault, folder, has_namespaces)
        began, busy, own = time.monotonic(), _busy_s(), _own_s()
        try:
            if not has_namespaces and (fault.kind is Kind.NETWORK or (fault.kind is Kind.RESTART and fault.variant)):
                raise NotPossibleError("no namespaces of one's own")
            if fault.kind is Kind.CGROUP:
                run.quota = Quota()
            run.start()
            run.watch()
        except NotPossibleError as error:
            facts["skipped"] = str(error)
        except (RuntimeError, TimeoutError, OSError) as error:
            facts["failed"] = f"{error}\n" + "".join(p.read_text()[-1500:] for p in sorted(folder.glob("rank-*.log")))
        finally:
            run.close()
        took = time.monotonic() - began
        facts |= {
            "began": run.began,
            "seconds": round(took, 2),
            "cores_of_others": round(max(0.0, _busy_s() - busy - (_own_s() - own)) / took, 2),
        }
        for path in sorted((folder / "health").glob("rank-*.jsonl")):
            with path.open("rb") as plain, gzip.open(out / f"{path.name}.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
    (out / TRUTH).write_text(json.dumps(facts, indent=1))


def run_all(planned: list[Fault], out: Path) -> None:
    """Run faults one after another; those whose result is there are left out."""
    for fault in planned:
        place = out / f"{fault.number:03d}-{fault.kind.value.replace(' ', '-')}"
        if (place / TRUTH).is_file():
            continue
        place.mkdir(parents=True, exist_ok=True)
        process = _FORK.Process(target=_run, args=(fault, place))
        process.start()
        process.join()
        facts = json.loads((place / TRUTH).read_text()) if (place / TRUTH).is_file() else {"failed": process.exitcode}
        told = next(
            (f"{name}: {facts[name]}" for name in ("skipped", "failed") if name in facts), f"{facts.get('seconds')} s"
        )
        print(f"{place.name}, {fault.ranks} ranks, size {fault.size:g}: {told}", file=sys.stderr, flush=True)
