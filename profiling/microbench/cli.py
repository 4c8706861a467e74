"""Measure this machine: operators, and its device; stdout is the result, stderr progress.

python -m microbench operator ffn_up gelu --sweep smoke --device cpu --out results/here
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from microbench.attention import OTHERS, fault
from microbench.collectives.cli import register as register_collective
from microbench.device import find_device, process_age_s
from microbench.errors import MeasureError
from microbench.host.cli import register as register_host
from microbench.kernels import engine_fault, kernel_names
from microbench.profile import DeviceLostError, Job, profile
from microbench.report.cli import register as register_report
from microbench.steps.cli import register as register_steps
from microbench.study.cli import register as register_study
from microbench.survey.cli import register as register_survey
from microbench.sweep import Sweep, measured_by, read_sweep, sweep_names
from microbench.table import read_tables
from microbench.traced.cli import register as register_traced
from predictor.core.base.command_line import Parser, progress
from predictor.core.base.errors import ConfigError, nearest
from predictor.core.costs.catalogue import catalogue, operator_named
from predictor.core.costs.operator import KERNEL_MARK

FAILED, BAD_INPUT, TERMINATED = 1, 2, 143


def _names() -> list[str]:
    """Return the operators, and attention in every implementation that is measured apart."""
    return kernel_names() + [f"{name}{KERNEL_MARK}{kernel}" for name, others in OTHERS.items() for kernel in others]


def _check_operators(names: Sequence[str]) -> None:
    """Check that the requested operators exist; "all" names all of them.

    Raises:
        MeasureError: an operator is unknown.
    """
    known = _names()
    for name in names:
        if name not in known and list(names) != ["all"]:
            raise MeasureError(f"{name} is not an operator.{nearest(name, known)} Known: {', '.join(known)}")


def _in_precision(names: Sequence[str], precision: str, sweep: Sweep) -> list[str]:
    """Return the requested operators; "all" names those of the sweep that exist in the precision, attention once.

    Raises:
        MeasureError: a requested operator does not exist in it.
    """
    existing = [name for name in _names() if precision in operator_named(name).precisions]
    if list(names) == ["all"]:
        return [name for name in existing if name in measured_by(sweep)]
    missing = ", ".join(name for name in names if name not in existing)
    if missing:
        raise MeasureError(f"{missing}: nothing to measure in {precision}, in which there are {', '.join(existing)}")
    return list(dict.fromkeys(names))


def _fault(name: str, device: str, precision: str) -> str:
    """Return why an operator's engine or implementation does not run here; empty if it does."""
    operator = operator_named(name)
    return engine_fault(operator.name) or fault(operator, device, precision)


def _shard(text: str) -> tuple[int, int]:
    """Return (i, n) of « i/n ».

    Raises:
        MeasureError: it is not of that form, or i is not below n.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise MeasureError(f"--shard is {text}; expected i/n with 0 ≤ i < n, such as 0/4")
    return int(index), int(count)


def _operator(arguments: argparse.Namespace) -> int:
    _check_operators(arguments.names)
    sweep, shard = read_sweep(arguments.sweep), _shard(arguments.shard)
    device = find_device(arguments.device, arguments.threads)
    deadline = float("inf")
    if arguments.budget_minutes is not None:
        deadline = arguments.began + 60.0 * arguments.budget_minutes
    precision = arguments.precision or device.precisions[0]
    job = Job(arguments.out, device, precision, sweep, shard, deadline, arguments.in_order, arguments.threads)
    requested = _in_precision(arguments.names, job.precision, sweep)
    faults = {name: why for name in requested if (why := _fault(name, device.kind, precision))}
    for name, why in faults.items():
        print(f"{name} is left out: {why}", file=sys.stderr)
    names = [name for name in requested if name not in faults]
    progress(f"measuring {len(names)} operators on {device.name} in {job.precision}, shard {arguments.shard}")
    outcomes = profile(job, names, progress)
    for outcome in outcomes:
        print(outcome.path)
    failures = [outcome for outcome in outcomes if outcome.is_failure]
    for outcome in failures:
        print(f"error: {outcome.operator}: no call could be timed: {outcome.reason}", file=sys.stderr)
    return FAILED if failures or (faults and arguments.names != ["all"]) else 0


def _list(arguments: argparse.Namespace) -> int:
    rows = [
        {
            "operator": name,
            "dimensions": list(operator.dimensions),
            "directions": [str(d) for d in operator.directions],
            "precisions": list(operator.precisions),
        }
        for name, operator in catalogue().items()
        if name in kernel_names()
    ]
    if arguments.json:
        print(json.dumps({"operators": rows, "sweeps": sweep_names()}, indent=1))
        return 0
    for row in rows:
        print(f"{row['operator']:<24} {', '.join(row['dimensions']):<48} {', '.join(row['directions'])}")
    print(f"other kernels of attention: {', '.join(name for name in _names() if KERNEL_MARK in name)}")
    print(f"sweeps: {', '.join(sweep_names())}")
    return 0


def _system(arguments: argparse.Namespace) -> int:
    from microbench.system import SYSTEM, described, is_complete, read_datasheet, sheet_of, with_datasheet, write_system

    device = find_device(arguments.device, arguments.threads)
    path = arguments.datasheet
    if path is not None and path.is_dir():
        path = sheet_of(device, path)
    sheet = read_datasheet(path) if path else None
    default = device.name if arguments.datasheet else arguments.out.resolve().name
    name = arguments.name or (path.stem if path else default)
    progress(f"measuring the peaks of {device.name}")
    known = is_complete(arguments.out / SYSTEM, device)  # an earlier run's peaks are worth more than half of this one's
    for document in described(device, name, progress, arguments.sustained_seconds):
        if not known:
            write_system(arguments.out, with_datasheet(document, sheet, device) if sheet else document)
    print(write_system(arguments.out, with_datasheet(document, sheet, device) if sheet else document))
    return 0


def _reference(arguments: argparse.Namespace) -> int:
    """Print the reference kernel's time, of so many processes at once."""
    from microbench.reference import slowest_us

    device = find_device(arguments.device)
    if arguments.processes < 1:
        raise MeasureError(f"--processes is {arguments.processes}; it must be at least 1")
    print(json.dumps({"device": device.name, "us": slowest_us(device.kind, arguments.processes)}))
    return 0


def _status(arguments: argparse.Namespace) -> int:
    """Print the contents of a results folder and the noise of its rows."""
    if not arguments.results.is_dir():
        raise MeasureError(f"{arguments.results}: no such folder of results")
    for kind in ("operator", "collective"):
        for table in read_tables(arguments.results, kind):
            last = table.provenance.sessions[-1]
            noise = "unfinished" if last.relative_spread is None else f"IQR {last.relative_spread:.1%} of the median"
            print(f"{table.path.relative_to(arguments.results)}: {len(table.rows)} rows, {noise}")
    return 0


def _repeatability(arguments: argparse.Namespace) -> int:
    from microbench.repeatability import repeatability

    device = find_device(arguments.device, arguments.threads)
    result = repeatability(device, read_sweep(arguments.sweep), arguments.shapes, progress)
    print(json.dumps(result) if arguments.json else result["text"])
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = Parser(prog="python -m microbench", description=__doc__.splitlines()[0] if __doc__ else "")
    commands = result.add_subparsers(required=True, metavar="COMMAND")
    device = Parser(add_help=False)
    device.add_argument("--device", default="auto", help="cpu, cuda or auto (default): a GPU where there is one")
    device.add_argument("--threads", type=int, default=1, help="torch's threads on a CPU (default 1)")
    operator = commands.add_parser("operator", parents=[device], help="measure operators into tables")
    operator.add_argument(
        "names", nargs="+", metavar="NAME", help="operators, flash_attention-cudnn and the like, or all"
    )
    operator.add_argument("--sweep", default="standard", help="smoke, standard, full, recommender or a .yaml file")
    operator.add_argument("--out", type=Path, required=True, help="results folder of this system, results/NAME")
    operator.add_argument("--precision", help="fp32, bf16, fp16, fp8 or fp8_block (default: the device's usual)")
    operator.add_argument("--shard", default="0/1", help="i/n: measure every n-th shape, starting with the i-th")
    operator.add_argument("--budget-minutes", type=float, help="begin no shape after so long; run again to continue")
    operator.add_argument("--in-order", action="store_true", help="spend the budget in the order named, not equally")
    operator.set_defaults(run=_operator)
    register_collective(commands)
    register_report(commands)
    register_steps(commands, device)
    register_survey(commands)
    register_study(commands)
    register_host(commands)
    register_traced(commands, device)
    listing = commands.add_parser("list", help="list operators and sweeps")
    listing.add_argument("--json", action="store_true", help="for machines")
    listing.set_defaults(run=_list)
    system = commands.add_parser("system", parents=[device], help="write system.yaml: the device and its peaks")
    system.add_argument("--out", type=Path, required=True, help="results folder of this system")
    system.add_argument("--name", help="the system's name (default: the folder's)")
    system.add_argument(
        "--datasheet", type=Path, help="training/systems/NAME.yaml with peaks and links to state, or a folder of them"
    )
    system.add_argument(
        "--sustained-seconds", type=float, default=10.0, help="length of a GPU's product without a pause (default 10)"
    )
    system.set_defaults(run=_system)
    status = commands.add_parser("status", help="show the contents of a results folder and the noise of its rows")
    status.add_argument("results", type=Path)
    status.set_defaults(run=_status)
    reference = commands.add_parser("reference", help="time the reference kernel, which tells how busy a machine is")
    reference.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    reference.add_argument(
        "--processes", type=int, default=1, metavar="N", help="at once, as many as ranks (default 1)"
    )
    reference.set_defaults(run=_reference)
    twice = commands.add_parser("repeatability", parents=[device], help="measure the same shapes twice and compare")
    twice.add_argument("--sweep", default="smoke", help="whose shapes")
    twice.add_argument("--shapes", type=int, default=20, help="how many (default 20)")
    twice.add_argument("--json", action="store_true", help="for machines")
    twice.set_defaults(run=_repeatability)
    return result


def main(arguments: Sequence[str] | None = None, age_s: float = 0.0) -> int:
    """Run one command; return 0, 1 where a requested measurement failed, or 2 after one line about bad input.

    Args:
        arguments: the command line's, by default.
        age_s: time since the command's start that its budget has to count: of Python and the modules above.
    """
    began = time.monotonic() - age_s
    try:
        parsed = parser().parse_args(arguments)
        parsed.began = began
        return int(parsed.run(parsed))
    except DeviceLostError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (MeasureError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End in order: tables are closed, and every row measured so far is on the disk."""
    raise SystemExit(TERMINATED)


def console() -> NoReturn:
    """Run as a program of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        status = main(age_s=process_age_s())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as in « | head »: what is left to print goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    sys.exit(status)
