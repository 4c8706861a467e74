"""Where a piece of code is evaluated: its module, its names, and whether it runs at all."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.formats.python_source.module import Class, Function, Module
from predictor.formats.python_source.modules import imported
from predictor.formats.python_source.values import Unknown, copied

MOST_STEPS = 300_000  # expressions and statements; a configuration takes some thousands
DEEPEST_CALL = 40

Evaluate = Callable[[ast.expr, "Scope"], Any]
Call = Callable[[Any, list[Any], dict[str, Any], ast.AST, "Scope"], Any]


@dataclass(slots=True)
class Work:
    """What an evaluation has done so far.

    Attributes:
        call: how functions are called.
        external: names that stay external even where the tree defines them.
        values: of module constants, which the code may change.
        steps: evaluated so far.
        raised: what the code raises or hands to code that is not there, with its line.
    """

    call: Call
    external: frozenset[str] = frozenset()
    values: dict[tuple[Path, str], Any] = field(default_factory=dict)
    steps: int = 0
    raised: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """One call of a function, or the top of a module.

    Attributes:
        module: where the code stands.
        work: of the whole evaluation.
        names: local variables.
        depth: of calls.
        condition: why it is not known whether the present statement runs; None where it does.
    """

    module: Module
    work: Work
    names: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    condition: str | None = None

    def inner(self, module: Module, names: dict[str, Any]) -> Scope:
        """Return the scope of a call that this one makes."""
        return Scope(module, self.work, names, self.depth + 1, self.condition)

    def unknown(self, node: ast.AST, why: str) -> Unknown:
        """Return a value that cannot be told, with its line."""
        return Unknown(f"{self.module.where(node)}: {why}")

    def is_spent(self) -> bool:
        """Count a step; return whether there were too many."""
        self.work.steps += 1
        return self.work.steps > MOST_STEPS


def look_up(name: str, node: ast.AST, scope: Scope, evaluate: Evaluate) -> Any:
    """Return the value of a name: local, of its module, or imported."""
    if name in scope.names:
        return scope.names[name]
    module = scope.module
    if name in module.definitions:
        return _defined(module, name, scope, evaluate)
    if name in module.imports:
        found = imported(module, name)
        if isinstance(found, tuple):
            return _defined(found[0], found[1], scope, evaluate)
        return found
    return scope.unknown(node, f"{name} is not defined in this file or in those that it imports")


def _defined(module: Module, name: str, scope: Scope, evaluate: Evaluate) -> Any:
    """Return a function, a class or a value that a module defines; values are evaluated once."""
    node = module.definitions[name]
    if isinstance(node, ast.FunctionDef):
        return Function(node, module)
    if isinstance(node, ast.ClassDef):
        return Class(node, module)
    if name not in module.values:
        module.values[name] = scope.unknown(node, f"{name} refers to itself")
        if isinstance(node, ast.expr):
            module.values[name] = evaluate(node, Scope(module, scope.work, depth=scope.depth + 1))
    key = (module.path, name)
    if key not in scope.work.values:
        scope.work.values[key] = copied(module.values[name])
    return scope.work.values[key]
