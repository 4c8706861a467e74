"""``list-examples``, ``show-example``, ``list-systems`` and ``list-presets``: show the bundled data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from predictor.commands.config_arguments import example
from predictor.commands.parser import Commands, add_command
from predictor.core.base.bundled import examples

if TYPE_CHECKING:
    from predictor.core.hardware.hardware import System


def add(commands: Commands) -> None:
    """Define the arguments."""
    add_command(commands, "list-examples", "list the bundled examples", answer_list)
    show = add_command(commands, "show-example", "print a bundled example", answer_show)
    show.add_argument("name", metavar="NAME")
    add_command(commands, "list-systems", "list the published systems", answer_systems)
    add_command(commands, "list-presets", "list the models that are known by name", answer_presets)


def answer_list(_: argparse.Namespace) -> str:
    """Return the names of the examples."""
    return "\n".join(examples())


def answer_show(arguments: argparse.Namespace) -> str:
    """Return an example as its file says it."""
    return example(arguments.name).read_text(encoding="utf-8").rstrip("\n")


def answer_presets(_: argparse.Namespace) -> str:
    """Return the names of the models."""
    from predictor.core.schema.presets import preset_names

    return "\n".join(preset_names())


def answer_systems(_: argparse.Namespace) -> str:
    """Return every published system with its GPU, its nodes and its links."""
    from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
    from predictor.core.costs.folder import own_precisions, read_hardware, read_manifest

    lines = []
    for name in systems():
        folder = REGRESSORS_FOLDER / name
        manifest = read_manifest(folder)
        hardware = read_hardware(folder, manifest)
        memory = hardware.gpu.memory_gib
        known = _known(hardware, bool(own_precisions(manifest)))
        links = hardware.links
        lines.append(
            f"{name:14}{hardware.gpu.name:40}{hardware.gpus_per_node:3} per node  "
            f"{'' if memory is None else f'{memory.value:6.1f} GiB'}  links {links.intra_node_gb_per_s.value:g} and "
            f"{links.inter_node_gb_per_s.value:g} GB/s inside and between nodes  {known}"
        )
    return "\n".join(lines)


def _known(hardware: System, has_tables: bool) -> str:
    """Return where a system's times come from."""
    if hardware.calibration is not None:
        return f"{hardware.calibration.base}, calibrated with measured steps"
    if not has_tables:
        return "from data sheets"
    return "measured" if hardware.transfer is None else "16-bit products, attention and links in a node measured"
