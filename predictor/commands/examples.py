"""``list-examples``, ``show-example``, ``list-systems`` and ``list-presets``: show the bundled data."""

from __future__ import annotations

import argparse

from predictor.base.bundled import examples
from predictor.commands.parser import Commands, example

LIST, SHOW, PRESETS, SYSTEMS = "list-examples", "show-example", "list-presets", "list-systems"


def add(commands: Commands) -> None:
    """Define the arguments."""
    commands.add_parser(LIST, help="list the bundled examples", allow_abbrev=False)
    show = commands.add_parser(SHOW, help="print a bundled example", allow_abbrev=False)
    show.add_argument("name", metavar="NAME")
    commands.add_parser(SYSTEMS, help="list the published systems", allow_abbrev=False)
    commands.add_parser(PRESETS, help="list the models that are known by name", allow_abbrev=False)


def answer_list(_: argparse.Namespace) -> str:
    """Return the names of the examples."""
    return "\n".join(examples())


def answer_show(arguments: argparse.Namespace) -> str:
    """Return an example as its file says it."""
    return example(arguments.name).read_text(encoding="utf-8").rstrip("\n")


def answer_presets(_: argparse.Namespace) -> str:
    """Return the names of the models."""
    from predictor.configuration.presets import preset_names

    return "\n".join(preset_names())


def answer_systems(_: argparse.Namespace) -> str:
    """Return every published system with its GPU, its nodes and its links."""
    from predictor.base.bundled import REGRESSORS_FOLDER, systems
    from predictor.costs.folder import read_hardware, read_manifest

    lines = []
    for name in systems():
        folder = REGRESSORS_FOLDER / name
        hardware = read_hardware(folder, read_manifest(folder))
        memory = hardware.gpu.memory_gib
        known = "from data sheets" if hardware.transfer is not None else "measured"
        links = hardware.links
        lines.append(
            f"{name:12}{hardware.gpu.name:22}{hardware.gpus_per_node:3} per node  "
            f"{'' if memory is None else f'{memory.value:6.1f} GiB'}  links {links.intra_node_gb_per_s.value:g} and "
            f"{links.inter_node_gb_per_s.value:g} GB/s inside and between nodes  {known}"
        )
    return "\n".join(lines)
