"""``predict``: the time, the memory and the cost of one training step."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_config, add_debug, as_json, config_path, width

NAME = "predict"


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = commands.add_parser(NAME, help="predict one training step", allow_abbrev=False)
    add_config(command)
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    add_debug(command)


def answer(arguments: argparse.Namespace) -> str:
    """Return the report of one configuration."""
    from predictor.interface.prediction import predict

    prediction = predict(config_path(arguments))
    return as_json(prediction.to_dict()) if arguments.json else prediction.text(width())
