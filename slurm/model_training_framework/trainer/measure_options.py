"""Command lines that run a configuration for some steps and record them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from model_training_framework.trainer.errors import TrainerError
from predictor.core.base.command_line import Parser, progress

BAD_INPUT, FAILED = 2, 1
SMALLEST = {"steps": 1, "warm_up": 0, "profiled": 0, "threads": 1}


def _parser(program: str, config: str) -> Parser:
    """Return the command line of one launch."""
    parser = Parser(prog=program, description="Run some training steps and record them.")
    parser.add_argument("config", type=Path, help=config)
    parser.add_argument("--out", type=Path, required=True, help="folder of the record, step_records below it")
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--profiled", type=int, default=3, help="profiled steps behind them (default 3); 0: none")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of every rank on a CPU (default 1)")
    return parser


def _out_of_range(arguments: argparse.Namespace) -> str | None:
    """Return what is wrong with the numbers, in one line; None where nothing is."""
    for name, least in SMALLEST.items():
        value = getattr(arguments, name)
        if value < least:
            return f"--{name.replace('_', '-')} is {value}; it must be at least {least}"
    return None


def record_steps(
    program: str,
    config: str,
    measure: Callable[[argparse.Namespace], None],
    refused: type[Exception],
    arguments: Sequence[str] | None,
) -> int:
    """Run a command line and return its exit code.

    Args:
        program: as it is called.
        config: help on the configuration.
        measure: runs and records.
        refused: error of a configuration that cannot run.
        arguments: those of the process if None.
    """
    given = _parser(program, config).parse_args(arguments)
    try:
        if (wrong := _out_of_range(given)) is not None:
            raise refused(wrong)
        import torch

        torch.set_num_threads(given.threads)
        measure(given)
    except refused as error:
        progress(f"error: {error}")
        return BAD_INPUT
    except TrainerError as error:
        progress(f"error: {error}")
        return FAILED
    return 0
