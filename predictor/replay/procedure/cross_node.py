"""``cross_node_predict``: ranks with traces of their own, aligned at every collective; who waits for whom."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.replay.procedure.arguments import add_model
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.folders import Folders
from predictor.replay.procedure.opened import check_step
from predictor.replay.whatif.mixed_question import ON_GPU, MixedQuestion
from predictor.replay.whatif.mixed_question import answer as mixed
from predictor.replay.whatif.mixed_text import render

PASSED_OVER = "is no trace; passed over"  # the record and the execution trace beside a trace


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser(
        "cross_node_predict", "Predict the step of a job whose ranks were traced apart, on any devices, or together."
    )
    add_model(result)
    result.add_argument(
        "--file_names",
        "--file-names",
        "--file_name",
        nargs="+",
        metavar="TRACE[@GPU]",
        help="one trace: all its ranks; several: one a rank, moved to another GPU with @GPU (all of the model)",
    )
    result.add_argument(
        "--target_trace_idx", "--target-trace-idx", type=int, default=0, metavar="I", help="step of the traces (0)"
    )
    result.add_argument(
        "--samples", type=int, nargs="+", default=(), metavar="N", help="of a step of each rank: also balance the batch"
    )
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Return every rank's step, who waits for whom, and the split of the batch that balances them.

    Raises:
        ConfigError: there are no such traces, steps or GPUs, or the ranks run different collectives.
    """
    folders, model = folders_of(arguments), arguments.model_name
    names = arguments.file_names or folders.trace_names(model)
    if not names:
        folders.traces(model, "*")  # tells where traces are expected
    places = [_place(folders, model, name, arguments.target_trace_idx) for name in names]
    if len(names) == 1:
        ranks = len(folders.traces(model, names[0].partition(ON_GPU)[0]))
        names, places = names * ranks, places * ranks
    if arguments.samples and len(arguments.samples) != len(places):
        raise ConfigError(f"--samples has {len(arguments.samples)} numbers; give one for each of {len(places)} ranks")
    question = MixedQuestion(
        places, [1] * len(places), samples=tuple(arguments.samples), step=arguments.target_trace_idx
    )
    result = mixed(question)
    notes = [note for note in result.notes if not note.endswith(PASSED_OVER)]
    return f"{model}: {', '.join(names)}\n\n{render(replace(result, devices=names, notes=notes))}"


def _place(folders: Folders, model: str, name: str, index: int) -> str:
    """Return what a rank of a mixed job runs: the file or folder of its trace, and the GPU that it is moved to."""
    trace, sign, gpu = name.partition(ON_GPU)
    paths = folders.traces(model, trace)
    check_step(paths[0], index)
    together: Path = paths[0] if len(paths) == 1 else paths[0].parent
    if len(paths) > 1 and together.name != trace:
        raise ConfigError(
            f"{trace} of {model} has a file for each rank in {together}; move them into {together / trace}, "
            "as rank-0.json …"
        )
    return f"{together}{sign}{gpu}"
