"""Fit, evaluate and publish systems from measurement tables; stdout is the result, stderr progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fitting.datasheet import is_measured, publish_datasheet, read_errors
from fitting.discrepancy import fit_discrepancy
from fitting.evaluate import evaluate
from fitting.few_rows import few_rows
from fitting.print_tables import evaluation_text, few_rows_text, held_out_text, transfer_text
from fitting.publish import publish_copy, seal
from fitting.system_fit import fit_system, judge
from fitting.systems import SystemFileError, read_system
from fitting.transfer_error import transfer_error
from microbench.errors import TableError
from predictor.core.base.command_line import Parser, progress
from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.base.files import write_whole
from predictor.core.costs.transfer_errors import TRANSFER_ERRORS

BAD_INPUT = 2


def _fit(arguments: argparse.Namespace) -> int:
    source = read_system(arguments.system)
    donor = arguments.donor or (arguments.out.parent / source.donor if source.donor else None)
    started = time.perf_counter()
    progress(f"fitting {source.hardware.name} from {arguments.measurements}")
    if arguments.name is not None:
        source = source.model_copy(update={"hardware": source.hardware.model_copy(update={"name": arguments.name})})
    document = fit_system(source, arguments.measurements, arguments.out, donor, progress, arguments.keep)
    progress(f"published {arguments.out} in {time.perf_counter() - started:.1f} s")
    print(json.dumps({kind: document[kind] for kind in ("operators", "collectives")}))
    return 0


def _print(document: dict[str, Any], as_json: bool, text: Callable[[dict[str, Any]], str]) -> None:
    print(json.dumps(document, indent=1) if as_json else text(document))


def _evaluate(arguments: argparse.Namespace) -> int:
    progress(f"evaluating {arguments.folder} on {arguments.measurements}")
    _print(evaluate(arguments.folder, arguments.measurements), arguments.json, evaluation_text)
    return 0


def _held_out(arguments: argparse.Namespace) -> int:
    source = read_system(arguments.system)
    progress(f"refitting {source.hardware.name} on splits of {arguments.measurements}")
    _print(judge(source, arguments.measurements, progress), arguments.json, held_out_text)
    return 0


def _transfer_error(arguments: argparse.Namespace) -> int:
    progress(f"predicting {' and '.join(str(folder) for folder in arguments.folders)} from each other")
    document = transfer_error(arguments.folders, arguments.measurements)
    if arguments.out is not None:
        write_whole(arguments.out, json.dumps(document, indent=1) + "\n")
        progress(f"wrote {arguments.out}")
    _print(document, arguments.json, transfer_text)
    return 0


def _few_rows(arguments: argparse.Namespace) -> int:
    progress(f"drawing a few rows of {' and '.join(str(folder) for folder in arguments.folders)}")
    _print(few_rows(arguments.folders, arguments.measurements), arguments.json, few_rows_text)
    return 0


def _datasheet(arguments: argparse.Namespace) -> int:
    if not arguments.replace and is_measured(arguments.out):
        print(f"{arguments.out}: measured operators are published there, so it stays as it is; --replace replaces it")
        return 0
    files = publish_datasheet(read_system(arguments.system), read_errors(arguments.errors), arguments.out)
    print(f"{arguments.out}: {', '.join(files)}")
    return 0


def _publish(arguments: argparse.Namespace) -> int:
    publish_copy(arguments.folder, arguments.out, replace=arguments.replace)
    print(arguments.out)
    return 0


def _seal(arguments: argparse.Namespace) -> int:
    print(f"{arguments.folder}: {seal(arguments.folder)} files sealed")
    return 0


def _discrepancy(arguments: argparse.Namespace) -> int:
    print("\n".join(fit_discrepancy(arguments.truth, arguments.store, progress)))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = Parser(prog="python -m fitting", description=__doc__)
    commands = result.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=description)
        added.set_defaults(run=run)
        return added

    fit = command("fit", _fit, "fit a system's measurement tables and publish it")
    fit.add_argument("--system", type=Path, required=True, help="training/systems/NAME.yaml")
    fit.add_argument("--measurements", type=Path, required=True, help="the cluster's folder of tables, or its parent")
    fit.add_argument("--out", type=Path, required=True, help="folder to publish, e.g. regressors/NAME")
    fit.add_argument(
        "--donor", type=Path, help="published system that answers for missing rows (default: beside --out)"
    )
    fit.add_argument("--name", help="of the published system (default: as the system file says)")
    fit.add_argument("--keep", type=Path, help="published system of the same GPU: keep what was not measured here")
    copying = command("publish", _publish, "publish a folder that was fitted elsewhere")
    copying.add_argument("folder", type=Path, metavar="SYSTEM_FOLDER", help="as fit wrote it")
    copying.add_argument("--out", type=Path, required=True, help="folder to publish, e.g. regressors/NAME")
    copying.add_argument("--replace", action="store_true", help="even where a system is published there")
    evaluation = command("evaluate", _evaluate, "errors of a published system on measurement tables")
    evaluation.add_argument("folder", type=Path, metavar="SYSTEM_FOLDER", help="e.g. regressors/NAME")
    held_out = command("held-out", _held_out, "refit on splits of the tables and report the held-out errors")
    held_out.add_argument("system", type=Path, metavar="SYSTEM_YAML", help="training/systems/NAME.yaml")
    transfer = command("transfer-error", _transfer_error, "predict measured systems from each other and compare")
    transfer.add_argument("--out", type=Path, help="write the numbers, for the cards of systems from data sheets")
    few = command("few-rows", _few_rows, "error of a fit to 25 and 50 rows of a GPU, and of a transfer")
    for added in (transfer, few):
        added.add_argument(
            "folders", type=Path, nargs="+", metavar="SYSTEM_FOLDER", help="two or more published systems"
        )
    for added in (evaluation, held_out, transfer, few):
        added.add_argument("measurements", type=Path, metavar="MEASUREMENTS_DIR")
        added.add_argument("--json", action="store_true", help="for machines")
    sheet = command("datasheet", _datasheet, "publish a system without measurements from its data sheet")
    sheet.add_argument("--system", type=Path, required=True, help="training/systems/NAME.yaml with a transfer section")
    sheet.add_argument("--errors", type=Path, default=TRANSFER_ERRORS, help="of transfer-error (default: as published)")
    sheet.add_argument("--out", type=Path, required=True, help="folder to publish, e.g. regressors/NAME")
    sheet.add_argument("--replace", action="store_true", help="even where measured operators are published")
    runs = command("discrepancy", _discrepancy, "measured over modelled time of published steps, sources left out")
    runs.add_argument("truth", type=Path, metavar="TRUTH_DIR", help="folder of tables of measured steps")
    runs.add_argument("--store", action="store_true", help="write predictor/core/step/discrepancy.yaml")
    sealing = command("seal", _seal, "rewrite the manifest of a published folder after a deliberate change")
    sealing.add_argument("folder", type=Path)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 2 after one line about bad input."""
    try:
        parsed = parser().parse_args(arguments)
        return int(parsed.run(parsed))
    except (ConfigError, FileNotFoundError, TableError, SystemFileError, PublishedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
