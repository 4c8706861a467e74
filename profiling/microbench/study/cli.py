"""Commands of a study: ``study`` runs on the GPU machine, ``study-stage`` is one of its processes, ``study-report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from microbench.device import find_device
from microbench.errors import MeasureError
from microbench.study.report import report
from microbench.study.stages import LOG, STAGES, SUMMARY, run_stage, stages, unfinished
from microbench.survey.cli import CODE, LEAST_MINUTES
from microbench.survey.probe import probe
from microbench.survey.stages import DATASHEETS, run_command, survey
from predictor.core.base.command_line import progress


def _study(arguments: argparse.Namespace) -> int:
    if arguments.minutes < LEAST_MINUTES:
        raise MeasureError(f"--minutes is {arguments.minutes:g}; expected at least {LEAST_MINUTES:g}")
    out: Path = arguments.out
    here = probe(CODE / DATASHEETS)
    out.mkdir(parents=True, exist_ok=True)
    progress(f"studying {here.device}, driver {here.driver}, for {arguments.minutes:g} minutes")

    def run(words: Any, seconds: float) -> int | None:
        return run_command(words, seconds, out / LOG)

    planned = stages(out)
    ended = survey(planned, arguments.minutes, run, out / SUMMARY, progress, arguments.began)
    again = unfinished(planned, ended)
    ended = survey(again, arguments.minutes, run, out / SUMMARY, progress, arguments.began, ended)
    print(out)
    last = {stage.stage: stage.status for stage in ended}
    return int(any(last.values()))


def _stage(arguments: argparse.Namespace) -> int:
    deadline = float("inf")
    if arguments.budget_minutes is not None:
        deadline = arguments.began + 60.0 * arguments.budget_minutes
    return run_stage(arguments.name, arguments.out, find_device("cuda"), deadline, progress)


def _report(arguments: argparse.Namespace) -> int:
    print(report(arguments.folder))
    return 0


def register(commands: Any) -> None:
    """Add ``study``, ``study-stage`` and ``study-report`` to a parser's sub-commands."""
    here = commands.add_parser(
        "study", help="study this GPU: attention, overlap, gradients, sustained clocks, launches"
    )
    here.add_argument("--out", type=Path, required=True, help=f"folder for a record per stage, {SUMMARY} and {LOG}")
    here.add_argument("--minutes", type=float, default=9.0, help="end after so long (default 9)")
    here.set_defaults(run=_study)
    stage = commands.add_parser("study-stage", help="measure what one stage of a study lacks")
    stage.add_argument("name", choices=STAGES)
    stage.add_argument("--out", type=Path, required=True, help="folder of the study")
    stage.add_argument("--budget-minutes", type=float, help="begin no part that may end later; run again to continue")
    stage.set_defaults(run=_stage)
    back = commands.add_parser("study-report", help="print the tables of a study; needs neither torch nor the GPU")
    back.add_argument("folder", type=Path, help="OUT of the study")
    back.set_defaults(run=_report)
