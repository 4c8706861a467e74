"""Commands of a survey: ``kit`` packs it, ``survey`` runs on the GPU machine, ``unpack`` imports its results."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from microbench.errors import MeasureError
from microbench.survey.archive import ARCHIVE, SUMMARY, Saver, unpack
from microbench.survey.kit import MACHINES, PYTHONS, make_kit
from microbench.survey.probe import Probe, probe, why_not_continued
from microbench.survey.stages import DATASHEETS, run_command, stages, survey
from microbench.system import SYSTEM, described_gpu, write_system
from predictor.core.base.command_line import progress
from predictor.core.base.read_yaml import read_keys

SAVE_EVERY_S = 30.0
LOG = "survey.log"
CODE = Path(__file__).resolve().parents[3]
LEAST_MINUTES = 1.0


def _earlier(folder: Path | None, here: Probe) -> Path | None:
    """Return an earlier survey's results of this GPU below a folder; None where there are none to continue."""
    for path in sorted(folder.glob(f"*/{SYSTEM}")) if folder else ():
        if described_gpu(path) == here.device:
            reason = why_not_continued(path.parent, here)
            progress(f"continuing {path.parent}" if reason is None else f"starting anew: {reason}")
            return path.parent if reason is None else None
    return None


def _survey(arguments: argparse.Namespace) -> int:
    if arguments.minutes < LEAST_MINUTES:
        raise MeasureError(f"--minutes is {arguments.minutes:g}; expected at least {LEAST_MINUTES:g}")
    out: Path = arguments.out
    here = probe(CODE / DATASHEETS)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="survey-") as scratch:
        work = Path(scratch)
        progress(f"surveying {here.device}, driver {here.driver}, for {arguments.minutes:g} minutes")
        earlier = _earlier(arguments.earlier, here)
        if earlier is not None:
            shutil.copytree(earlier, work, dirs_exist_ok=True)
        else:
            write_system(work, here.system)
        planned = stages(work, CODE, arguments.sweep, arguments.precision, here.precisions)
        with Saver(work, out / ARCHIVE, SAVE_EVERY_S, progress):
            ended = survey(
                planned,
                arguments.minutes,
                lambda words, seconds: run_command(words, seconds, out / LOG),
                work / SUMMARY,
                progress,
            )
        shutil.copy(work / SUMMARY, out / SUMMARY)
    print(out / ARCHIVE)
    return int(any(stage.status for stage in ended))


def _unpack(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        unpack(arguments.archive, Path(scratch))
        system = Path(scratch) / SYSTEM
        if not system.is_file():
            raise MeasureError(f"{arguments.archive}: no system.yaml: the survey ended before it had described the GPU")
        name = read_keys(system, MeasureError)["hardware"]["name"]
    unpack(arguments.archive, arguments.into / name)
    print(arguments.into / name)
    return 0


def _kit(arguments: argparse.Namespace) -> int:
    size = make_kit(CODE, arguments.out, arguments.python, arguments.machine, arguments.earlier, progress)
    print(f"{arguments.out}: {size / 1e6:.1f} MB; there: python3 {arguments.out.name}/measure.py --minutes 9 --out OUT")
    return 0


def register(commands: Any) -> None:
    """Add ``kit``, ``survey`` and ``unpack`` to a parser's sub-commands."""
    kit = commands.add_parser("kit", help="build the folder for a GPU machine without a network")
    kit.add_argument("--out", type=Path, required=True, help="folder to make, e.g. gpu-kit")
    kit.add_argument("--python", nargs="+", default=list(PYTHONS), help=f"versions there (default {' '.join(PYTHONS)})")
    kit.add_argument("--machine", nargs="+", default=["x86_64"], choices=MACHINES, help="processors there")
    kit.add_argument("--earlier", type=Path, help="results/gpu: what earlier surveys measured, to continue")
    kit.set_defaults(run=_kit)
    here = commands.add_parser("survey", help="measure this GPU within a stated number of minutes")
    here.add_argument("--out", type=Path, required=True, help=f"folder for {ARCHIVE}, {SUMMARY} and {LOG}")
    here.add_argument("--minutes", type=float, default=9.0, help="end after so long (default 9)")
    here.add_argument("--sweep", default="standard", help="whose shapes")
    here.add_argument("--precision", default="bf16", help="of the operators; fp8 follows where there is time")
    here.add_argument("--earlier", type=Path, help="folder of earlier surveys' results, a folder a GPU")
    here.set_defaults(run=_survey)
    back = commands.add_parser("unpack", help="import a survey's results; prints the GPU's results folder")
    back.add_argument("archive", type=Path, help=f"OUT/{ARCHIVE}")
    back.add_argument("--into", type=Path, default=Path("results/gpu"), help="default: results/gpu, a folder a GPU")
    back.set_defaults(run=_unpack)
