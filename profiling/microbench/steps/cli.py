"""The commands ``steps`` and ``compare-steps``."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from microbench.device import find_device
from microbench.errors import MeasureError
from microbench.steps.configuration import CONFIGS, read_steps
from predictor.core.base.command_line import progress

FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Record steps and print the path of each; 1 where a step failed or the device was lost.

    Raises:
        MeasureError: bad input, or a folder of another device.
    """
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
    deadline = math.inf if minutes is None else arguments.began + 60.0 * minutes
    outcome = measure_steps(configs, device, arguments.out, deadline, progress)
    for name in (*outcome.there, *outcome.ok):
        print(record_path(arguments.out, name))
    progress(f"{len(outcome.ok)} recorded, {len(outcome.there)} were there already")
    if outcome.not_begun:
        progress(f"no time left for {', '.join(outcome.not_begun)}; the same command continues")
    if outcome.is_lost:
        progress("error: the device fails every call after this error; the same command in a new process continues")
    return FAILED if outcome.failed or outcome.is_lost else 0


def run_comparison(arguments: argparse.Namespace) -> int:
    """Print recorded steps beside their predictions.

    Raises:
        MeasureError: no records, or no such system.
    """
    from microbench.steps.compare import compare_steps, render, to_json

    rows, unmeasured = compare_steps(arguments.results, arguments.regressors)
    if arguments.json:
        print(json.dumps(to_json(rows, unmeasured, arguments.regressors), indent=1))
    else:
        print(render(rows, unmeasured))
    return 0


def register(commands: Any, device: argparse.ArgumentParser) -> None:
    """Add ``steps`` and ``compare-steps`` to a parser's sub-commands; ``device`` has the options of a device."""
    steps = commands.add_parser("steps", parents=[device], help="record whole training steps, one file each")
    steps.add_argument("--out", type=Path, required=True, help="results folder of this system, results/NAME")
    steps.add_argument("--only", nargs="+", metavar="NAME", help="steps by name (default: all)")
    steps.add_argument("--minutes", type=float, help="begin no step that would end later; run again to continue")
    steps.add_argument(
        "--configs", type=Path, default=CONFIGS, help="folder of configurations (default: the project's)"
    )
    steps.set_defaults(run=run)
    compare = commands.add_parser("compare-steps", help="set recorded steps beside their predictions")
    compare.add_argument("results", type=Path, help="results/NAME")
    compare.add_argument("--regressors", required=True, help="folder of a published system, or its name")
    compare.add_argument("--json", action="store_true", help="for machines")
    compare.set_defaults(run=run_comparison)
