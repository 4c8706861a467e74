"""Options of the command lines that run a configuration for some steps and record them."""

from __future__ import annotations

import argparse
from pathlib import Path

from predictor.core.base.command_line import Parser

SMALLEST = {"steps": 1, "warm_up": 0, "profiled": 0, "threads": 1}


def measure_parser(program: str, config: str) -> Parser:
    """Return the command line of one launch.

    Args:
        program: as it is called.
        config: what the configuration is.
    """
    parser = Parser(prog=program, description="Run some training steps and record them.")
    parser.add_argument("config", type=Path, help=config)
    parser.add_argument("--out", type=Path, required=True, help="folder of the record, step_records below it")
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--profiled", type=int, default=3, help="profiled steps behind them (default 3); 0: none")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of every rank on a CPU (default 1)")
    return parser


def option_out_of_range(arguments: argparse.Namespace) -> str | None:
    """Return what is wrong with the numbers, in one line; None where nothing is."""
    for name, least in SMALLEST.items():
        value = getattr(arguments, name)
        if value < least:
            return f"--{name.replace('_', '-')} is {value}; it must be at least {least}"
    return None
