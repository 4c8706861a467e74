"""``check``: fail where a predicted step breaks a limit, for continuous integration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.commands.config_arguments import MODEL_ONLY, add_changes, add_model_only, predicted_file
from predictor.commands.parser import BrokenLimit, Commands, add_command
from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json

if TYPE_CHECKING:
    from predictor.core.predict.check import Check, Limits

# Limits as options, with their units.
OPTIONS = {
    "max_step_s": "seconds of one step",
    "min_tokens_per_second": "tokens per second of the whole run",
    "min_mfu": "model FLOP/s utilisation, between 0 and 1",
    "max_memory_gib": "GiB of the fullest GPU",
    "max_days": "days of the training (budget.train_tokens)",
    "max_gpu_hours": "GPU-hours of the training",
    "max_price": "price of the training (budget.price_per_gpu_hour)",
    "min_probability": "of a plan: with which it keeps its deadline and its price",
}


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "check", "exit with 3 where a prediction breaks a limit", answer)
    command.add_argument("paths", nargs="*", metavar="CONFIG", help="configuration files, or plans")
    command.add_argument("--budget", metavar="FILE", help="YAML file of configurations and limits (docs/check.md)")
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configurations'")
    for name, unit in OPTIONS.items():
        command.add_argument(f"--{name.replace('_', '-')}", dest=name, type=float, metavar="X", help=unit)
    command.add_argument("--certain", action="store_true", help="the worse end of the 90 %% interval counts")
    add_changes(command)
    add_model_only(command, "changes", "append_const", MODEL_ONLY)
    command.add_argument("--json", action="store_true", help="print JSON")


def _of_options(arguments: argparse.Namespace) -> list[Check]:
    """Check every configuration of the command line against the options."""
    from pydantic import ValidationError

    from predictor.core.base.read_yaml import first_error, reason
    from predictor.core.predict.check import Limits

    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if given and not arguments.paths:
        raise ConfigError(f"--{next(iter(given)).replace('_', '-')} needs a configuration file to check")
    try:
        limits = Limits(certain=arguments.certain, **given)
    except ValidationError as error:
        first = first_error(error)
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise ConfigError(f"{option} is {first['input']:g}: {reason(first)}") from None
    return [_checked(path, limits, arguments.system, arguments.changes) for path in arguments.paths]


def _of_budget(path: Path, arguments: argparse.Namespace) -> list[Check]:
    """Check every entry of a budget file."""
    from predictor.core.predict.check import check, read_budget
    from predictor.core.predict.prediction import predict

    checks = []
    for entry in read_budget(path).checks:
        limits = entry.model_copy(update={"certain": True}) if arguments.certain else entry
        system = arguments.system if entry.system is None else _system_or_path(path, entry.system)
        config = path.parent / entry.config
        if _is_plan(config):
            checks.append(_checked(str(config), limits, system, arguments.changes))
        else:
            checks.append(check(predict(config, system=system, hardware=arguments.changes), limits))
    return checks


def _is_plan(path: Path) -> bool:
    """Return whether a file is a plan; reads nothing of a file that cannot be one."""
    from predictor.training_plan.section import is_plan_file

    return is_plan_file(path)


def _checked(path: str, limits: Limits, system: str | None, changes: list[str]) -> Check:
    """Return the check of a configuration, of another tool's file, or of a plan."""
    if _is_plan(Path(path)):
        from predictor.training_plan.check import check_plan

        return check_plan(Path(path), limits, system, changes)
    from predictor.core.predict.check import check

    return check(predicted_file(path, system, changes), limits)


def _system_or_path(budget: Path, system: str) -> str:
    """Return a system's name, or the path of one of one's own, which a budget file gives relative to itself."""
    own = budget.parent / system
    return system if system in systems() or not own.exists() else str(own)


def answer(arguments: argparse.Namespace) -> str:
    """Return every rule; one that is broken makes the exit code 3."""
    from predictor.core.predict.check import render, to_json

    if not arguments.paths and arguments.budget is None:
        raise ConfigError("check needs configuration files with limits (--max-step-s 12), or --budget FILE")
    checks = _of_options(arguments)
    if arguments.budget is not None:
        checks += _of_budget(Path(arguments.budget), arguments)
    text = as_json(to_json(checks)) if arguments.json else render(checks)
    return text if all(checked.kept for checked in checks) else BrokenLimit(text)
