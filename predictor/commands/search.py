"""``search``: the fastest layouts of a model on a given number of GPUs."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_command, as_json, width, write_file


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "search", "find the fastest layout", answer)
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
    command.add_argument("--schedule", action="append", metavar="NAME", help="only this schedule; repeatable")
    command.add_argument("--zero-stage", action="append", type=int, metavar="N", help="only this stage; repeatable")
    command.add_argument("--top", type=int, default=10, metavar="N", help="layouts to show")
    command.add_argument("--pareto", action="store_true", help="also the Pareto front of time and memory")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--write", metavar="FILE", help="also write the fastest layout as a configuration")
    command.add_argument("--csv", metavar="FILE", help="also write the layouts shown to a file")


def answer(arguments: argparse.Namespace) -> str:
    """Return the fastest layouts."""
    import yaml

    from predictor.interface.search import search

    options = {name: getattr(arguments, name) for name in search.__kwdefaults__ or {}}  # an option each
    result = search(arguments.model, arguments.gpus, **options)
    if arguments.csv is not None:
        write_file("--csv", arguments.csv, result.to_csv(), [arguments.model])
    if arguments.write is not None:
        fastest = yaml.safe_dump(result.layouts[0].configuration, sort_keys=False)
        write_file("--write", arguments.write, fastest, [arguments.model, arguments.csv])
    return as_json(result.to_dict()) if arguments.json else result.text(width())
