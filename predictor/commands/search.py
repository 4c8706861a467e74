"""``search``: the fastest layouts of a model on so many GPUs."""

from __future__ import annotations

import argparse

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_debug, as_json, width, write_file

NAME = "search"
MOST_SHOWN = 1000


def add(commands: Commands) -> None:
    """Say what the command takes."""
    command = commands.add_parser(NAME, help="find the fastest layout", allow_abbrev=False)
    command.add_argument(
        "--model", required=True, metavar="NAME|FILE", help="a preset, a configuration, or another tool's file"
    )
    command.add_argument("--gpus", required=True, type=int, metavar="N", help="GPUs; every layout uses all of them")
    command.add_argument("--global-batch-size", type=int, metavar="N", help="samples per step")
    command.add_argument("--system", metavar="NAME", help="published system")
    command.add_argument("--sequence-length", type=int, metavar="N", help="tokens per sample, instead of the model's")
    command.add_argument("--precision", choices=("fp16", "bf16", "fp32"), help="of activations; bf16 for a preset")
    command.add_argument("--memory-gib", type=float, metavar="X", help="memory of one GPU, instead of the system's")
    command.add_argument("--max-tensor-parallel", type=int, metavar="N", help="largest tensor-parallel size")
    command.add_argument("--max-context-parallel", type=int, metavar="N", help="largest context-parallel size")
    command.add_argument("--max-micro-batch-size", type=int, metavar="N", help="largest micro-batch")
    command.add_argument("--schedule", action="append", metavar="NAME", help="only this one; may be given again")
    command.add_argument(
        "--zero-stage", action="append", type=int, metavar="N", help="only this one; may be given again"
    )
    command.add_argument("--top", type=int, default=10, metavar="N", help="layouts to show")
    command.add_argument("--pareto", action="store_true", help="also those that nothing beats in both time and memory")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--write", metavar="FILE", help="also write the fastest layout as a configuration")
    command.add_argument("--csv", metavar="FILE", help="also write the layouts shown to a file")
    add_debug(command)


def answer(arguments: argparse.Namespace) -> str:
    """Return the fastest layouts."""
    from predictor.base.sizes import whole
    from predictor.report.ranking import render, to_csv, to_json
    from predictor.search.answer import configuration, search
    from predictor.search.question import Question, asked
    from predictor.search.space import ZERO_ALONE
    from predictor.timeline.schedules import SCHEDULES

    for name in arguments.schedule or ():
        if name not in SCHEDULES:
            raise ConfigError(f"--schedule is {name}; expected {', '.join(SCHEDULES)}")
    for stage in arguments.zero_stage or ():
        if stage not in ZERO_ALONE:
            raise ConfigError(f"--zero-stage is {stage}; expected {', '.join(map(str, ZERO_ALONE))}")
    limits = {
        key: whole(f"--{key.replace('_', '-')}", value, largest=10**9)
        for key in ("max_tensor_parallel", "max_context_parallel", "max_micro_batch_size", "sequence_length")
        if (value := getattr(arguments, key)) is not None
    }
    question = Question(
        model=arguments.model,
        num_gpus=arguments.gpus,
        system=arguments.system,
        global_batch_size=arguments.global_batch_size,
        precision=arguments.precision,
        memory_gib=arguments.memory_gib,
        schedules=tuple(arguments.schedule or SCHEDULES),
        zero_stages=tuple(arguments.zero_stage if arguments.zero_stage is not None else ZERO_ALONE),
        **limits,
    )
    found = search(asked(question), whole("--top", arguments.top, largest=MOST_SHOWN), arguments.pareto)
    if arguments.csv is not None:
        write_file("--csv", arguments.csv, to_csv(found), [arguments.model])
    if arguments.write is not None:
        write_file("--write", arguments.write, configuration(found), [arguments.model, arguments.csv])
    return as_json(to_json(found)) if arguments.json else render(found, width())
