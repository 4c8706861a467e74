"""``plan``: which machine, which layout, by when, for how much, and how sure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.commands.config_arguments import MODEL_ONLY, add_changes, add_model_only
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, Incomplete, add_command, width
from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.json_text import as_json

if TYPE_CHECKING:
    from predictor.training_plan.interface import PlanResult

# Options that are keys of the file with the same name, and take a value of YAML.
VALUES = (
    "train_tokens",
    "gpus",
    "start",
    "deadline",
    "max_price",
    "max_power_w",
    "probability",
    "global_batch_size",
    "global_batch_tokens",
    "critical_batch_tokens",
    "sequence_length",
    "interruptions_per_node_day",
    "draws",
    "seed",
)
TEXTS = ("framework", "region", "currency")
PATHS = ("model", "prices")
SWITCHES = ("spot", "paid_spares")
WRITTEN = ("write", "write_arguments", "write_job")


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "plan", "which machine and layout, by when, for how much, and how sure", answer)
    command.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="YAML file of a plan (docs/plan.md), or the model; options count before it",
    )
    command.add_argument("--model", metavar="NAME|FILE", help="a preset, a configuration, or another tool's file")
    command.add_argument("--train-tokens", metavar="X", help="tokens to train on, such as 15e12")
    command.add_argument(
        "--system",
        action="append",
        metavar="NAME[=GPUS]",
        help='a system that may be chosen, with its GPUs: H100, H100=64, "H100=64, 128", "H100=up to 512"',
    )
    command.add_argument(
        "--gpus", metavar="GPUS", help='of systems that say none: 256, "64, 128", "up to 1024", 64-1024'
    )
    _add_limits(command)
    choice = command.add_argument_group("what may be chosen")
    choice.add_argument("--precision", action="append", metavar="NAME", help="bf16, fp8, mxfp8, …; repeatable")
    choice.add_argument("--global-batch-size", metavar="N", help="samples of a step: 1024, 512,1024 or 512-2048")
    choice.add_argument("--global-batch-tokens", metavar="N", help="the same in tokens")
    choice.add_argument(
        "--critical-batch-tokens", metavar="X", help="batch beyond which more tokens reach the same loss"
    )
    choice.add_argument("--sequence-length", metavar="N", help="tokens of a sample, instead of the model's")
    choice.add_argument("--framework", metavar="NAME", help="only layouts that it runs, as of search")
    add_changes(command)
    add_model_only(command, "changes", "append_const", MODEL_ONLY)
    command.add_argument("--draws", metavar="N", help="simulated trainings of a plan; 2,000")
    command.add_argument("--seed", metavar="N", help="of the draws; 0")
    command.add_argument("--top", type=int, default=20, metavar="N", help="plans to show")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--write", metavar="FILE", help="also write the chosen plan's run as a configuration")
    command.add_argument("--write-arguments", metavar="FILE", help="also write it as the framework's own arguments")
    command.add_argument("--framework-version", metavar="X.Y", help="release that these arguments are for")
    command.add_argument("--write-job", metavar="FILE", help="also write it as a job of model_training_framework")


def _add_limits(command: argparse.ArgumentParser) -> None:
    """Define dates and prices."""
    limits = command.add_argument_group("by when, and for how much")
    limits.add_argument("--start", metavar="DAY", help="first day, such as 2026-12-01; today if absent")
    limits.add_argument("--deadline", metavar="DAY|DAYS", help="last day, or a number of days")
    limits.add_argument("--max-price", metavar="X", help="the most that the training may cost")
    limits.add_argument("--max-power-w", metavar="W", help="watts of all GPUs together, as a hall allows")
    limits.add_argument("--probability", metavar="P", help="with which both are to be kept; 0.8")
    limits.add_argument(
        "--price", action="append", metavar="[NAME=]X", help="of a GPU-hour of a system, or of all; repeatable"
    )
    limits.add_argument("--prices", metavar="FILE", help="price list: YAML, or a catalogue of SkyPilot (.csv)")
    limits.add_argument("--region", metavar="NAME", help="of the catalogue; the cheapest if absent")
    limits.add_argument("--currency", metavar="TEXT", help="behind prices; $")
    limits.add_argument("--spot", action="store_true", default=None, help="spot instances may be chosen as well")
    limits.add_argument("--paid-spares", action="store_true", default=None, help="spare nodes are paid for as well")
    limits.add_argument("--interruptions-per-node-day", metavar="X", help="how often a spot instance is taken away")


def _value(text: str) -> Any:
    """Return the value of an option as a file would have it."""
    from predictor.core.base.read_yaml import parse_value

    try:
        return parse_value(text)
    except ValueError:
        return text


def _named_systems(texts: Iterable[str]) -> dict[str, Any]:
    """Return the systems of options, each with its GPUs; those of a system that is named again count as well.

    Raises:
        ConfigError: a system is named again with a range.
    """
    from predictor.training_plan.amounts import Range, as_range

    chosen: dict[str, Any] = {}
    for text in texts:
        name, _, sizes = text.partition("=")
        before, given = chosen.setdefault(name, {}).get("gpus"), _value(sizes) if sizes else None
        if before is not None and given is not None:
            try:
                ranges = (as_range(before), as_range(given))
            except ValueError as error:
                raise ConfigError(f"--system {text}: {error}") from None
            listed = [count for each in ranges if isinstance(each, Range) for count in each.listed]
            if not all(isinstance(each, Range) and each.listed for each in ranges):
                raise ConfigError(f"--system {text}: {name} has GPUs already; give it one range, or lists alone")
            given = sorted(set(listed))
        chosen[name] |= {} if given is None else {"gpus": given}
    return chosen


def _systems(arguments: argparse.Namespace, known: Iterable[str], base: Path) -> dict[str, Any]:
    """Return the systems that options name, or those of the file, with the prices of options.

    Raises:
        ConfigError: a price is of no system, or no number.
    """
    from predictor.training_plan.question import same_system

    chosen = _named_systems(arguments.system or [])
    among = list(chosen) or list(known)
    for text in arguments.price or []:
        name, of_one, price = text.rpartition("=")
        value = _value(price)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"--price {text}: expected a price of a GPU-hour, such as 2.5 or H100=2.5")
        own = same_system(name, among, base) if of_one else None
        if of_one and own is None:
            hint = nearest(name, among) or f" It has {', '.join(among) or 'none'}."
            raise ConfigError(f"--price {text}: {name} is no system of the plan.{hint}")
        for each in among if own is None else [own]:
            chosen.setdefault(each, {})["price_per_gpu_hour"] = float(value)
    return chosen


def _content(arguments: argparse.Namespace, base: Path) -> dict[str, Any]:
    """Return the content of a plan's file, with what options say laid over it."""
    from predictor.training_plan.section import as_keys, choices, laid_over, read_plan

    content = {} if arguments.file is None else read_plan(Path(arguments.file))[0]
    keys: dict[str, Any] = {name: _value(text) for name in VALUES if (text := getattr(arguments, name)) is not None}
    keys |= {name: text for name in TEXTS if (text := getattr(arguments, name)) is not None}
    for name in PATHS:  # relative to where the command runs, not to the plan's file
        if (text := getattr(arguments, name)) is not None:
            keys[name] = str(Path(text).resolve()) if Path(text.partition("#")[0]).exists() else text
    keys |= {name: True for name in SWITCHES if getattr(arguments, name)}
    keys |= {"precisions": arguments.precision} if arguments.precision else {}
    keys |= {"set": as_keys(arguments.changes)} if arguments.changes else {}
    systems = _systems(arguments, choices(content), base)
    if arguments.system:
        content = {key: value for key, value in content.items() if key != "systems"}
    return laid_over(content, keys | ({"systems": systems} if systems else {}))


def _tell(done: int, of: int) -> None:
    """Show on a terminal how many searches are done; nothing once all are."""
    if sys.stderr is not None and sys.stderr.isatty():
        said = f"{done} of {of} searches, Ctrl-C for the best so far" if done < of else ""
        sys.stderr.write(f"\r\033[K{said}")
        sys.stderr.flush()


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Check the files to write before the searches."""
    named = [(f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in WRITTEN]
    check_outputs(named, [arguments.file, arguments.model])
    if arguments.write_job is not None and arguments.write_arguments is None:
        raise ConfigError("--write-job needs --write-arguments FILE, which the job runs")
    if arguments.framework_version is not None and arguments.write_arguments is None:
        raise ConfigError("--framework-version needs --write-arguments FILE, which is written for that release")


def _written(arguments: argparse.Namespace, result: PlanResult) -> None:
    """Write the files that options name."""
    write_outputs(
        (
            Output("--write", arguments.write, result.to_yaml),
            Output(
                "--write-arguments",
                arguments.write_arguments,
                lambda: result.arguments(version=arguments.framework_version),
            ),
            Output("--write-job", arguments.write_job, lambda: result.job(arguments.write_arguments)),
        )
    )


def _take_model(arguments: argparse.Namespace) -> None:
    """Take a file that is no plan for the model: a configuration, or another tool's file."""
    from predictor.training_plan.section import is_plan_file

    given = arguments.file
    if given is None or arguments.model is not None or not Path(given).exists() or is_plan_file(Path(given)):
        return
    arguments.file, arguments.model = None, given


def answer(arguments: argparse.Namespace) -> str:
    """Return the plan."""
    from predictor.training_plan.interface import plan_of

    _check_outputs(arguments)
    _take_model(arguments)
    base = Path.cwd() if arguments.file is None else Path(arguments.file).resolve().parent
    where = "" if arguments.file is None else f"{arguments.file}: "
    result = plan_of(_content(arguments, base), base, where, arguments.top, _tell)
    _written(arguments, result)
    text = as_json(result.to_dict()) if arguments.json else result.text(width())
    return text if result.is_whole else Incomplete(text)
