"""Load YAML, but none so deep that it ends the process: libyaml's binding recurses in C, without a limit."""

from __future__ import annotations

from typing import Any

import yaml

# Levels; the deepest configurations of other tools have some ten. The binding's composer overflows a stack of 8 MiB
# between 20,000 and 40,000 levels.
DEEPEST = 200
# What opens a level without a line of its own; a level by indentation takes bytes that a file's size limits.
OPENERS = (b"[", b"{", b"-", b"?")


def load_yaml(text: str | bytes, loader: Any, name: str | None = None) -> Any:
    """Return the content of a YAML document.

    Args:
        text: of the document.
        loader: of PyYAML.
        name: of the file, for messages.

    Raises:
        yaml.YAMLError: it does not parse, or is nested deeper than ``DEEPEST`` levels.
        ValueError, RecursionError: of the loader.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        if sum(map(data.count, OPENERS)) > DEEPEST:
            _check_depth(text, loader)
        return yaml.load(text, Loader=loader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
        if name is not None:
            _name(error, name)
        raise


def _check_depth(text: str | bytes, loader: Any) -> None:
    """Go through a document's events, which recurse nowhere, and refuse what is nested too deep."""
    depth, too_deep = 0, f"nested deeper than {DEEPEST} levels"
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    mark: Any = event.start_mark
                    raise yaml.MarkedYAMLError(None, None, too_deep, mark)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.scanner.ScannerError as error:  # the scanner is ahead of the events, and has a limit of its own: 1,000
        if error.problem == "exceeded maximum nesting depth":
            error.problem = too_deep
        raise


def _name(error: yaml.YAMLError, name: str) -> None:
    """Put a file's name where PyYAML says that it read bytes or a string."""
    if isinstance(error, yaml.reader.ReaderError):
        error.name = name
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        vars(error)["problem_mark"] = yaml.Mark(name, mark.index, mark.line, mark.column, None, 0)
