"""``completion``: a script that lets a shell complete commands, options, systems, presets and examples."""

from __future__ import annotations

import argparse

from predictor.commands.parser import Commands, add_command

SHELLS = ("bash", "zsh", "fish")
COMPLETED = "estimate-train-time"


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "completion", "print a completion script for a shell", answer)
    command.add_argument("shell", choices=SHELLS, help="whose script")
    command.set_defaults(every=commands)


def answer(arguments: argparse.Namespace) -> str:
    """Return the script, made from all commands' arguments."""
    from predictor.commands.shells import bash_script, described, fish_script, zsh_script

    script = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[arguments.shell]
    return script(COMPLETED, described(arguments.every)).rstrip("\n")
