"""The command line: ``python -m predictor CONFIG``, and ``estimate-train-time COMMAND``.

Exit codes: 0 success; 2 bad input, with one line on stderr on the error and its remedy; 3 a run that does not fit into
memory, where ``--require-fit`` asks for it, that breaks a limit of ``check``, or that is slower than ``watch --allow``;
130 a search, or a run that is followed, that Ctrl-C ended: what is known so far is printed; 1 anything unexpected,
output that cannot be written and runs that failed included.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import takewhile
from types import TracebackType
from typing import TextIO

import yaml

from predictor.commands.parser import BrokenLimit, Incomplete, Interrupted, Parser, require_configuration
from predictor.core.base.encoding import encodable
from predictor.core.base.errors import ConfigError, ManyProblemsError, MissingKeyError, PublishedError, shortened
from predictor.core.base.read_yaml import one_line
from predictor.core.schema.reading import READING, Reading

# Names of commands and the modules that define them, in the order of the help.
COMMANDS = {
    **{
        name: name
        for name in ("predict", "search", "plan", "compare", "whatif", "timeline", "report", "check", "watch")
    },
    **{name: name for name in ("serve", "verify", "calibrate", "replay", "mixed")},
    **dict.fromkeys(("list-examples", "show-example", "list-systems", "list-presets", "list-formats"), "examples"),
    "completion": "completion",
}
OF_EVERY_COMMAND = ("--no-color", "--debug")  # options that may also stand before the command
IN_COLOUR = ("predict", "search", "plan", "compare", "whatif", "check", "watch")
PROGRAM = "estimate-train-time"
FIRST = "predict --model llama3-8b --system H100 --gpus 64 --global-batch-size 256"
SUCCESS, UNEXPECTED, BAD_INPUT, DOES_NOT_FIT = 0, 1, 2, 3
INTERRUPTED = 130  # as a shell says it of a program that SIGINT ended
# Allocations between two runs of the garbage collector: starting makes 200,000 objects, hardly one of them garbage, and
# Python's own 700 goes through all of them several times.
COLLECTED_EVERY = 100_000


def parser_with_commands(names: Iterable[str]) -> Parser:
    """Return the command line's parser with the named commands, whose modules are the only ones imported."""
    parser = Parser(prog=PROGRAM, description="Predict the time of one distributed training step.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        import_module(f"predictor.commands.{module}").add(commands)
    return parser


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; without a command it is ``predict``."""
    first = list(takewhile(lambda text: text in OF_EVERY_COMMAND, argv))
    command, *rest = argv[len(first) :] or [""]
    if command == "help":
        command, rest = "--help", []
    if command in ("", "--version", "--help", "-h"):
        return parser_with_commands(COMMANDS).parse_args([command, *first, *rest] if command else [])
    if command not in COMMANDS:
        require_configuration(PROGRAM, command, list(COMMANDS))
        command, rest = "predict", [command, *rest]
    asked = COMMANDS if command == "completion" else [command]
    return parser_with_commands(asked).parse_args([command, *first, *rest])


def _answer(arguments: argparse.Namespace) -> str:
    """Return the output of a command."""
    if arguments.version:
        from predictor import __version__

        return f"{PROGRAM} {__version__}"
    if arguments.command is None:
        raise ConfigError(f"nothing to do; {PROGRAM} --help lists the commands. To begin: {PROGRAM} {FIRST}")
    READING.set(Reading(getattr(arguments, "strict", False), getattr(arguments, "verbose", False)))
    text: str = arguments.answer(arguments)
    return text


def _explain_bad_input(error: Exception) -> str:
    """Return one line about an error in the input, or one for each of its problems."""
    if isinstance(error, ManyProblemsError):
        return str(ManyProblemsError([shortened(line) for line in error.lines]))
    if isinstance(error, yaml.YAMLError):
        return shortened(one_line(error))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return shortened(f"{error.filename}: {error.strerror}")
    return shortened(str(error))


def _write(text: str, stream: TextIO) -> None:
    """Print text in the stream's encoding.

    Raises:
        OSError: it cannot be written; the stream is then redirected to null, so that Python's flush at exit succeeds.
    """
    try:
        print(encodable(text, stream.encoding), file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def _complain(line: str) -> None:
    """Print one line on stderr, unless that is closed (None) or full."""
    if sys.stderr is not None:
        with suppress(OSError):
            _write(f"{PROGRAM}: {line}", sys.stderr)


def _shown(text: str, arguments: argparse.Namespace | None) -> str:
    """Return an answer as its output shows it: in colours on a terminal, where it is one for people."""
    if getattr(arguments, "command", None) not in IN_COLOUR or getattr(arguments, "json", False):
        return text
    from predictor.core.base.colour import coloured, wants_colour

    plain = getattr(arguments, "no_color", False) or not wants_colour(sys.stdout)
    return text if plain else coloured(text)


def _deliver(text: str, arguments: argparse.Namespace | None) -> int:
    """Print the answer and return the exit code."""
    if sys.stdout is None:
        _complain("standard output is closed, so there is nowhere to print the answer")
        return UNEXPECTED
    try:
        _write(_shown(text, arguments), sys.stdout)
    except BrokenPipeError:  # the reader has closed the pipe, as in « | head »
        return UNEXPECTED
    except OSError as error:
        _complain(f"standard output: {error.strerror}")
        return UNEXPECTED
    if isinstance(text, BrokenLimit):
        return DOES_NOT_FIT
    if isinstance(text, Interrupted):
        return INTERRUPTED
    return UNEXPECTED if isinstance(text, Incomplete) else SUCCESS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    arguments = None
    try:
        arguments = _arguments(sys.argv[1:] if argv is None else argv)
        answer = _answer(arguments)
    except SystemExit as stop:
        answer = str(stop.code)  # the help
    except (ConfigError, PublishedError, MissingKeyError, OSError, yaml.YAMLError) as error:
        _complain(_explain_bad_input(error))
        return BAD_INPUT
    return _deliver(answer, arguments)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected error in one line; Python then exits with 1."""
    if issubclass(kind, KeyboardInterrupt):
        return
    if "--debug" in sys.argv:
        sys.__excepthook__(kind, error, trace)
    _complain(f"unexpected {kind.__name__}: {error}; this is a bug, predict --debug shows where")


def console() -> None:
    """Run as the installed command."""
    gc.set_threshold(COLLECTED_EVERY)
    sys.excepthook = _report_bug
    sys.exit(main())


if __name__ == "__main__":
    console()
