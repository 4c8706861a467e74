"""``python -m microbench collective``: measure collectives on the ranks of this machine or of this Slurm job."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from microbench.collectives.bandwidth import algorithm_bandwidth, bus_bandwidth, total_bytes
from microbench.collectives.gpu import find_gpu
from microbench.collectives.measure import BACKENDS, Part, Request, measure
from microbench.collectives.sweep import read_sweep
from microbench.errors import MeasureError
from microbench.table import Measurement
from predictor.core.base.command_line import progress
from predictor.core.base.errors import nearest
from predictor.core.costs.collectives import MESSAGE_PASSING, Topology

ALL = "all"
PRECISION_HELP = "default: fp32 on a CPU, on a GPU what operators default to: bf16 where it has it"
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NODELIST")
COLUMNS = ("collective", "topology", "size_bytes", "median_us", "spread_us", "algbw_gb_per_s", "busbw_gb_per_s")


def _names(given: list[str]) -> tuple[str, ...]:
    """Return the collectives; ``all`` stands for every collective.

    Raises:
        MeasureError: a name is unknown.
    """
    for name in given:
        if name not in MESSAGE_PASSING and name != ALL:
            known = ", ".join((*MESSAGE_PASSING, ALL))
            raise MeasureError(f"unknown collective {name!r}; known: {known}.{nearest(name, MESSAGE_PASSING)}")
    return tuple(MESSAGE_PASSING) if ALL in given else tuple(dict.fromkeys(given))


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; expected a whole number, at least 1")
    return int(text)


def _request(arguments: argparse.Namespace) -> Request:
    """Check the command line before ranks start.

    Raises:
        MeasureError: an option is bad, or there is no GPU.
    """
    topology = Topology(arguments.nodes, arguments.ranks_per_node)
    if topology.ranks < 2:
        raise MeasureError(f"{topology.ranks} rank; a collective has at least 2: raise --ranks-per-node or --nodes")
    if any(name in os.environ for name in RANK_VARIABLES):
        raise MeasureError(
            "started by mpiexec or srun; start it once, it launches the ranks itself (--nodes, --ranks-per-node)"
        )
    gpu = find_gpu(arguments.backend) if BACKENDS[arguments.backend] == "cuda" else None
    precision = arguments.precision or (gpu.precision if gpu else "fp32")
    if precision is None:
        raise MeasureError("nvidia-smi of this driver does not report the GPU's compute capability: give --precision")
    if arguments.backend == "mpi" and precision != "fp32":
        raise MeasureError(
            f"precision is {precision}; MPI has no half precision: use fp32, since the time follows the bytes"
        )
    if not math.isfinite(arguments.silence_s) or arguments.silence_s <= 0:
        raise MeasureError(f"--silence-s is {arguments.silence_s}; expected seconds, above 0")
    return Request(
        names=_names(arguments.names),
        backend=arguments.backend,
        sweep=read_sweep(arguments.sweep),
        topology=topology,
        precision=precision,
        results=arguments.out,
        launcher=arguments.launcher,
        silence_s=arguments.silence_s,
        nccl_tests=arguments.nccl_tests,
        gpu=gpu,
        say=progress,
    )


def row_values(name: str, topology: Topology, row: Measurement) -> tuple[str, ...]:
    """Return a row as the command prints it, bandwidths as nccl-tests defines them."""
    where = f"{topology.nodes}x{topology.gpus_per_node}"
    if not row.status.is_timed:
        return name, where, str(row.shape[0]), row.status.value, "", "", ""
    total = total_bytes(name, row.shape[0], topology.ranks)
    speeds = (algorithm_bandwidth(total, row.median_us), bus_bandwidth(name, total, row.median_us, topology.ranks))
    return name, where, str(row.shape[0]), f"{row.median_us:.1f}", f"{row.spread_us:.1f}", *(f"{s:.3f}" for s in speeds)


def _print(values: tuple[str, ...]) -> None:
    print("{:<15} {:>8} {:>12} {:>14} {:>12} {:>15} {:>15}".format(*values), flush=True)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print each call as it is stored.

    Raises:
        MeasureError: bad input, or ranks that failed; every row that they reported is stored.
    """
    request = _request(arguments)
    headed = False

    def show(part: Part, row: Measurement) -> None:
        nonlocal headed
        if not headed:
            _print(COLUMNS)
            headed = True
        _print(row_values(part.name, part.topology, row))

    measured, there = measure(request, show)
    progress(f"{measured} calls measured, {there} were there already, in {request.results}/collective")
    return 0


def register(commands: Any) -> None:
    """Add the sub-command ``collective`` to a parser's sub-commands."""
    command = commands.add_parser("collective", help="measure collectives over every topology of the allocation")
    command.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(MESSAGE_PASSING)}, or {ALL}")
    command.add_argument("--backend", choices=sorted(BACKENDS), default="gloo", help="default: gloo")
    command.add_argument("--sweep", default="smoke", help="smoke, standard, full, or a YAML file of message sizes")
    command.add_argument("--out", type=Path, required=True, help="results folder, e.g. results/NAME")
    command.add_argument("--nodes", type=_at_least_one, default=1, help="nodes of this allocation (default: 1)")
    command.add_argument(
        "--ranks-per-node", type=_at_least_one, default=2, help="GPUs, or processes, on each (default: 2)"
    )
    command.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help=PRECISION_HELP)
    command.add_argument(
        "--launcher", help='ibrun, "srun --mpi=pmi2", …; sizes are added (default: srun in a job, else mpiexec)'
    )
    command.add_argument("--silence-s", type=float, default=300.0, help="ranks silent for longer hang (default: 300)")
    command.add_argument("--nccl-tests", type=Path, metavar="FOLDER", help="where all_reduce_perf and its sisters are")
    command.set_defaults(run=run)
