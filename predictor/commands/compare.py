"""``compare``: configurations, or systems, side by side."""

from __future__ import annotations

import argparse

from predictor.base.json_text import as_json
from predictor.commands.asked import add_changes
from predictor.commands.parser import Commands, add_command, width


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "compare", "predictions side by side", answer)
    command.add_argument("paths", nargs="+", metavar="CONFIG", help="configuration files; the first is compared with")
    command.add_argument(
        "--system", action="append", default=[], metavar="NAME", help="also on this system; repeatable"
    )
    add_changes(command)
    command.add_argument("--json", action="store_true", help="print JSON")


def answer(arguments: argparse.Namespace) -> str:
    """Return the comparison."""
    from predictor.interface.comparison import compare

    comparison = compare(arguments.paths, systems=arguments.system, hardware=arguments.changes)
    return as_json(comparison.to_dict()) if arguments.json else comparison.text(width())
