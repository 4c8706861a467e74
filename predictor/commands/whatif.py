"""``whatif``: change a number of the hardware, or the GPU, and see."""

from __future__ import annotations

import argparse

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_config, add_debug, as_json, config_path, width

NAME = "whatif"


def add(commands: Commands) -> None:
    """Say what the command takes."""
    command = commands.add_parser(NAME, help="change the hardware and see", allow_abbrev=False)
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
    add_debug(command)


def answer(arguments: argparse.Namespace) -> str:
    """Return the prediction beside the one of the changed hardware."""
    from predictor.configuration.loading import on_nodes_of, prepare, read_config
    from predictor.costs.hardware_change import changed, parse_change
    from predictor.report.comparison import Compared, render, to_json
    from predictor.step.composition import predict

    if not arguments.changes and arguments.system is None:
        raise ConfigError("whatif needs something to change: --set KEY=VALUE, or --system NAME")
    content, base = read_config(config_path(arguments))
    before = prepare(content, base)
    other = on_nodes_of(content, arguments.system, base) if arguments.system is not None else content
    named = prepare(other, base).system
    parsed = [parse_change(text, named.system) for text in arguments.changes]
    changes = dict(parsed)
    if len(changes) < len(parsed):
        raise ConfigError("--set names one key twice; give each once")
    if "gpus_per_node" in changes:
        other = on_nodes_of(other)
    after = prepare(other, base, lambda system: changed(system, changes) if changes else system)
    name = ", ".join([*([named.name] if arguments.system else []), *arguments.changes])
    compared = [
        Compared(before.system.name, predict(before.run, before.system), before.system, before.notes),
        Compared(name, predict(after.run, after.system), after.system, after.notes),
    ]
    return as_json(to_json(compared)) if arguments.json else render(compared, width())
