"""A format of another tool: its signatures and its reader."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from predictor.core.base.errors import ConfigError
from predictor.core.schema.input_kind import HUGECTR
from predictor.core.schema.read import Read
from predictor.formats.signature import Signature
from predictor.formats.source import Source

WAY_OUT = (
    "which is not read; give model, layout and batch as a configuration, or as options: --model NAME --gpus N --tp N …"
)


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: as messages and ``Read.format`` have it.
        tool: that takes such files.
        signatures: one that matches is enough.
        module: of its reader, below this package; empty: it is not read.
        takes: what its reader takes beside the path, by the names of ``Source``.
        versions: of the tool whose files are read.
        documented: where the tool documents its keys, a path in its repository.
        example: a file of ``examples/``, Python with .txt behind its name; empty: none.
        rank: among several files of one run: 0 a model, 1 a part of the layout, 2 a training, which overrides both.
        joins: files of one run are read as one, by ``read_files`` of the module.
    """

    name: str
    tool: str
    signatures: tuple[Signature, ...]
    module: str = ""
    takes: tuple[str, ...] = ()
    versions: str = ""
    documented: str = ""
    example: str = ""
    rank: int = 2
    joins: bool = False

    def read(self, source: Source) -> Read:
        """Read a file.

        Raises:
            ConfigError: the tool's files are not read, or the file asks for what is not modelled.
        """
        self.refuse_unread(source)
        read = import_module(f"predictor.formats.{self.module}").read
        return cast("Read", read(source.path, **{name: getattr(source, name) for name in self.takes}))

    def refuse_unread(self, source: Source) -> None:
        """Refuse a file whose format is told and not read.

        Raises:
            ConfigError: it is one.
        """
        if not self.module and self.name != HUGECTR:
            raise ConfigError(f"{source.path.name} is of {self.tool}, {WAY_OUT}")


def not_read(tool: str, *signatures: Signature) -> Format:
    """Return a format that is told, and refused by the tool's name."""
    return Format(tool, tool, signatures)
