"""Show the bundled data: ``list-examples``, ``show-example``, ``list-systems``, ``list-presets``, ``list-formats``."""

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
    known = add_command(commands, "list-formats", "list the files of other tools that are read", answer_formats)
    known.add_argument("name", nargs="?", metavar="NAME", help="print an example of this format instead")


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


def answer_formats(arguments: argparse.Namespace) -> str:
    """Return the formats with the tools' versions and where their keys are documented, or an example of one."""
    from predictor.core.base.errors import ConfigError, nearest
    from predictor.core.base.text_table import text_table
    from predictor.core.schema.input_kind import HUGECTR
    from predictor.formats.table import EXAMPLES, TABLE

    read = {known.name: known for known in TABLE if known.module}
    if arguments.name is None:
        rows = [(known.name, known.versions, known.documented) for known in read.values()]
        others = ", ".join(dict.fromkeys(known.tool for known in TABLE if not known.module and known.name != HUGECTR))
        lines = text_table([("format", "versions", "documented in"), *rows], left=(0, 1, 2))
        return "\n".join([*lines, "", f"Told, and refused by name: {others}"])
    shown = read.get(arguments.name)
    if shown is None:
        raise ConfigError(
            f"{arguments.name} is no format that is read.{nearest(arguments.name, read)} list-formats lists them"
        )
    if not shown.example:
        raise ConfigError(f"{arguments.name} has no example here; it is documented in {shown.documented}")
    return (EXAMPLES / shown.example).read_text(encoding="utf-8").rstrip("\n")


def answer_systems(_: argparse.Namespace) -> str:
    """Return every published system with its GPU, its nodes and its links."""
    from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
    from predictor.core.costs.folder import own_precisions, read_hardware, read_manifest
    from predictor.core.schema.finding import DIFFERS

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
            + (f" ({DIFFERS[name]})" if name in DIFFERS else "")
        )
    return "\n".join(lines)


def _known(hardware: System, has_tables: bool) -> str:
    """Return where a system's times come from."""
    if hardware.calibration is not None:
        return f"{hardware.calibration.base}, calibrated with measured steps"
    if not has_tables:
        return "from data sheets"
    return "measured" if hardware.transfer is None else "16-bit products, attention and links in a node measured"
