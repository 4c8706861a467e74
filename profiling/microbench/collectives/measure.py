"""Measure collectives over every topology of an allocation and store each call as soon as it is measured.

One table per collective and topology. This process alone writes; ranks only report. So whatever kills them, or this
process, costs the calls that were under way and no other, and the same command goes on from there. For nccl-tests with
-J a kill -9 of this process costs the binary that was under way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from microbench.collectives.bandwidth import size_multiple
from microbench.collectives.errors import CollectiveError
from microbench.collectives.gpu import Gpu
from microbench.collectives.launch import launch_command, launch_environment, run_lines
from microbench.collectives.nccl_series import doubling_series, results
from microbench.collectives.nccl_tests import NcclTests
from microbench.collectives.ranks import MARK
from microbench.collectives.sweep import Sweep
from microbench.collectives.topologies import offered
from microbench.device import device_state, library_versions, new_session, processor_name
from microbench.provenance import Identity
from microbench.table import Measurement, Status, Writer, table_path
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.operator import Direction

BACKENDS = {"gloo": "cpu", "mpi": "cpu", "nccl": "cuda", "nccl-tests": "cuda"}


@dataclass(frozen=True, slots=True)
class Request:
    """Collectives, backend, sizes, ranks and results folder of a run; ``gpu`` is None on a CPU."""

    names: tuple[str, ...]
    backend: str
    sweep: Sweep
    topology: Topology
    precision: str
    results: Path
    launcher: str | None = None
    silence_s: float = 300.0
    nccl_tests: Path | None = None
    gpu: Gpu | None = None
    say: Callable[[str], None] = lambda text: None

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """Return the kind of device that the buffers are on."""
        return "cuda" if self.gpu else "cpu"


@dataclass(frozen=True, slots=True)
class Part:
    """A collective over a topology: its table, and the sizes that are missing from it."""

    name: str
    topology: Topology
    table: Writer
    sizes: list[int]

    def append(
        self, size_bytes: int, samples_us: tuple[float, ...], kernel: str, status: Status = Status.OK
    ) -> Measurement:
        """Store one call."""
        shape = (size_bytes, self.topology.nodes, self.topology.gpus_per_node)
        row = Measurement(shape, Direction.FORWARD, samples_us, kernel, status)
        self.table.append([row])
        return row


Progress = Callable[[Part, Measurement], None]


def identity(request: Request, name: str, topology: Topology) -> Identity:
    """Return the identity of a collective's table."""
    gpu = request.gpu
    return Identity(
        kind="collective",
        name=name,
        precision=request.precision,
        worker=f"{topology.nodes}x{topology.gpus_per_node}",
        dimensions=COLLECTIVES[name].dimensions,
        directions=(Direction.FORWARD,),
        device=gpu.name if gpu else processor_name(),
        device_kind=request.device_kind,
        driver=gpu.driver if gpu else None,
        versions=library_versions(request.device_kind),
        settings={"backend": request.backend},
        config_hash=request.sweep.config_hash,
    )


def open_parts(request: Request, stack: ExitStack) -> list[Part]:
    """Lock every table that the request needs, before anything is launched.

    Raises:
        TableError: another run holds one, or one is of another device or sweep.
    """
    session = new_session(request.device_kind)
    parts = []
    for topology in offered(request.topology.nodes, request.topology.gpus_per_node):
        for name in request.names:
            if name == "point_to_point" and topology.ranks != 2:
                continue
            multiple = size_multiple(name, topology.ranks)
            runnable = request.sweep.sizes(multiple)
            if not runnable:
                request.say(
                    f"{name} over {topology.nodes}x{topology.gpus_per_node} is not measured: its sizes are multiples "
                    f"of {multiple} bytes, and max_bytes of the sweep is {request.sweep.max_bytes}"
                )
                continue
            own = identity(request, name, topology)
            path = table_path(request.results, own.kind, name, request.precision, own.worker)
            table = stack.enter_context(Writer(path, own, session))
            sizes = [size for size in runnable if not table.has((size, topology.nodes, topology.gpus_per_node))]
            parts.append(Part(name, topology, table, sizes))
    return parts


def _plan(request: Request, parts: list[Part]) -> tuple[list[tuple[Part, int]], dict[str, object]]:
    """Return every call in order, and the plan that ranks get: per topology the calls by their place in that order."""
    calls: list[tuple[Part, int]] = []
    by_topology: dict[tuple[int, int], list[tuple[int, str, int]]] = {}
    for part in parts:
        for size in part.sizes:
            key = (part.topology.nodes, part.topology.gpus_per_node)
            by_topology.setdefault(key, []).append((len(calls), part.name, size))
            calls.append((part, size))
    plan = {
        "backend": request.backend,
        "precision": request.precision,
        "nodes": request.topology.nodes,
        "ranks_per_node": request.topology.gpus_per_node,
        "blocks": asdict(request.sweep.blocks),
        "computing_us": request.sweep.computing_us,
        "parts": [{"topology": key, "calls": part_calls} for key, part_calls in by_topology.items()],
    }
    return calls, plan


def run_ranks(request: Request, parts: list[Part]) -> Iterator[tuple[Part, Measurement]]:
    """Launch our own ranks once over the whole allocation; they form the smaller topologies among themselves.

    Raises:
        CollectiveError: a rank failed or hung, or ranks are on other nodes than requested.
    """
    calls, plan = _plan(request, parts)
    program = [sys.executable, "-m", "microbench.collectives.ranks", json.dumps(plan)]
    done = 0
    command = [*launch_command(request.topology, request.launcher), *program]
    environment = launch_environment(request.topology, request.launcher)
    for line in run_lines(command, request.silence_s, environment):
        if not line.startswith(MARK):
            continue
        report = json.loads(line.removeprefix(MARK))
        if "error" in report:
            raise CollectiveError(report["error"])
        for part in parts if "reference_us" in report else ():
            if [part.topology.nodes, part.topology.gpus_per_node] == report["topology"]:
                part.table.note_reference(report["reference_us"])
        if "index" not in report:
            continue
        part, size = calls[report["index"]]
        done += 1
        if too_big := report.get("out_of_memory"):
            yield part, part.append(size, (), f"{request.backend}: {too_big}", Status.OUT_OF_MEMORY)
        else:
            yield part, part.append(size, tuple(report["samples_us"]), report["kernel"])
    if done < len(calls):
        raise CollectiveError(f"ranks ended in order after {done} of {len(calls)} calls; run the same command again")


def run_nccl_tests(request: Request, parts: list[Part]) -> Iterator[tuple[Part, Measurement]]:
    """Run one binary per collective, topology and series of sizes that double.

    Raises:
        CollectiveError: a binary is missing, failed, hung, found wrong elements or left a size out.
    """
    scratch, gpu_bytes = request.results / "collective", request.gpu.memory_bytes if request.gpu else None
    runner = NcclTests(request.nccl_tests, request.launcher, request.precision, request.silence_s, scratch, request.say)
    for part in parts:
        for series in doubling_series(part.sizes):
            for result in results(runner, part.name, part.topology, series, gpu_bytes):
                yield part, part.append(*result)


def measure(request: Request, progress: Progress) -> tuple[int, int]:
    """Measure the calls that are missing from the tables; return their number and that of the calls measured before.

    Raises:
        MeasureError: see ``open_parts``, ``run_ranks`` and ``run_nccl_tests``; every row that was reported is stored.
    """
    run = run_nccl_tests if request.backend == "nccl-tests" else run_ranks
    with ExitStack() as stack:
        parts = open_parts(request, stack)
        there = sum(len(part.table.rows) for part in parts)
        measured = 0
        if any(part.sizes for part in parts):
            for part, row in run(request, parts):
                measured += 1
                progress(part, row)
        state = device_state(request.device_kind)
        for part in parts:
            part.table.finish(state)
    return measured, there
