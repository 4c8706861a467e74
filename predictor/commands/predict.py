"""``predict``: the time, the memory and the cost of one training step."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_command, add_config, as_json, config_path, width


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "predict", "predict one training step", answer)
    add_config(command)
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def answer(arguments: argparse.Namespace) -> str:
    """Return the report of one configuration."""
    from predictor.interface.prediction import predict

    prediction = predict(config_path(arguments))
    return as_json(prediction.to_dict()) if arguments.json else prediction.text(width())
