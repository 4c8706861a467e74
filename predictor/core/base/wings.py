"""Wings by name: the package's root says which module each is, and it is imported when the core first asks for it."""

from __future__ import annotations

_MODULES: dict[str, str] = {}


def provide(**modules: str) -> None:
    """Say which modules the wings are, by their dotted names."""
    _MODULES.update(modules)


def wing(name: str) -> object:
    """Return the module of a wing; a Protocol where it is asked for says what it has."""
    from importlib import import_module  # only when needed, for a fast start

    return import_module(_MODULES[name])
