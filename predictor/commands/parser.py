"""The command line parser; every usage error is one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from predictor.core.base import command_line
from predictor.core.base.errors import ConfigError, nearest

NARROWEST, USUAL_WIDTH = 40, 100

Answer = Callable[[argparse.Namespace], str]
Commands = Any  # argparse names the type of add_subparsers' result for itself only


def require_configuration(program: str, name: str, commands: Sequence[str]) -> None:
    """Check that a first word that is no command may name a configuration, so that a mistyped command is told as one.

    Raises:
        ConfigError: it looks neither like a file nor like an option, and there is no such file.
    """
    if name.startswith("-") or any(mark in name for mark in "./:") or Path(name).exists():
        return
    from predictor.core.schema.presets import spelled  # only when needed, for a fast start

    preset = spelled(name)
    meant = nearest(name, commands) if preset is None else f" It is a model: {program} predict --model {preset}."
    raise ConfigError(f"{name} is neither a command nor a file.{meant} {program} --help lists the commands")


class Incomplete(str):
    """The output of a command that could not do all that was asked: it is printed, and the exit code is 1."""

    __slots__ = ()


class BrokenLimit(str):
    """The output of a command whose limit is broken, of memory or time: it is printed, and the exit code is 3."""

    __slots__ = ()


class Interrupted(str):
    """The output of a command that was interrupted and answers with what it has: the exit code is 130."""

    __slots__ = ()


class Help(argparse.HelpFormatter):
    """Help whose descriptions keep every option on one line; argparse breaks ``--zero-stage`` at a hyphen."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


class Parser(command_line.Parser):
    """A parser whose help goes to stdout like the output of a command, and that names an unknown option first."""

    def __init__(self, **options: Any) -> None:
        """Take the options of argparse's; help is written by ``Help``."""
        super().__init__(**{"formatter_class": Help, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, which would take the value of an unknown option for an argument.

        Raises:
            ConfigError: an option is unknown; the message has the nearest one.
        """
        known = self._option_string_actions
        for text in () if self._subparsers or args is None else takewhile(lambda text: text != "--", args):
            option = text.partition("=")[0]
            if option.startswith("--") and option not in known:
                raise ConfigError(
                    f"{self.prog} has no option {option}.{self._meant(option)} {self.prog} --help lists them"
                )
        return super().parse_known_args(args, namespace)

    def _meant(self, option: str) -> str:
        """Return what an unknown option may stand for, as a sentence: a key of the configuration, or a like option."""
        from predictor.core.schema.settings import as_option  # of an error alone

        key = as_option(option) if "--set" in self._option_string_actions else None
        return nearest(option, self._option_string_actions) if key is None else f" Did you mean {key}?"

    def print_help(self, file: Any = None) -> NoReturn:
        """Return the help to the caller; argparse would ignore an output that cannot be written."""
        raise SystemExit(self.format_help().rstrip("\n"))


def add_command(commands: Commands, name: str, text: str, answer: Answer) -> argparse.ArgumentParser:
    """Add a command: its name, its line of help and the function that returns its output."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, allow_abbrev=False)
    command.set_defaults(answer=answer)
    command.add_argument("--no-color", action="store_true", help="no colours on a terminal, as with NO_COLOR set")
    command.add_argument("--debug", action="store_true", help="print a traceback if something unexpected happens")
    return command


def width() -> int:
    """Return the output's width in columns: the terminal's, or the usual where there is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return USUAL_WIDTH
    from shutil import get_terminal_size

    return max(NARROWEST, get_terminal_size((USUAL_WIDTH, 24)).columns)
