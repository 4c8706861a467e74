"""The command line as shells complete it: commands, their options, and what each option takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from predictor.core.base.bundled import examples, systems
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.plan.framework_rules import RULES
from predictor.core.schema.presets import preset_names
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import Framework

LONGEST_HELP = 60
# What options take that is no file, by the name in their help.
NO_FILES = ("N", "X", "K", "VALUE", "KEY=VALUE", "CHANGE", "SECONDS", "ADDRESS", "PERCENT", "PORT", "REGEX")
# What arguments are known to take, by the name of their value, of one command by the command's too.
KNOWN: Mapping[str, Callable[[], Iterable[object]]] = {
    "system": systems,
    "to": systems,
    "model": preset_names,
    "example": examples,
    "name": examples,
    "schedule": lambda: SCHEDULES,
    "recompute": lambda: Recompute,
    "precision": lambda: STEP_PRECISIONS,
    "framework": lambda: Framework,
    "search framework": lambda: RULES,
}


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        flags: its spellings.
        text: its help.
        takes_value: it is followed by one.
        values: known ones.
        only_values: it takes no file.
    """

    flags: tuple[str, ...]
    text: str
    takes_value: bool
    values: tuple[str, ...]
    only_values: bool


class Command(NamedTuple):
    """A command: its line of help, its options, and the known values of what stands without an option."""

    name: str
    text: str
    options: tuple[Option, ...]
    values: tuple[str, ...]
    only_values: bool


def _known(command: str, action: argparse.Action) -> tuple[tuple[str, ...], bool]:
    """Return the values that an argument is known to take, and whether it takes no file."""
    if action.choices is not None:
        return tuple(map(str, action.choices)), True
    known = KNOWN.get(f"{command} {action.dest}", KNOWN.get(action.dest))
    if known is not None:
        return tuple(map(str, known())), action.dest not in ("system", "to", "model")
    return (), not str(action.metavar).isupper() or action.metavar in NO_FILES


def _line(action: argparse.Action) -> str:
    """Return the first words of an argument's help."""
    if action.help in (None, argparse.SUPPRESS):
        return ""
    words = " ".join(str(action.help).replace("%%", "%").split())
    return words if len(words) <= LONGEST_HELP else f"{words[:LONGEST_HELP].rsplit(' ', 1)[0]} …"


def described(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[Command]:
    """Return every command with all that it takes."""
    texts: Mapping[str, str] = {action.dest: action.help or "" for action in commands._choices_actions}
    found = []
    for name, parser in commands.choices.items():
        options: list[Option] = []
        values: tuple[str, ...] = ()
        only = True
        for action in parser._actions:
            known, is_only = _known(name, action)
            if action.option_strings:
                flags = tuple(action.option_strings)
                options.append(Option(flags, _line(action), action.nargs != 0, known, is_only))
            else:
                values, only = known, is_only
        found.append(Command(name, texts[name], tuple(options), values, only))
    return found
