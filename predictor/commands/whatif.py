"""``whatif``: predict again with changed hardware, layout or training."""

from __future__ import annotations

import argparse

from predictor.commands.config_arguments import add_config, configuration, key_changes, model_of
from predictor.commands.parser import Commands, add_command, width
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "whatif", "change the hardware, the layout or the training, and see", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="another published system; of a --model, its own")
    command.add_argument("--json", action="store_true", help="print JSON")


def answer(arguments: argparse.Namespace) -> str:
    """Return the prediction beside the one with the changes."""
    from predictor.core.predict.comparison import compare
    from predictor.core.predict.prediction import predict

    other = None if model_of(arguments) is not None else arguments.system
    if not arguments.changes and other is None:
        raise ConfigError("whatif needs something to change: --set KEY=VALUE, or --system NAME")
    before = predict(configuration(arguments, key_changes(arguments)))
    columns = _columns(arguments.changes)
    after = [before.on(other, changes) for changes in columns]
    names = [
        ", ".join([*([each.system] if other else []), *changes]) for each, changes in zip(after, columns, strict=True)
    ]
    comparison = compare([before, *after], names=[before.system, *names])
    return as_json(comparison.to_dict()) if arguments.json else comparison.text(width())


def _columns(changes: list[str]) -> list[list[str]]:
    """Return the changes of every column: a number of the hardware with several values, and commas, has one each."""
    from predictor.core.costs.hardware_change import NETWORK, is_of_hardware

    columns: list[list[str]] = [[]]
    for change in changes:
        key, _, value = change.partition("=")
        values = value.split(",") if is_of_hardware(change) and key != NETWORK else [value]
        columns = [[*column, f"{key}={each}"] for column in columns for each in values]
    return columns
