"""Which function of a Python file is the configuration that is meant."""

from __future__ import annotations

import ast
from pathlib import Path

from predictor.core.base.errors import ConfigError, nearest
from predictor.formats.python_source.calls import load_module
from predictor.formats.python_source.module import Module

MOST_SHOWN = 12


def recipes(module: Module, returned: str = "Config") -> list[str]:
    """Return the functions of a module that take no arguments, return a configuration and whose names are not private.

    Args:
        module: where they are.
        returned: word in the name of the class that they say they return.
    """
    found = []
    for name, node in module.definitions.items():
        if isinstance(node, ast.FunctionDef) and not name.startswith("_"):
            required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            if required <= 0 and None not in node.args.kw_defaults and _returns(node, returned):
                found.append(name)
    return found


def _returns(node: ast.FunctionDef, word: str) -> bool:
    """Return whether a function says that it returns a configuration, or its name does."""
    returned = "" if node.returns is None else ast.unparse(node.returns)
    return word in returned or (not returned and node.name.endswith(("config", "recipe")))


def chosen(path: Path, function: str | None, returned: str = "Config") -> tuple[Module, str]:
    """Return the module of a file, and the function that is meant.

    Raises:
        ConfigError: there is no such function, or several and none is named.
    """
    module = load_module(path)
    found = recipes(module, returned)
    listed = ", ".join(found[:MOST_SHOWN]) + (
        f" and {len(found) - MOST_SHOWN} others" if len(found) > MOST_SHOWN else ""
    )
    if function is not None:
        if function in module.definitions or function in module.imports:
            return module, function
        raise ConfigError(
            f"{path.name} has no function {function}.{nearest(function, found)} There are: {listed or 'none'}"
        )
    if len(found) == 1:
        return module, found[0]
    if not found:
        raise ConfigError(f"{path.name} has no function that returns a configuration and needs no arguments")
    raise ConfigError(
        f"{path.name} has {len(found)} configurations; name one as {path.name}:{found[0]}. There are: {listed}"
    )
