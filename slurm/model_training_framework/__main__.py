"""The command line: ``python -m model_training_framework grid | submit | status | cancel | logs``.

Exit codes: 0 success; 1 an experiment failed or was refused, or something unexpected; 2 bad input, with one line on
stderr that says what and how to put it right.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from model_training_framework import commands
from model_training_framework.config import ConfigurationError, ExecutionMode, NamingStrategy
from model_training_framework.slurm import GitOperationError, SLURMError
from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError

SUCCESS, FAILED, BAD_INPUT = 0, 1, 2
BAD_INPUTS = (ConfigurationError, ConfigError, GitOperationError, SLURMError, OSError, ValueError)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m model_training_framework",
        description="Predict, submit and follow training experiments.",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    grid = kinds.add_parser("grid", help="all combinations of a grid over a base configuration")
    grid.add_argument("grids", metavar="GRIDS", help="YAML or JSON: name and parameters, or grids: and a list of them")
    grid.add_argument("--base", required=True, metavar="CONFIG", help="what the experiments have in common")
    grid.add_argument(
        "--naming", choices=[str(strategy) for strategy in NamingStrategy], default=str(NamingStrategy.HASH_BASED)
    )
    grid.set_defaults(answer=commands.grid)

    submit = kinds.add_parser("submit", help="experiments, a file each")
    submit.add_argument("configs", nargs="+", metavar="CONFIG", help="configuration of an experiment")
    submit.set_defaults(answer=commands.submit)

    for several in (grid, submit):
        several.add_argument(
            "--mode", choices=[str(mode) for mode in ExecutionMode], default=str(ExecutionMode.DRY_RUN),
            help="dry_run shows predictions and writes nothing (default), local runs here, slurm submits",
        )  # fmt: skip
        several.add_argument("--max-concurrent-jobs", type=int, metavar="N", help="how many run at once")
        several.add_argument("--template", metavar="FILE", help="template of the job script")
        several.add_argument("--force", action="store_true", help="also what is predicted not to fit")
        several.add_argument(
            "--allow-dirty", action="store_true", help="although uncommitted changes will not be in the jobs"
        )

    status = kinds.add_parser("status", help="states of submitted experiments")
    status.add_argument("names", nargs="*", metavar="EXPERIMENT", help="all in the folder if absent")
    status.set_defaults(answer=commands.status)

    cancel = kinds.add_parser("cancel", help="cancel experiments")
    cancel.add_argument("names", nargs="*", metavar="EXPERIMENT", help="experiment, or id of a job")
    cancel.add_argument("--all", action="store_true", help="every experiment that waits or runs")
    cancel.set_defaults(answer=commands.cancel)

    logs = kinds.add_parser("logs", help="what an experiment's job printed")
    logs.add_argument("name", metavar="EXPERIMENT")
    logs.add_argument("--lines", type=int, default=50, metavar="N", help="the last so many lines (default 50)")
    logs.set_defaults(answer=commands.logs)

    for kind in (grid, submit, status, cancel, logs):
        kind.add_argument("--project", default=".", metavar="DIR", help="root of the project (default: here)")
        kind.add_argument("--output", metavar="DIR", help="folder of all experiments (default: experiments in it)")
    for kind in (grid, submit, status):
        kind.add_argument("--json", action="store_true", help="for machines")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        arguments: argparse.Namespace = _parser().parse_args(argv)
        answer: commands.Answer = arguments.answer(arguments)
        sys.stdout.write(answer.text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except BAD_INPUTS as error:
        sys.stderr.write(f"Error: {' '.join(str(error).split())}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on\n")
        return 130
    return SUCCESS if answer.is_good else FAILED


if __name__ == "__main__":
    sys.exit(main())
