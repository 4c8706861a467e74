"""Interface of a workload to verification: its prediction, and the program that runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime


class Program(NamedTuple):
    """A program that runs configurations of one kind: ``python -m MODULE CONFIG --out FOLDER …``.

    Attributes:
        module: of its command line.
        packages: whose presence says that an interpreter has it.
        config_file: name of the file that it reads, whose ending says the format.
    """

    module: str
    packages: tuple[str, ...]
    config_file: str

    def files(self, content: Mapping[str, Any]) -> dict[str, str]:
        """Return the text of every file that a launch needs, by name."""
        if self.config_file.endswith(".json"):
            return {self.config_file: json.dumps(content, indent=1) + "\n"}
        return {self.config_file: yaml.safe_dump(dict(content), sort_keys=False)}


class Workload(Protocol):
    """A run on the system that predicts it."""

    @property
    def program(self) -> Program:
        """Return what runs it."""

    @property
    def system(self) -> PublishedSystem:
        """Return what predicts it."""

    @property
    def num_gpus(self) -> int:
        """Return its ranks."""

    @property
    def num_stages(self) -> int:
        """Return its pipeline stages."""

    @property
    def precision(self) -> str:
        """Return the precision of its products."""

    def predict(self) -> StepTime:
        """Predict one step.

        Raises:
            PublishedError: the system lacks a regressor that the run needs.
        """


class Opened(NamedTuple):
    """A configuration that was read.

    Attributes:
        content: in the form that its program reads, without machine and bill.
    """

    content: dict[str, Any]
    workload: Workload


class Kind(NamedTuple):
    """A kind of configurations.

    Attributes:
        tells: whether a content is of it.
        opened: reads a content, whose paths are relative to a folder, on a system instead of its own.
    """

    tells: Callable[[Mapping[str, Any]], bool]
    opened: Callable[[dict[str, Any], Path, str | None], Opened]
