"""``compare``: configurations, or systems, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from predictor.commands.config_arguments import MODEL_ONLY, add_changes, add_model_only, predicted_file
from predictor.commands.parser import Commands, add_command, width
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json

if TYPE_CHECKING:
    from predictor.core.predict.prediction import StepPrediction


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "compare", "predictions side by side", answer)
    command.add_argument("paths", nargs="+", metavar="CONFIG", help="configuration files; the first is compared with")
    command.add_argument(
        "--system", action="append", default=[], metavar="NAME", help="also on this system; repeatable"
    )
    add_changes(command)
    add_model_only(command, "changes", "append_const", MODEL_ONLY)
    command.add_argument("--json", action="store_true", help="print JSON")


def answer(arguments: argparse.Namespace) -> str:
    """Return the comparison."""
    from predictor.core.plan.of_model import is_of_other_tool
    from predictor.core.predict.comparison import compare
    from predictor.core.predict.prediction import predict

    predictions: list[StepPrediction] = []
    for path in arguments.paths:
        if is_of_other_tool(path):
            if not arguments.system:
                raise ConfigError(f"{path} is of another tool and says no system; name some, with --system NAME")
            predictions += [predicted_file(path, system, arguments.changes) for system in arguments.system]
            continue
        own = predict(path, hardware=arguments.changes)
        predictions += [own, *(own.on(system, arguments.changes) for system in arguments.system)]
    comparison = compare(predictions)
    return as_json(comparison.to_dict()) if arguments.json else comparison.text(width())
