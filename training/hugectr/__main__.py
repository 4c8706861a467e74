"""``python -m hugectr``: one command after another name, each imported when it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

from hugectr.exceptions import HugeCtrError
from predictor.core.base.errors import ConfigError, MissingKeyError


class Command(NamedTuple):
    """A command: a module whose ``main(arguments)`` returns the exit status."""

    module: str
    summary: str


COMMANDS = {
    "generate": Command("hugectr.data.cli", "write a synthetic data set for a configuration"),
    "train": Command("hugectr.cli", "train as a configuration's solver clause says"),
}


INTERRUPTED = 130  # as shells count a program that SIGINT ended


def main(arguments: list[str]) -> int:
    """Run a command; a user's error is one line on stderr and status 2, an interrupt is one and status 130."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m hugectr COMMAND …; COMMAND --help says more")
        print("\n".join(f"  {name:10} {command.summary}" for name, command in COMMANDS.items()))
        return 0 if arguments else 2
    name, *rest = arguments
    try:
        if name not in COMMANDS:
            raise HugeCtrError(f"{name} is not a command; there are: {', '.join(COMMANDS)}")
        return int(import_module(COMMANDS[name].module).main(rest))
    except (HugeCtrError, ConfigError, MissingKeyError, OSError) as error:
        print(f"hugectr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hugectr: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
