"""``compare``: configurations, or systems, side by side."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_debug, as_json, width

NAME = "compare"


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = commands.add_parser(NAME, help="predictions side by side", allow_abbrev=False)
    command.add_argument("paths", nargs="+", metavar="CONFIG", help="configuration files; the first is compared with")
    command.add_argument(
        "--system", action="append", default=[], metavar="NAME", help="also on this system; repeatable"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    add_debug(command)


def answer(arguments: argparse.Namespace) -> str:
    """Return the comparison."""
    from predictor.interface.comparison import compare

    comparison = compare(arguments.paths, systems=arguments.system)
    return as_json(comparison.to_dict()) if arguments.json else comparison.text(width())
