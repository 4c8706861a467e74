"""``compare``: configurations, or systems, side by side."""

from __future__ import annotations

import argparse

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_debug, as_json, width

NAME = "compare"


def add(commands: Commands) -> None:
    """Say what the command takes."""
    command = commands.add_parser(NAME, help="predictions side by side", allow_abbrev=False)
    command.add_argument("paths", nargs="+", metavar="CONFIG", help="configuration files; the first is compared with")
    command.add_argument(
        "--system", action="append", default=[], metavar="NAME", help="also on this system; may be given again"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    add_debug(command)


def answer(arguments: argparse.Namespace) -> str:
    """Return the comparison."""
    from predictor.configuration.loading import on_nodes_of, prepare, read_config
    from predictor.report.comparison import Compared, render, to_json
    from predictor.step.composition import predict

    compared = []
    for path in arguments.paths:
        content, base = read_config(path)
        loaded = prepare(content, base)
        compared.append(
            Compared(f"{path} on {loaded.system.name}", predict(loaded.run, loaded.system), loaded.system, loaded.notes)
        )
        for name in arguments.system:
            other = prepare(on_nodes_of(content, name, base), base)
            compared.append(
                Compared(f"{path} on {other.system.name}", predict(other.run, other.system), other.system, other.notes)
            )
    if len(compared) < 2:
        raise ConfigError("compare needs two configurations, or one and a --system to set beside its own")
    return as_json(to_json(compared)) if arguments.json else render(compared, width())
