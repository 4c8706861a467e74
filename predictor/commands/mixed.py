"""``mixed``: a job whose ranks run on different devices, from traces of the job on each of them."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_command, width
from predictor.core.base.json_text import as_json


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(
        commands, "mixed", "replay ranks on different devices together, and split their batch", answer
    )
    command.add_argument(
        "devices",
        nargs="+",
        metavar="TRACE[@GPU]",
        help="of the job on a device; @GPU moves it to a published system's or another known GPU",
    )
    command.add_argument(
        "--ranks",
        nargs="+",
        type=int,
        default=(),
        metavar="N",
        help="on each of them (1; all that were traced where there is one TRACE)",
    )
    command.add_argument(
        "--samples", nargs="+", type=int, default=(), metavar="N", help="of one rank's step in each trace"
    )
    command.add_argument("--global-batch", type=int, metavar="N", help="samples to split over all ranks (as traced)")
    command.add_argument("--multiple", type=int, default=1, metavar="N", help="of which every rank's samples are (1)")
    command.add_argument(
        "--most", nargs="+", type=int, default=(), metavar="N", help="samples that fit into one rank's memory on each"
    )
    command.add_argument(
        "--second", nargs="+", default=(), metavar="TRACE", help="of the same devices at another batch size"
    )
    command.add_argument("--second-samples", nargs="+", type=int, default=(), metavar="N", help="of these")
    command.add_argument("--step", type=int, metavar="N", help="which traced step, from 0 (the last whole one)")
    command.add_argument("--json", action="store_true", help="print JSON")


def answer(arguments: argparse.Namespace) -> str:
    """Return the replayed job, and the split of its batch where samples are given."""
    from predictor.replay.whatif.mixed_question import MixedQuestion
    from predictor.replay.whatif.mixed_question import answer as mixed
    from predictor.replay.whatif.mixed_text import render, to_json

    question = MixedQuestion(
        arguments.devices,
        arguments.ranks,
        arguments.samples,
        arguments.global_batch,
        arguments.multiple,
        arguments.most,
        arguments.second,
        arguments.second_samples,
        arguments.step,
    )
    answered = mixed(question)
    return as_json(to_json(answered)) if arguments.json else render(answered, width())
