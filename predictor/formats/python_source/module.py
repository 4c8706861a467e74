"""A file of Python code as its syntax trees, and the functions and classes in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Import:
    """A name that a module takes from another.

    Attributes:
        module: dotted name, absolute.
        name: in that module; None for the module itself.
    """

    module: str
    name: str | None


@dataclass(slots=True)
class Module:
    """A file of Python code.

    Attributes:
        path: of the file.
        definitions: syntax trees of its functions, classes and assigned values, by name.
        imports: by name.
        stars: modules of which it takes every name.
        values: names that have been evaluated.
        tree: modules that have been read so far, by their path.
    """

    path: Path
    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    tree: dict[Path, Module] = field(default_factory=dict)

    def where(self, node: ast.AST) -> str:
        """Return the file and the line of a piece of code."""
        return f"{self.path.name}:{getattr(node, 'lineno', '?')}"

    def functions(self) -> list[str]:
        """Return the names of its functions, in their order."""
        return [name for name, node in self.definitions.items() if isinstance(node, ast.FunctionDef)]


@dataclass(slots=True)
class Function:
    """A function of the source tree."""

    node: ast.FunctionDef
    module: Module


@dataclass(slots=True)
class Class:
    """A class of the source tree."""

    node: ast.ClassDef
    module: Module
