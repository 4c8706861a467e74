"""The commands ``steps`` and ``compare-steps``."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from microbench.device import find_device
from microbench.errors import MeasureError
from microbench.steps.configuration import CONFIGS, read_steps
from predictor.base.command_line import progress

FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Record steps and print the path of each; 1 where a step failed or the device was lost.

    Raises:
        MeasureError: bad input, or a folder of another device.
    """
    began = time.monotonic()
    minutes = arguments.minutes
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise MeasureError(f"--minutes is {minutes}; expected a number above 0")
    configs = read_steps(arguments.configs, arguments.only)
    device = find_device(arguments.device, arguments.threads)
    on_gpu_in_fp32 = [config.name for config in configs if device.kind == "cuda" and config.run.precision == "fp32"]
    if on_gpu_in_fp32:
        raise MeasureError(f"{', '.join(on_gpu_in_fp32)}: precision fp32, which flash attention does not take on a GPU")
    from microbench.steps.measure import measure_steps
    from microbench.steps.record import record_path

    progress(f"recording {len(configs)} steps on {device.name}")
    deadline = math.inf if minutes is None else began + 60.0 * minutes
    outcome = measure_steps(configs, device, arguments.out, deadline, progress)
    for name in (*outcome.there, *outcome.ok):
        print(record_path(arguments.out, name))
    progress(f"{len(outcome.ok)} recorded, {len(outcome.there)} were there already")
    if outcome.not_begun:
        progress(f"no time left for {', '.join(outcome.not_begun)}; the same command goes on")
    if outcome.is_lost:
        progress("error: the device answers no more after this error; the same command in a new process goes on")
    return FAILED if outcome.failed or outcome.is_lost else 0


def run_comparison(arguments: argparse.Namespace) -> int:
    """Print recorded steps beside their predictions.

    Raises:
        MeasureError: no records, or no such system.
    """
    from microbench.steps.compare import compare_steps, render, to_json

    rows, unmeasured = compare_steps(arguments.results, arguments.regressors)
    document = to_json(rows, unmeasured, arguments.regressors) if arguments.json else None
    print(render(rows, unmeasured) if document is None else json.dumps(document, indent=1))
    return 0


def register(commands: Any) -> None:
    """Add ``steps`` and ``compare-steps`` to ``commands``, what ``add_subparsers`` returned."""
    steps = commands.add_parser("steps", help="record whole training steps on this device, one file each")
    steps.add_argument("--device", default="auto", help="cpu, cuda or auto (default): a GPU where there is one")
    steps.add_argument("--threads", type=int, default=1, help="torch's threads on a CPU (default 1)")
    steps.add_argument("--out", type=Path, required=True, help="results folder of this system, results/NAME")
    steps.add_argument("--only", nargs="+", metavar="NAME", help="steps by name (default: all)")
    steps.add_argument("--minutes", type=float, help="begin no step that would end later; run again to go on")
    steps.add_argument(
        "--configs", type=Path, default=CONFIGS, help="folder of configurations (default: the project's)"
    )
    steps.set_defaults(run=run)
    compare = commands.add_parser("compare-steps", help="set recorded steps beside their predictions")
    compare.add_argument("results", type=Path, help="results/NAME")
    compare.add_argument("--regressors", required=True, help="folder of a published system, or its name")
    compare.add_argument("--json", action="store_true", help="for machines")
    compare.set_defaults(run=run_comparison)
