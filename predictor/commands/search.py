"""``search``: the fastest layouts of a model on a given number of GPUs, or sharding plans of a recommender."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from predictor.commands.config_arguments import MODEL_ONLY, add_changes, add_model_only
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, Interrupted, add_command, width
from predictor.commands.predict import is_hugectr_file
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json

# Options of layouts, which a HugeCTR configuration does not have.
LAYOUT_OPTIONS = (
    "changes",
    "framework",
    "global_batch_tokens",
    "sequence_length",
    "max_memory_gib",
    "max_tensor_parallel",
    "max_context_parallel",
    "max_micro_batch_size",
    "tensor_parallel_across_nodes",
    "schedule",
    "zero_stage",
    "train_tokens",
    "price",
    "max_hours",
    "max_days",
    "max_price",
    "deadline_days",
    "budget",
    "max_gpus",
    "pareto",
    "write_arguments",
    "write_job",
    "framework_version",
)
# Options of sharding plans, which other configurations do not have.
WRITTEN = ("csv", "write", "write_arguments", "write_job")
PLAN_OPTIONS = ("plan", "key_exponent", "cached_share")


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "search", "find the fastest layout", answer)
    command.add_argument(
        "--model", required=True, metavar="NAME|FILE", help="a preset, a configuration, or another tool's file"
    )
    command.add_argument("--gpus", type=int, metavar="N", help="GPUs; every layout uses all of them")
    command.add_argument("--global-batch-size", type=int, metavar="N", help="samples per step")
    command.add_argument("--global-batch-tokens", type=_tokens, metavar="N", help="tokens per step, instead of samples")
    command.add_argument("--system", metavar="NAME", help="published system")
    command.add_argument(
        "--framework",
        metavar="NAME",
        help="only layouts that it runs: megatron, torchtitan, deepspeed, gpt-neox or transformers",
    )
    command.add_argument("--sequence-length", type=int, metavar="N", help="tokens per sample, instead of the model's")
    command.add_argument("--precision", choices=("fp16", "bf16", "fp32"), help="of activations; bf16 for a preset")
    command.add_argument("--memory-gib", type=float, metavar="X", help="memory of one GPU, instead of the system's")
    _add_limits(command)
    add_changes(command)
    add_model_only(command, "changes", "append_const", MODEL_ONLY)
    _add_training(command)
    command.add_argument("--top", type=int, default=10, metavar="N", help="layouts to show")
    command.add_argument("--pareto", action="store_true", help="also the Pareto front of time and memory")
    hugectr = command.add_argument_group("of a HugeCTR configuration, instead of what its file says")
    hugectr.add_argument("--plan", metavar="FILE", help="sharding plan to compare with those of the search")
    hugectr.add_argument("--key-exponent", type=float, metavar="X", help="power law of the keys; 0: uniform")
    hugectr.add_argument("--cached-share", type=float, metavar="X", help="of all rows in device memory; 1: all")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--write", metavar="FILE", help="also write the fastest layout as a configuration, or plan")
    command.add_argument(
        "--write-arguments", metavar="FILE", help="also write the fastest layout as the framework's own arguments"
    )
    command.add_argument(
        "--framework-version", metavar="X.Y", help="release that these arguments are for; the newest that is known"
    )
    command.add_argument("--write-job", metavar="FILE", help="also write it as a job of model_training_framework")
    command.add_argument("--csv", metavar="FILE", help="also write the layouts shown to a file")


def _add_limits(command: argparse.ArgumentParser) -> None:
    """Define what narrows the layouts."""
    command.add_argument("--max-memory-gib", type=float, metavar="X", help="largest need of one GPU")
    command.add_argument("--max-tensor-parallel", type=int, metavar="N", help="largest tensor-parallel size")
    command.add_argument("--max-context-parallel", type=int, metavar="N", help="largest context-parallel size")
    command.add_argument("--max-micro-batch-size", type=int, metavar="N", help="largest micro-batch")
    command.add_argument(
        "--tensor-parallel-across-nodes",
        action="store_true",
        help="tensor-parallel groups may leave a node or an NVLink domain",
    )
    command.add_argument("--schedule", action="append", metavar="NAME", help="only this schedule; repeatable")
    command.add_argument("--zero-stage", action="append", type=int, metavar="N", help="only this stage; repeatable")


def _add_training(command: argparse.ArgumentParser) -> None:
    """Define the whole training and limits on it, failures included."""
    whole = command.add_argument_group("of the whole training, failures and checkpoints included")
    whole.add_argument("--train-tokens", type=float, metavar="X", help="tokens to train on, such as 15e12")
    whole.add_argument("--price", type=float, metavar="X", help="of a GPU-hour, in any currency")
    whole.add_argument("--max-hours", type=float, metavar="X", help="leave out layouts that train longer")
    whole.add_argument("--max-days", type=float, metavar="X", help="the same in days")
    whole.add_argument("--max-price", type=float, metavar="X", help="leave out layouts that cost more")
    whole.add_argument("--deadline-days", type=float, metavar="X", help="look for the fewest GPUs that train in time")
    whole.add_argument("--budget", type=float, metavar="X", help="look for the fewest GPUs that train for this price")
    whole.add_argument("--max-gpus", type=int, metavar="N", help="the most that such a search tries")


def _tokens(text: str) -> int:
    """Return a whole number of tokens, such as 4194304 or 4e6."""
    with suppress(ValueError):
        number = float(text)
        if number.is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number, such as 4194304 or 4e6")


def _plans(arguments: argparse.Namespace) -> str:
    """Return the fastest sharding plans of a HugeCTR configuration."""
    from predictor.recommender.hugectr.plan_file import plan_text
    from predictor.recommender.plans import search_plans

    given = next((name for name in LAYOUT_OPTIONS if getattr(arguments, name)), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise ConfigError(f"{option} is for layouts; {arguments.model} is a HugeCTR configuration, which has none")
    if arguments.gpus is None:
        raise ConfigError("--gpus is missing: how many GPUs share the embedding tables?")
    result = search_plans(
        arguments.model,
        gpus=arguments.gpus,
        system=arguments.system,
        batch_size=arguments.global_batch_size,
        precision=arguments.precision,
        memory_gib=arguments.memory_gib,
        top=arguments.top,
        **{name: getattr(arguments, name) for name in PLAN_OPTIONS},
    )
    write_outputs(
        (
            Output("--csv", arguments.csv, result.to_csv),
            Output("--write", arguments.write, lambda: plan_text(result.plans[0])),
        )
    )
    return as_json(result.to_dict()) if arguments.json else result.text(width())


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Check the files to write before the search, which takes a while."""
    check_outputs([(f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in WRITTEN], [arguments.model])
    if arguments.write_job is not None and arguments.write_arguments is None:
        raise ConfigError("--write-job needs --write-arguments FILE, which the job runs")
    if arguments.framework_version is not None and arguments.write_arguments is None:
        raise ConfigError("--framework-version needs --write-arguments FILE, which is written for that release")
    if arguments.write_arguments is not None and arguments.framework is None:
        from predictor.core.plan.framework_rules import NAMES  # only when needed, for a fast start

        raise ConfigError(f"--write-arguments needs --framework: {', '.join(NAMES)}")


def answer(arguments: argparse.Namespace) -> str:
    """Return the fastest layouts, or sharding plans."""
    _check_outputs(arguments)
    if is_hugectr_file(Path(arguments.model)):
        return _plans(arguments)
    given = next((name for name in PLAN_OPTIONS if getattr(arguments, name) is not None), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise ConfigError(f"{option} is for HugeCTR configurations; {arguments.model} is none")
    import yaml

    from predictor.layout_search.interface import search
    from predictor.layout_search.watch import Watch

    options = {name: getattr(arguments, name) for name in search.__kwdefaults__ or {}}  # an option each
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    watch = Watch(terminal, width())
    with watch.waiting():
        result = search(arguments.model, arguments.gpus, **options)

    def arguments_written() -> str:
        return result.arguments(version=arguments.framework_version)

    def fastest() -> str:
        return yaml.safe_dump(result.layouts[0].configuration, sort_keys=False)

    write_outputs(
        (
            Output("--csv", arguments.csv, result.to_csv),
            Output("--write", arguments.write, fastest),
            Output("--write-arguments", arguments.write_arguments, arguments_written),
            Output("--write-job", arguments.write_job, lambda: result.job(arguments.write_arguments)),
        )
    )
    text = as_json(result.to_dict()) if arguments.json else result.text(width())
    return Interrupted(text) if watch.stopped else text
