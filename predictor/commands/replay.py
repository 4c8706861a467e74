"""``replay``: a measured trace replayed, unchanged and with changes."""

from __future__ import annotations

import argparse

from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, add_command, width
from predictor.core.base.command_line import progress
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "replay", "replay a measured trace, and see what a change would do", answer)
    command.add_argument(
        "traces", nargs="+", metavar="TRACE", help="of PyTorch's profiler, one for each rank: files, folders, patterns"
    )
    command.add_argument("--step", type=int, metavar="N", help="which traced step, from 0 (the last whole one)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="CHANGE",
        help="operator:PATTERN*=0.5, kernel:PATTERN=remove, host*=0.5, link.bandwidth_GBps=50, ranks=8, bucket_mb=50, "
        "overlap=false, gpu=H100 … (docs/replay.md); repeatable, applied in order",
    )
    command.add_argument("--system", metavar="NAME", help="published system that the trace was recorded on")
    command.add_argument(
        "--costs",
        action="append",
        default=[],
        metavar="FILE",
        help="costs measured in other precisions (python -m microbench traced); repeatable",
    )
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="TRACE",
        help="of the same model in another precision, whose times its operators take in it; repeatable",
    )
    command.add_argument("--to", metavar="SYSTEM", help="the same as --set gpu=SYSTEM, behind the other changes")
    command.add_argument("--top", type=int, default=10, metavar="K", help="operators to list (10)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--report", metavar="FILE", help="also write one HTML page")
    command.add_argument("--trace", metavar="FILE", help="also write the replayed and the measured step as a trace")
    command.add_argument("--record", metavar="FOLDER", help="also write records of the measured step, for calibration")


def answer(arguments: argparse.Namespace) -> str:
    """Return the replay; write what was asked for."""
    from predictor.replay.answer import measured
    from predictor.replay.document import to_json
    from predictor.replay.question import ReplayQuestion
    from predictor.replay.question import answer as replay
    from predictor.replay.text import render
    from predictor.replay.whatif.changes import Means

    if arguments.top < 1:
        raise ConfigError(f"--top is {arguments.top}; it must be at least 1")
    inputs = [*arguments.traces, *arguments.costs, *arguments.also]
    check_outputs([("--report", arguments.report), ("--trace", arguments.trace)], inputs)
    changes = [*arguments.changes, *([f"gpu={arguments.to}"] if arguments.to is not None else [])]
    means = Means(arguments.system, tuple(arguments.costs), tuple(arguments.also))
    question = ReplayQuestion(tuple(arguments.traces), arguments.step, tuple(changes), means)
    answered = replay(question)
    from predictor.replay.page import page
    from predictor.replay.trace_file import replay_trace

    outputs = (
        Output("--report", arguments.report, lambda: page(answered)),
        Output(
            "--trace",
            arguments.trace,
            lambda: as_json(replay_trace(answered.shown, measured(answered.before.step)), indent=None),
        ),
    )
    for line in write_outputs(outputs):
        progress(line)
    if arguments.record is not None:
        from predictor.replay.record import write_records

        for path in write_records(arguments.record, answered.before.step):
            progress(f"wrote {path}")
    if arguments.json:
        return as_json(to_json(answered, arguments.traces))
    return render(answered, width(), arguments.top)
