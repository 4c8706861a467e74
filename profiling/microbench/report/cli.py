"""``python -m microbench report``: write the HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from microbench.errors import MeasureError
from microbench.report.page import page
from predictor.core.base.errors import PublishedError
from predictor.core.base.files import write_whole


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where.

    Raises:
        MeasureError: something it needs is missing or damaged, or the page cannot be written.
    """
    try:
        text = page(arguments.results, arguments.published)
        write_whole(arguments.out, text)
    except (FileNotFoundError, PublishedError) as error:
        raise MeasureError(str(error)) from None
    except OSError as error:
        raise MeasureError(f"{arguments.out}: {error.strerror}") from None
    print(arguments.out)
    return 0


def register(commands: Any) -> None:
    """Add the sub-command ``report`` to a parser's sub-commands."""
    command = commands.add_parser("report", help="write one HTML page of a results folder")
    command.add_argument("results", type=Path, help="results folder of a system, results/NAME")
    command.add_argument("--published", type=Path, help="what fitting published: adds parity and errors")
    command.add_argument("--out", type=Path, required=True, help="the page, e.g. results/NAME/report.html")
    command.set_defaults(run=run)
