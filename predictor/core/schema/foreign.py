"""Files of other tools: functions of the wing that knows their formats, for rooms that may import no wing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from predictor.core.base.wings import wing
from predictor.core.schema.sections import RunConfig

if TYPE_CHECKING:  # whose package loads every reader
    from predictor.core.schema.read import Read


class Readers(Protocol):
    """Readers of every format."""

    def detect(self, path: Path) -> str:
        """Return the format of a file.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: the format is not a known one.
        """

    def of_configuration(self, path: Path) -> str | None:
        """Return the format of a YAML file that is no configuration of our own, None where it may be one.

        Raises:
            ConfigError: it is of a tool that is not read.
        """

    def files_in(self, folder: Path) -> tuple[list[Path], str]:
        """Return a folder's files of known formats in the order in which one overrides another, and a note on them.

        Raises:
            ConfigError: there is none, or several that may be meant.
        """

    def read_all(self, names: list[str], base: Path, num_gpus: int | None = None) -> list[Read]:
        """Read the files that ``from`` names.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: some cannot be read; the message has a line for every problem of them all.
        """

    def read_arguments(self, arguments: Mapping[str, Any], program: str, num_gpus: int | None) -> Read:
        """Read arguments of Megatron-LM by name, as its own test recipes hold them.

        Raises:
            ConfigError: as those of a file.
        """

    def of_trainer(self, content: dict[str, Any], where: str, base: Path) -> Read:
        """Return the configuration that a file of our own trainers stands for.

        Raises:
            ConfigError: it cannot be predicted.
        """


class Writers(Protocol):
    """Writers of the frameworks' own arguments."""

    def written(self, content: dict[str, Any], framework: str, base: Path, version: str | None = None) -> str:
        """Return a configuration as a framework's own arguments.

        Raises:
            ConfigError: the framework has no arguments for it.
        """

    def launch_job(
        self,
        content: dict[str, Any],
        config: RunConfig,
        framework: str,
        arguments: str,
        gpus: tuple[int, int],
        steps: int | None,
    ) -> str:
        """Return a configuration as an experiment of model_training_framework."""


def readers() -> Readers:
    """Return the readers."""
    return cast("Readers", wing("readers"))


def writers() -> Writers:
    """Return the writers."""
    return cast("Writers", wing("writers"))
