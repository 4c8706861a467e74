"""The command line: ``python -m predictor CONFIG``, and ``estimate-train-time COMMAND``.

Exit codes: 0 success; 2 bad input, with one line on stderr that says what and how to put it right; 1 anything
unexpected, an output that takes nothing included.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TextIO

import yaml

from predictor.base.encoding import fit_encoding
from predictor.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.base.read_yaml import one_line
from predictor.commands import compare, examples, predict, report, search, timeline, whatif
from predictor.commands.parser import Parser

PROGRAM = "estimate-train-time"
SUCCESS, UNEXPECTED, BAD_INPUT = 0, 1, 2

Answer = Callable[[argparse.Namespace], str]
MODULES = (predict, search, compare, whatif, timeline, report, examples)
ANSWERS: dict[str, Answer] = {
    predict.NAME: predict.answer,
    search.NAME: search.answer,
    compare.NAME: compare.answer,
    whatif.NAME: whatif.answer,
    timeline.NAME: timeline.answer,
    report.NAME: report.answer,
    examples.LIST: examples.answer_list,
    examples.SHOW: examples.answer_show,
    examples.PRESETS: examples.answer_presets,
    examples.SYSTEMS: examples.answer_systems,
}


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Predict the time of one distributed training step.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in MODULES:
        module.add(commands)
    return parser


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; what does not start with a command is a prediction."""
    known = (*ANSWERS, "--version", "--help", "-h")
    return _parser().parse_args(argv if not argv or argv[0] in known else [predict.NAME, *argv])


def _answer(arguments: argparse.Namespace) -> str:
    """Return what a command prints."""
    if arguments.version:
        from predictor import __version__

        return f"{PROGRAM} {__version__}"
    if arguments.command is None:
        raise ConfigError(f"nothing to do; {PROGRAM} --help lists the commands")
    return ANSWERS[arguments.command](arguments)


def _explain_bad_input(error: Exception) -> str:
    """Return one line about an error that the user can put right."""
    if isinstance(error, yaml.YAMLError):
        return one_line(error)
    if isinstance(error, OSError):
        name = error.filename
        return f"{name}: {error.strerror}" if name and error.strerror else str(error)
    return " ".join(str(error).split())


def _write(text: str, stream: TextIO) -> None:
    """Print what the stream's encoding can show.

    Raises:
        OSError: it cannot be written. What Python flushes at its exit then goes nowhere and does not complain again.
    """
    try:
        print(fit_encoding(text, stream.encoding), file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def _complain(line: str) -> None:
    """Print one line on stderr; where that is closed (None) or full, the exit code has to do."""
    if sys.stderr is not None:
        with suppress(OSError):
            _write(f"{PROGRAM}: {line}", sys.stderr)


def _deliver(text: str) -> int:
    """Print the answer and return the exit code."""
    if sys.stdout is None:
        _complain("standard output is closed, so there is nowhere to print the answer")
        return UNEXPECTED
    try:
        _write(text, sys.stdout)
    except BrokenPipeError:  # nobody reads on, as in « | head »
        return UNEXPECTED
    except OSError as error:
        _complain(f"standard output: {error.strerror}")
        return UNEXPECTED
    return SUCCESS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    try:
        arguments = _arguments(sys.argv[1:] if argv is None else argv)
        answer = _answer(arguments)
    except SystemExit as stop:
        answer = str(stop.code)  # the help
    except (ConfigError, PublishedError, MissingKeyError, OSError, yaml.YAMLError) as error:
        _complain(_explain_bad_input(error))
        return BAD_INPUT
    return _deliver(answer)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in one line that this is our mistake; Python then exits with 1."""
    if issubclass(kind, KeyboardInterrupt):
        return
    if "--debug" in sys.argv:
        sys.__excepthook__(kind, error, trace)
    _complain(f"unexpected {kind.__name__}: {error}; this is a bug, predict --debug shows where")


def console() -> None:
    """Run as the installed command."""
    sys.excepthook = _report_bug
    sys.exit(main())


if __name__ == "__main__":
    console()
