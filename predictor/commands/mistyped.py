"""A first word that is neither a command nor a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predictor.core.base.errors import ConfigError, nearest


def require_configuration(program: str, name: str, commands: Sequence[str]) -> None:
    """Check that a first word that is no command may name a configuration, so that a mistyped command is told as one.

    Raises:
        ConfigError: it looks neither like a file nor like an option, and there is no such file.
    """
    if name.startswith("-") or any(mark in name for mark in "./:") or Path(name).exists():
        return
    from predictor.core.schema.presets import spelled  # only when needed, for a fast start

    preset = spelled(name)
    meant = nearest(name, commands) if preset is None else f" It is a model: {program} predict --model {preset}."
    raise ConfigError(f"{name} is neither a command nor a file.{meant} {program} --help lists the commands")
