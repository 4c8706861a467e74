"""Packages for GPUs that a framework imports and no parser of arguments needs."""

from __future__ import annotations

import builtins
from typing import Any
from unittest.mock import MagicMock


def decorated(function: Any = None, **_: Any) -> Any:
    """Return what a decorator is put on, as Triton's are that are not run."""
    return function if function is not None else decorated


def stand_in(package: str, of: tuple[str, ...]) -> None:
    """Let modules import a package that is not installed.

    Args:
        package: the package.
        of: names of packages that ask for it, or of modules that do so without looking whether it is there.
    """
    imported = builtins.__import__

    def find(name: str, scope: Any = None, *rest: Any, **named: Any) -> Any:
        asks = str((scope or {}).get("__name__"))
        if name.partition(".")[0] == package and any(asks.startswith(module) or asks.endswith(module) for module in of):
            return MagicMock(jit=decorated, autotune=lambda *_, **__: decorated)
        return imported(name, scope, *rest, **named)

    builtins.__import__ = find  # type: ignore[assignment]
