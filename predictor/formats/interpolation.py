"""Fill in ${references} of YAML configurations by OmegaConf; what comes from elsewhere is marked as unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.shell.words import unknown

MISSING = "???"  # OmegaConf's own mark of a value that a user has to give
DEEPEST = 40  # sections in sections, references followed; more go in a circle
# The environment is that of the run, not of the machine that reads the file.
_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
# Resolvers that tools register themselves, on whole numbers. Source: NVIDIA/NeMo-Framework-Launcher,
# launcher_scripts/main.py; NVIDIA-NeMo/RL, nemo_rl/utils/config.py.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "multiply": lambda left, right: left * right,
    "mul": lambda left, right: left * right,
    "sum": lambda left, right: left + right,
    "add": lambda *parts: sum(parts),
    "divide_floor": lambda left, right: left // right,
    "divide_ceil": lambda left, right: -(-left // right),
    "div": lambda left, right: left // right,
    "max": max,
    "min": min,
}


def filled(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration whose references to its own keys are filled in.

    A reference to anything else, such as ${oc.env:HOME} or ${data_dir}, is marked (``shell.words.is_unknown``), and so
    is « ??? ».

    Args:
        content: keys and values; without a reference they are returned as they are.
        where: the file, for the message.

    Raises:
        ConfigError: there are references, and OmegaConf is not installed.
    """
    if not _is_open(content):
        return content
    try:
        from omegaconf import OmegaConf, __version__  # an extra, which files without references do not need
    except ImportError:
        raise ConfigError(f"{where} has ${{…}}: pip install 'estimate-train-time[readers]'") from None
    is_older = __version__.startswith("2.3.")  # of Hydra 1.3; from 2.4 on its own name is deprecated
    register = OmegaConf.register_new_resolver if is_older else OmegaConf.register_resolver
    for name, function in ARITHMETIC.items():
        if not OmegaConf.has_resolver(name):
            register(name, _of_numbers(name, function))
    root = OmegaConf.create(_prepared(content), flags={"allow_objects": True})
    result: dict[str, Any] = _plain(root, 0)
    return result


def _is_open(value: Any) -> bool:
    """Return whether a value holds a reference, or the mark of one that is to be given."""
    if isinstance(value, dict):
        return any(map(_is_open, value.values()))
    if isinstance(value, list):
        return any(map(_is_open, value))
    return isinstance(value, str) and ("${" in value or value == MISSING)


def _prepared(value: Any) -> Any:
    """Return a value that OmegaConf takes: keys as text, and marks where it could only fail."""
    if isinstance(value, dict):
        return {str(key): _prepared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_prepared(item) for item in value]
    if isinstance(value, str) and (value == MISSING or _ENVIRONMENT.search(value) or not _parses(value)):
        return _marked(value)
    return value


def _parses(value: str) -> bool:
    """Return whether a text is of OmegaConf's grammar."""
    if "${" not in value:
        return True
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    try:
        parse(value)
    except GrammarParseError:
        return False
    return True


def _marked(value: str) -> str:
    whole = re.fullmatch(r"\$\{([^{}]*)\}", value)
    return unknown(whole[1] if whole else value)


def _plain(node: Any, depth: int) -> Any:
    """Return a node of OmegaConf as dicts, lists and values, its references followed."""
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig | ListConfig):
        return node
    if node._is_none():
        return None
    if depth > DEEPEST:
        return unknown("a reference in a circle")
    keys: Any = list(node.keys()) if isinstance(node, DictConfig) else range(len(node))
    found: dict[Any, Any] = {}
    for key in keys:
        try:
            found[key] = _plain(node[key], depth + 1)
        except (OmegaConfBaseException, RecursionError):
            found[key] = _marked(str(node._get_node(key)))
    return found if isinstance(node, DictConfig) else list(found.values())


def _of_numbers(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a resolver of whole numbers, which of anything else gives a mark."""

    def resolve(*parts: Any) -> Any:
        numbers = [int(part) if isinstance(part, str) and re.fullmatch(r"-?\d+", part) else part for part in parts]
        try:
            if all(type(number) is int for number in numbers):
                return function(*numbers)
        except (TypeError, ZeroDivisionError):
            pass
        return unknown(f"{name}:{','.join(map(str, parts))}")

    return resolve
