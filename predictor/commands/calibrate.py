"""``calibrate``: measured steps of one's own make a system of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from predictor.commands.parser import Commands, Incomplete, add_command
from predictor.core.base.command_line import progress
from predictor.core.base.json_text import as_json


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "calibrate", "calibrate a published system with measured steps of your own", answer)
    command.add_argument(
        "runs",
        nargs="+",
        metavar="RUNS",
        help="CSV of runs, configurations with measured_seconds, records of verify, of a trainer or of replay --record",
    )
    command.add_argument("--system", required=True, metavar="NAME|FOLDER", help="published system to calibrate")
    command.add_argument("--out", required=True, metavar="FOLDER", help="calibrated system to write")
    command.add_argument("--json", action="store_true", help="print JSON (docs/calibration.md)")


def answer(arguments: argparse.Namespace) -> str:
    """Return factors and errors, and write the system; runs that cannot be predicted make the answer incomplete."""
    from predictor.evidence.calibration.answer import calibrate
    from predictor.evidence.calibration.publish import publish
    from predictor.evidence.calibration.text import render, to_json

    calibrated = calibrate(arguments.runs, arguments.system)
    for path in publish(calibrated, Path(arguments.out)):
        progress(f"wrote {path}")
    text = as_json(to_json(calibrated)) if arguments.json else render(calibrated)
    return Incomplete(text) if calibrated.failed else text
