"""``verify``: a configuration predicted, run and compared; recorded runs, and runs of others, compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, Incomplete, add_command
from predictor.core.base.command_line import progress
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json

FEWEST_STEPS = 3


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "verify", "run configurations and compare them with their predictions", answer)
    command.add_argument(
        "paths", nargs="*", metavar="CONFIG", help="configuration files, folders of them, or CSV files of others' runs"
    )
    command.add_argument("--system", metavar="NAME|FOLDER", help="published system that predicts, instead of their own")
    command.add_argument("--out", default="results/verify", metavar="DIR", help="records of runs (results/verify)")
    command.add_argument("--steps", type=int, default=20, metavar="N", help="steps to time in a launch (20)")
    command.add_argument("--repeat", type=int, default=2, metavar="N", help="launches of a configuration (2)")
    command.add_argument(
        "--again",
        type=int,
        default=2,
        metavar="N",
        help="most repetitions of a launch during which the machine was busier than while it was measured (2)",
    )
    command.add_argument(
        "--python", default=sys.executable, metavar="EXE", help="interpreter that has torch (this one)"
    )
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run (auto)")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="of each rank on a CPU (1)")
    command.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="of one launch (900)")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--no-run", action="store_true", help="run nothing, compare what is recorded in --out")
    which.add_argument("--run", metavar="FOLDER", help="compare the recorded runs of this folder")
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    command.add_argument("--report", metavar="FILE", help="also write one HTML page")


def _checked(arguments: argparse.Namespace) -> None:
    for name, smallest in (("steps", FEWEST_STEPS), ("repeat", 1), ("again", 0), ("threads", 1), ("timeout", 1)):
        if getattr(arguments, name) < smallest:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}; it must be at least {smallest}")


def answer(arguments: argparse.Namespace) -> str:
    """Return the comparison; what could not be run or compared makes it incomplete."""
    from predictor.evidence.verification.answer import to_json
    from predictor.evidence.verification.question import Question
    from predictor.evidence.verification.question import answer as verify
    from predictor.evidence.verification.run_text import render

    _checked(arguments)
    check_outputs([("--report", arguments.report)], arguments.paths)
    question = Question(
        paths=tuple(arguments.paths),
        system=arguments.system,
        recorded=None if arguments.run is None else Path(arguments.run),
        runs_missing=not arguments.no_run,
        out=Path(arguments.out),
        python=arguments.python,
        device=arguments.device,
        steps=arguments.steps,
        repeat=arguments.repeat,
        threads=arguments.threads,
        timeout_s=arguments.timeout,
        again=arguments.again,
    )
    verification = verify(question, progress)
    if arguments.report is not None:
        from predictor.evidence.verification.page import page

        progress(write_outputs([Output("--report", arguments.report, lambda: page(verification))])[0])
    text = as_json(to_json(verification)) if arguments.json else render(verification)
    return Incomplete(text) if verification.failed else text
