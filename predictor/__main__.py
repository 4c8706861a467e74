"""The command line: ``python -m predictor CONFIG`` and ``estimate-train-time predict | list-examples | show-example``.

Exit codes: 0 success; 2 bad input, with one line on stderr that says what and how to put it right; 1 anything
unexpected, an output that takes nothing included.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

import yaml

from predictor.bundled import EXAMPLES_FOLDER, examples
from predictor.encoding import fit_encoding
from predictor.errors import ConfigError, MissingKeyError, PublishedError, nearest
from predictor.read_yaml import one_line

PROGRAM = "estimate-train-time"
SUCCESS, UNEXPECTED, BAD_INPUT = 0, 1, 2
NARROWEST, USUAL_WIDTH = 40, 100


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, and whose help is an answer like any other."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the command line."""
        raise ConfigError(f"{message}; {self.prog} --help lists what there is")

    def print_help(self, file: Any = None) -> NoReturn:
        """Hand the help over; argparse would ignore that it cannot be written."""
        raise SystemExit(self.format_help().rstrip("\n"))


def _parser() -> _Parser:
    parser = _Parser(prog=PROGRAM, description="Predict the time of one distributed training step.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    predict = commands.add_parser("predict", help="predict one training step", allow_abbrev=False)
    which = predict.add_mutually_exclusive_group(required=True)
    which.add_argument("path", nargs="?", metavar="CONFIG", help="configuration file")
    which.add_argument("--config", "-c", metavar="FILE", help="the same")
    which.add_argument("--example", "-e", metavar="NAME", help="a bundled example")
    predict.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    predict.add_argument("--debug", action="store_true", help="print a traceback if something unexpected happens")
    commands.add_parser("list-examples", help="list the bundled examples", allow_abbrev=False)
    show = commands.add_parser("show-example", help="print a bundled example", allow_abbrev=False)
    show.add_argument("name", metavar="NAME")
    return parser


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; what does not start with a command is a prediction."""
    commands = ("predict", "list-examples", "show-example", "--version", "--help", "-h")
    return _parser().parse_args(argv if not argv or argv[0] in commands else ["predict", *argv])


def _example(name: str) -> Path:
    """Return the path of a bundled example, with or without its ending.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    stem = name.removesuffix(".yml")
    if stem not in examples():
        raise ConfigError(f"{name} is not an example.{nearest(stem, examples())} There are: {', '.join(examples())}")
    return EXAMPLES_FOLDER / f"{stem}.yml"


def _width() -> int:
    """Return the columns to fill: the terminal's, or the usual where the output is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return USUAL_WIDTH
    from shutil import get_terminal_size

    return max(NARROWEST, get_terminal_size((USUAL_WIDTH, 24)).columns)


def _predict(path: Path, as_json: bool) -> str:
    """Return the report of one configuration."""
    from predictor.loading import load
    from predictor.step_time import predict

    run, system = load(path)
    prediction = predict(run, system)
    if as_json:
        import json

        from predictor.json_report import to_json

        return json.dumps(to_json(prediction, system), indent=2, allow_nan=False)
    from predictor.report import render

    return render(prediction, system, _width())


def _answer(arguments: argparse.Namespace) -> str:
    """Return what a command prints."""
    if arguments.version:
        from predictor import __version__

        return f"{PROGRAM} {__version__}"
    if arguments.command == "predict":
        given = arguments.path if arguments.path is not None else arguments.config
        path = _example(arguments.example) if arguments.example is not None else Path(given)
        return _predict(path, arguments.json)
    if arguments.command == "list-examples":
        return "\n".join(examples())
    if arguments.command == "show-example":
        return _example(arguments.name).read_text(encoding="utf-8").rstrip("\n")
    raise ConfigError(f"nothing to do; {PROGRAM} --help lists the commands")


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
