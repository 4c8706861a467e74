"""``list-examples``, ``show-example`` and ``list-presets``: what comes with the program."""

from __future__ import annotations

import argparse

from predictor.bundled import examples
from predictor.commands.parser import Commands, example

LIST, SHOW, PRESETS = "list-examples", "show-example", "list-presets"


def add(commands: Commands) -> None:
    """Say what the commands take."""
    commands.add_parser(LIST, help="list the bundled examples", allow_abbrev=False)
    show = commands.add_parser(SHOW, help="print a bundled example", allow_abbrev=False)
    show.add_argument("name", metavar="NAME")
    commands.add_parser(PRESETS, help="list the models that are known by name", allow_abbrev=False)


def answer_list(_: argparse.Namespace) -> str:
    """Return the names of the examples."""
    return "\n".join(examples())


def answer_show(arguments: argparse.Namespace) -> str:
    """Return an example as its file says it."""
    return example(arguments.name).read_text(encoding="utf-8").rstrip("\n")


def answer_presets(_: argparse.Namespace) -> str:
    """Return the names of the models."""
    from predictor.presets import preset_names

    return "\n".join(preset_names())
