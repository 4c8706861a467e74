"""Run one module of the procedure: its arguments, its answer on stdout, one line on stderr where there is none.

Exit codes: 0 success; 1 there is nothing to answer with yet, or what a command started failed; 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from predictor.core.base.command_line import Parser
from predictor.core.base.encoding import encodable
from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.read_yaml import one_line
from predictor.core.timeline.graph import GraphError
from predictor.replay.procedure.folders import Folders

SUCCESS, UNANSWERED, BAD_INPUT = 0, 1, 2
Answer = Callable[[argparse.Namespace], str]


class UnansweredError(Exception):
    """There is nothing to answer with yet; the message says the command that makes it."""


def new_parser(module: str, description: str, kind: type[Parser] = Parser) -> Parser:
    """Return a module's parser, with the root of its folders."""
    parser = kind(prog=f"python -m predictor.replay.{module}", description=description, allow_abbrev=False)
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="holds traces, input_data, tmp_data and .log (.)"
    )
    return parser


def folders_of(arguments: argparse.Namespace) -> Folders:
    """Return the folders of a command.

    Raises:
        ConfigError: the root does not exist.
    """
    if not arguments.root.is_dir():
        raise ConfigError(f"--root {arguments.root} is no folder; create it, or name one that holds traces")
    return Folders(arguments.root)


def run(parser: argparse.ArgumentParser, answer: Answer, argv: Sequence[str] | None = None) -> int:
    """Print a module's answer and return the exit code."""
    try:
        text = answer(parser.parse_args(argv))
    except (ConfigError, PublishedError, MissingKeyError, GraphError) as error:
        return _complain(parser, str(error), BAD_INPUT)
    except yaml.YAMLError as error:
        return _complain(parser, one_line(error), BAD_INPUT)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _complain(parser, named, BAD_INPUT)
    except UnansweredError as error:
        return _complain(parser, str(error), UNANSWERED)
    try:
        sys.stdout.write(encodable(f"{text}\n", sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in « | head »
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNANSWERED
    return SUCCESS


def _complain(parser: argparse.ArgumentParser, message: str, code: int) -> int:
    sys.stderr.write(f"{parser.prog}: {' '.join(message.split())}\n")
    return code
