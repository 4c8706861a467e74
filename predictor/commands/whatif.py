"""``whatif``: predict again with changed hardware."""

from __future__ import annotations

import argparse

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_command, add_config, as_json, config_path, width


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "whatif", "change the hardware and see", answer)
    add_config(command)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="a number of the hardware, or KEY=x2 for twice as much; all that are given change together",
    )
    command.add_argument("--system", metavar="NAME", help="another published system")
    command.add_argument("--json", action="store_true", help="print JSON")


def answer(arguments: argparse.Namespace) -> str:
    """Return the prediction beside the one of the changed hardware."""
    from predictor.interface.comparison import compare
    from predictor.interface.prediction import predict

    if not arguments.changes and arguments.system is None:
        raise ConfigError("whatif needs something to change: --set KEY=VALUE, or --system NAME")
    before = predict(config_path(arguments))
    after = before.on(arguments.system, arguments.changes)
    name = ", ".join([*([after.system] if arguments.system else []), *arguments.changes])
    comparison = compare([before, after], names=[before.system, name])
    return as_json(comparison.to_dict()) if arguments.json else comparison.text(width())
