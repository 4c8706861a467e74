"""Shared by all command lines: one-line errors and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import NoReturn

from predictor.core.base.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        """Raise the error as a ConfigError."""
        raise ConfigError(f"{message}; {self.prog} --help lists what there is")


def progress(text: str) -> None:
    """Print a line to stderr at once, unless that is closed (None) or full; stdout is for the result."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def on_terminal() -> bool:
    """Return whether somebody may read progress: stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
